"""The choice of a prototxt's layers for a net: include and exclude rules against the net's phase, level and stages."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .prototxt import Document
from .schema import Message, NetParameter, Phase


@dataclass(frozen=True)
class NetState:
    """The state against which include and exclude rules are checked."""

    phase: Phase
    level: int = 0
    stages: Collection[str] = frozenset()

    def merged(self, other: Message) -> NetState:
        """Return this state with the fields that `other` sets; stages add up, as in Caffe."""
        return NetState(
            Phase(other.phase) if other.HasField("phase") else self.phase,
            other.level if other.HasField("level") else self.level,
            frozenset(self.stages) | frozenset(other.stage),
        )

    def meets(self, rule: Message) -> bool:
        return (
            (not rule.HasField("phase") or rule.phase == self.phase)
            and (not rule.HasField("min_level") or rule.min_level <= self.level)
            and (not rule.HasField("max_level") or rule.max_level >= self.level)
            and all(stage in self.stages for stage in rule.stage)
            and not any(stage in self.stages for stage in rule.not_stage)
        )


def included_layers(net: Document[NetParameter], state: NetState) -> list[int]:
    """Positions in `net.message.layer` of the layers that `state` includes; raises PrototxtError, also if none is."""
    positions = [position for position in range(len(net.message.layer)) if _is_included(net, position, state)]
    if not positions:
        raise net.error(f"no layer is included in phase {state.phase.name}")
    return positions


def _is_included(net: Document[NetParameter], position: int, state: NetState) -> bool:
    layer = net.message.layer[position]
    if layer.include and layer.exclude:
        text = f"layer {layer.name!r} has include and exclude rules: give only one kind"
        raise net.error(text, "layer", position, "exclude")
    if layer.include:
        return any(state.meets(rule) for rule in layer.include)
    return not any(state.meets(rule) for rule in layer.exclude)
