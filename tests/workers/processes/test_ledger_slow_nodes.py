"""Remote loaders of different speeds: a slow one gets less, and the run is not slower for having it."""

from __future__ import annotations

import heapq

import pytest
from blobfeed.workers.processes.ledger import MAX_ASSIGNED_REMOTE, Ledger
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.pure

SLOTS, ROWS = 8, 4


def run(seconds: list[float], groups: int = 120) -> tuple[float, list[int]]:
    """When the last of all groups is announced, and how many rows each loader has made; loader i takes seconds[i]."""
    ledger = Ledger(slots=SLOTS, rows_of=lambda _: ROWS, has=lambda group: group < groups)
    ledger.rows_per_task = 1
    for loader in range(len(seconds)):
        ledger.add_loader(loader, remote=True)
    now, announced, made, free_at = 0.0, 0, [0] * len(seconds), [0.0] * len(seconds)
    events: list[tuple[float, int, int]] = []
    while announced < groups:
        ledger.open_groups()
        for loader, task in ledger.assign(now):
            assert len(ledger.assigned(loader)) <= MAX_ASSIGNED_REMOTE
            free_at[loader] = max(free_at[loader], now) + seconds[loader]
            heapq.heappush(events, (free_at[loader], loader, task.id))
        now, loader, task_id = heapq.heappop(events)
        assert ledger.done(loader, task_id, now) is not None
        made[loader] += 1
        for group, _ in list(ledger.announcements()):
            announced += 1
            ledger.release(group)
    return now, made


@given(st.lists(st.floats(1.0, 1.3), min_size=2, max_size=5), st.floats(1.0, 100.0))
def test_a_slow_node_makes_no_run_slower_than_without_it(fast: list[float], slow: float) -> None:
    without, _ = run(fast)
    took, made = run([*fast, slow])
    assert sum(made) == 120 * ROWS
    assert took <= 1.1 * without + 1.2 * slow, "one task is needed to learn how slow it is"


def test_a_node_half_as_fast_makes_half_as_much() -> None:
    took, made = run([1.0, 1.0, 1.0, 2.0])
    assert 0.4 < made[3] / made[0] < 0.6
    assert took < 0.9 * run([1.0, 1.0, 1.0])[0]


def test_a_node_that_was_slow_for_a_while_is_tried_again() -> None:
    _, made = run([1.0, 1.0, 1.0, 14.0], groups=1000)
    assert made[3] > 1


def test_loaders_of_equal_speed_share_equally() -> None:
    _, made = run([1.0] * 4)
    assert max(made) - min(made) <= 2
