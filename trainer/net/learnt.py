"""The weights of a net, each once, however many layers share it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from ..layer_types.layer import Layer
from ..prototxt.schema import DimCheckMode, Message


@dataclass(frozen=True)
class Learnt:
    """Weights that the solver updates, and how fast."""

    weights: Tensor
    lr_mult: float
    decay_mult: float


@dataclass
class _Entry:
    weights: Tensor
    layer: Layer
    lr_mult: float | None
    """None as long as no layer gives it."""
    decay_mult: float | None


class Weights:
    """All weights of a net, in the order of its layers."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._by_name: dict[str, _Entry] = {}

    def add(self, layer: Layer) -> None:
        """Add the weights of `layer`; those whose name is already known are replaced by the known ones."""
        for index, weights in enumerate(layer.blobs):
            spec = layer.spec(index)
            owner = self._by_name.get(spec.name) if spec and spec.name else None
            if spec and owner:
                self._share(layer, index, spec, owner)
                continue
            given = {name: spec and spec.HasField(name) for name in ("lr_mult", "decay_mult")}
            entry = _Entry(weights, layer, *(getattr(spec, name) if has else None for name, has in given.items()))
            self._entries.append(entry)
            if spec and spec.name:
                self._by_name[spec.name] = entry

    def _share(self, layer: Layer, index: int, spec: Message, owner: _Entry) -> None:
        own, shared = tuple(layer.blobs[index].shape), tuple(owner.weights.shape)
        permissive = spec.share_mode == DimCheckMode.PERMISSIVE
        if own != shared and not (permissive and layer.blobs[index].numel() == owner.weights.numel()):
            raise layer.context.unsupported(
                f"its weights {spec.name!r} have the shape {own}, and those of layer {owner.layer.param.name!r} "
                f"{shared}; with share_mode: PERMISSIVE only their counts must agree",
                "param",
                index,
                "name",
            )
        for name in ("lr_mult", "decay_mult"):
            if spec.HasField(name):
                value, known = getattr(spec, name), getattr(owner, name)
                if known not in (None, value):
                    raise layer.context.unsupported(
                        f"{name} of the weights {spec.name!r} is {value:g}, and {known:g} in layer "
                        f"{owner.layer.param.name!r}, which shares them",
                        "param",
                        index,
                        name,
                    )
                setattr(owner, name, value)
        if owner.lr_mult == 0:
            owner.weights.requires_grad_(False)
        if own != shared:  # a view of the same memory, which must be contiguous for that
            owner.weights.data = owner.weights.data.contiguous()
        layer.blobs[index] = owner.weights if own == shared else owner.weights.view(own)

    def all(self) -> list[Tensor]:
        """Including those that the solver does not update."""
        return [entry.weights for entry in self._entries]

    def learnt(self) -> Iterator[Learnt]:
        for entry in self._entries:
            if entry.weights.requires_grad:
                lr_mult, decay_mult = (1.0 if value is None else value for value in (entry.lr_mult, entry.decay_mult))
                yield Learnt(entry.weights, lr_mult, decay_mult)
