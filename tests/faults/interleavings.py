"""Every order of events between trainer, assembler and loaders, in small runs: how many, and what was wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..interleavings.explore import explore
from ..interleavings.variants import VARIANTS
from .figures import Figure
from .scale import Scale

_STUDY = "interleavings"


def study(scale: Scale, _folder: Path) -> Iterator[Figure]:
    states = transitions = 0
    for variant in VARIANTS:
        found = explore(variant, scale.states)
        states += found.states
        transitions += found.transitions
        told = "" if found.complete else " (the nearest)"
        what = f"{variant.name}: {found.states:,} states{told}, {found.transitions:,} transitions; wrong{found.wrong}"
        yield Figure(_STUDY, what, int(bool(found.wrong)), 0)
    yield Figure(_STUDY, "states", states)
    yield Figure(_STUDY, "transitions", transitions)
