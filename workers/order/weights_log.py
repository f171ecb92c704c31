"""The sampling weights that a user sets during a run, and the first epoch of each change. Pure.

An epoch's weights must not depend on the loaders' progress when the user set them. So a change applies from the first
epoch of which no batch can have been planned yet. That epoch follows from the number of slots alone, and every process
computes it by the same function.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..base import ParameterError
from ..transport import WeightsChange
from .samplers import Weights


def version_at(changes: Iterable[WeightsChange], epoch: int) -> int:
    """Return the newest version that applies to `epoch`; 0 for the sampler's own weights."""
    return max((change.version for change in changes if change.from_epoch <= epoch), default=0)


def without_superseded(changes: Iterable[WeightsChange], epoch: int) -> list[WeightsChange]:
    """Return `changes` without those that apply to no epoch from `epoch` on."""
    kept: list[WeightsChange] = []
    for change in sorted(changes, key=lambda each: -each.version):
        if not version_at(kept, max(change.from_epoch, epoch)):
            kept.insert(0, change)
    return kept


class NewWeights(NamedTuple):
    """A change, its weights, and the versions that are no longer needed."""

    change: WeightsChange
    weights: Weights
    gone: list[int]


@dataclass(slots=True)
class WeightsLog:
    """The changes and their weights. The trainer adds changes; the children start with a copy."""

    changes: list[WeightsChange] = field(default_factory=list)
    weights: dict[int, Weights] = field(default_factory=dict)
    newest: int = 0
    _text: tuple[list[WeightsChange], str] = field(default=([], ""), repr=False)

    def add(self, from_epoch: int, weights: Weights) -> WeightsChange:
        self.newest += 1
        self.changes.append(WeightsChange(self.newest, from_epoch))
        self.weights[self.newest] = weights
        return self.changes[-1]

    def forget(self, epoch: int) -> list[int]:
        """Drop the changes that apply to no epoch from `epoch` on; returns their versions."""
        kept = without_superseded(self.changes, epoch)
        gone = [change.version for change in self.changes if change not in kept]
        self.changes = kept
        for version in gone:
            del self.weights[version]
        return gone

    def as_text(self, epoch: int) -> str:
        """Return, for a state, the changes that apply to epochs from `epoch` on; "" if there is none."""
        kept = without_superseded(self.changes, epoch)
        changes, text = self._text
        if changes == kept:
            return text
        rows = []
        for each in kept:
            packed = zlib.compress(self.weights[each.version].tobytes(), 1)
            rows.append((each.from_epoch, base64.b64encode(packed).decode()))
        text = json.dumps(rows) if rows else ""
        self._text = kept, text
        return text

    @classmethod
    def from_text(cls, text: str, samples: int) -> WeightsLog:
        """Read what `as_text` has written; raises ParameterError."""
        log = cls()
        try:
            for from_epoch, packed in json.loads(text) if text else ():
                weights = np.frombuffer(zlib.decompress(base64.b64decode(packed)), np.float64)
                log.add(int(from_epoch), check_weights(weights, samples, "the state's weights"))
        except (ValueError, TypeError, zlib.error, binascii.Error) as error:
            if isinstance(error, ParameterError):
                raise
            raise ParameterError(f"the state's weights are not what state_dict gave: {text[:80]!r}") from None
        return log


def check_weights(values: object, samples: int, what: str) -> Weights:
    """Convert `values` to a new float64 array of shape (samples,); raises ParameterError."""
    try:
        weights = np.array(values, np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise ParameterError(f"{what}: expected {samples} numbers, one for each sample: {error}") from None
    if weights.shape != (samples,):
        raise ParameterError(f"{what}: got the shape {weights.shape}, expected ({samples},), a number for each sample")
    if len(wrong := np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))):
        raise ParameterError(
            f"{what}: the weight of sample {wrong[0]} is {weights[wrong[0]]}: expected a finite number, at least 0"
        )
    if not weights.any():
        raise ParameterError(f"{what}: all weights are 0: expected at least one above 0")
    with np.errstate(over="ignore"):
        if np.isinf(weights.sum()):
            raise ParameterError(
                f"{what}: the weights are as large as {weights.max():g} and their sum is infinite: only their shares "
                "count, so divide all by the largest"
            )
    return weights
