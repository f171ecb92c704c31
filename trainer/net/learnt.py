"""The weights of a net, each once, however many layers share it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ..layer_types.layer import Layer
from ..prototxt.schema import DimCheckMode, Message


@dataclass
class Learnt:
    """One blob of weights, and how fast the solver updates it."""

    weights: Tensor
    owner: str = ""
    """The first layer that has it."""
    multipliers: dict[str, float] = field(default_factory=dict)
    """lr_mult and decay_mult, if a layer gives them; else they are 1."""

    @property
    def lr_mult(self) -> float:
        return self.multipliers.get("lr_mult", 1.0)

    @property
    def decay_mult(self) -> float:
        return self.multipliers.get("decay_mult", 1.0)


class Weights:
    """All weights of a net, in the order of its layers."""

    def __init__(self) -> None:
        self.entries: list[Learnt] = []
        self._places: list[tuple[Layer, int]] = []
        """For each entry: its layer, and its index there."""
        self._by_name: dict[str, Learnt] = {}
        self._views: list[tuple[Layer, int, tuple[int, ...], Learnt]] = []
        """Weights that a layer shares in another shape: the layer, their index and shape, and those that they show."""

    def add(self, layer: Layer) -> None:
        """Add the weights of `layer`; those whose name is already known are replaced by the known ones."""
        for index in range(len(layer.blobs)):
            spec = layer.spec(index)
            known = self._by_name.get(spec.name)
            entry = known or Learnt(layer.blobs[index], layer.param.name)
            self._multiply(entry, layer, index, spec)
            if known:
                self._share(known, layer, index, spec)
                continue
            self.entries.append(entry)
            self._places.append((layer, index))
            if spec.name:
                self._by_name[spec.name] = entry

    def _multiply(self, entry: Learnt, layer: Layer, index: int, spec: Message) -> None:
        for name in [name for name in ("lr_mult", "decay_mult") if spec.HasField(name)]:
            value = getattr(spec, name)
            known = entry.multipliers.setdefault(name, value)
            if known != value:
                raise layer.context.unsupported(
                    f"{name} of the weights {spec.name!r} is {value:g}, and {known:g} in layer "
                    f"{entry.owner!r}, which shares them",
                    "param",
                    index,
                    name,
                )

    def _share(self, known: Learnt, layer: Layer, index: int, spec: Message) -> None:
        own, shared = tuple(layer.blobs[index].shape), tuple(known.weights.shape)
        permissive = spec.share_mode == DimCheckMode.PERMISSIVE
        if own != shared and not (permissive and layer.blobs[index].numel() == known.weights.numel()):
            raise layer.context.unsupported(
                f"its weights {spec.name!r} have the shape {own}, and those of layer "
                f"{known.owner!r} {shared}; with share_mode: PERMISSIVE only their counts must agree",
                "param",
                index,
                "name",
            )
        if known.lr_mult == 0:
            known.weights.requires_grad_(False)
        if own == shared:
            setattr(layer, str(index), known.weights)
        else:  # a view of the same memory, which must be contiguous for that
            known.weights.data = known.weights.data.contiguous()
            delattr(layer, str(index))
            layer.register_buffer(str(index), known.weights.view(own), persistent=False)
            self._views.append((layer, index, own, known))

    def renew(self) -> None:
        """Take buffers that torch has replaced, and have views show the memory that those of their owner have now."""
        for entry, (layer, index) in zip(self.entries, self._places, strict=True):
            entry.weights = layer.blobs[index]
        for layer, index, shape, known in self._views:
            setattr(layer, str(index), known.weights.reshape(shape))
