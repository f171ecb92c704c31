"""The weights of a net, each once, however many layers share it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ..layer_types import Layer
from ..prototxt import DimCheckMode, Message


@dataclass
class WeightEntry:
    """One blob of weights: number `index` of `layer`, the first that has it. And how fast the solver updates it."""

    layer: Layer
    index: int
    multipliers: dict[str, float] = field(default_factory=dict)
    """lr_mult and decay_mult, if a layer gives them; else they are 1."""

    @property
    def weights(self) -> Tensor:
        """The tensor that the module has now: where it moves, torch makes new buffers."""
        return self.layer.blobs[self.index]

    @property
    def lr_mult(self) -> float:
        return self.multipliers.get("lr_mult", 1.0)

    @property
    def decay_mult(self) -> float:
        return self.multipliers.get("decay_mult", 1.0)


class Weights:
    """All weights of a net, in the order of its layers."""

    def __init__(self) -> None:
        self.entries: list[WeightEntry] = []
        self._by_name: dict[str, WeightEntry] = {}

    def add(self, layer: Layer) -> None:
        """Add the weights of `layer`; those whose name is already known are replaced by the known ones."""
        for index in range(len(layer.blobs)):
            spec = layer.spec(index)
            known = self._by_name.get(spec.name)
            entry = known or WeightEntry(layer, index)
            self._multiply(entry, layer, index, spec)
            if known:
                self._share(known, layer, index, spec)
                continue
            self.entries.append(entry)
            if spec.name:
                self._by_name[spec.name] = entry

    def _multiply(self, entry: WeightEntry, layer: Layer, index: int, spec: Message) -> None:
        for name in [name for name in ("lr_mult", "decay_mult") if spec.HasField(name)]:
            value = getattr(spec, name)
            known = entry.multipliers.setdefault(name, value)
            if known != value:
                raise layer.context.prototxt_error(
                    f"{name} of the weights {spec.name!r} is {value:g}, and {known:g} in layer "
                    f"{entry.layer.param.name!r}, which shares them",
                    "param",
                    index,
                    name,
                )

    def _share(self, known: WeightEntry, layer: Layer, index: int, spec: Message) -> None:
        weights = known.weights
        own, shared = tuple(layer.blobs[index].shape), tuple(weights.shape)
        permissive = spec.share_mode == DimCheckMode.PERMISSIVE
        if own != shared and not (permissive and layer.blobs[index].numel() == weights.numel()):
            raise layer.context.prototxt_error(
                f"its weights {spec.name!r} have the shape {own}, and those of layer "
                f"{known.layer.param.name!r} {shared}; with share_mode: PERMISSIVE only their counts must agree",
                "param",
                index,
                "name",
            )
        if known.lr_mult == 0:
            weights.requires_grad_(False)
        if own == shared:
            setattr(layer, str(index), weights)
        else:
            weights.data = weights.data.contiguous()  # else another shape of it would be a copy
            delattr(layer, str(index))
            layer.views[str(index)] = known.layer, known.index, own
