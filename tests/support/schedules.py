"""Groups for a ledger, without a plan."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

_NO_END = 1 << 40


def schedule_of(
    rows: int,
    *,
    groups: int = _NO_END,
    affinity: Callable[[int, int], int | None] = lambda _group, _row: None,
    can_be_cut: bool = True,
) -> Any:
    """What a ledger asks of a Schedule: `groups` groups of `rows` rows each."""
    return SimpleNamespace(
        rows_of=lambda _: rows,
        has=lambda group: group < groups,
        affinity=affinity,
        can_be_cut=can_be_cut,
    )
