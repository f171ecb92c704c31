"""Remote loaders of different speeds: a slow one gets less, and the run is not slower for having it."""

from __future__ import annotations

import heapq
from typing import Any

import pytest
from blobfeed.workers.scheduling.ledger import MAX_ASSIGNED_REMOTE, Ledger, LoaderSpeed, compare_speeds
from hypothesis import given
from hypothesis import strategies as st

from tests.support.schedules import schedule_of

SLOTS, ROWS = 8, 4


def run(seconds: list[float], groups: int = 120) -> tuple[float, list[int]]:
    """When the last of all groups is announced, and how many rows each loader has made; loader i takes seconds[i]."""
    ledger = Ledger(schedule_of(ROWS, groups=groups), slots=SLOTS)
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


# ---- what is measured


@given(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3))
def test_a_dozen_tasks_make_a_change_of_speed_known_and_one_does_not(before: float, after: float) -> None:
    speed = LoaderSpeed(before)
    means = []
    for _ in range(12):
        speed.observe(1, after, now=0.0)
        means.append(speed.seconds_per_row)
    assert abs(means[0] - after) == pytest.approx(0.7 * abs(before - after), abs=1e-9)
    assert abs(means[-1] - after) <= 0.02 * abs(before - after) + 1e-9


def test_the_first_task_counts_alone_and_a_postprocessed_batch_says_nothing_about_rows() -> None:
    speed = LoaderSpeed()
    speed.observe(4, 8.0, now=10.0)
    assert speed.seconds_per_row == pytest.approx(2.0)
    speed.observe(0, 50.0, now=60.0)
    assert speed.seconds_per_row == pytest.approx(2.0)
    speed.observe(1, 1.0, now=61.0)
    assert speed.seconds_per_row == pytest.approx(1.7)


# ---- what follows from it


def speeds(*seconds_per_row: float, rests_until: float = 100.0) -> list[LoaderSpeed]:
    return [LoaderSpeed(seconds, rests_until=rests_until) for seconds in seconds_per_row]


def test_the_slower_a_loader_the_fewer_tasks_it_has() -> None:
    unknown, *known = compared = speeds(0.0, 2.0, 2.8, 4.2, 6.0, 100.0)
    compare_speeds(compared, open_tasks=1000, now=0.0)
    assert [speed.slowness for speed in compared] == [1, 1, 1, 2, 3, 50]
    assert unknown.most_tasks == 1, "nothing is known of it before its first task is done"
    assert [speed.most_tasks for speed in known] == [4, 4, 2, 1, 1]


def test_rows_that_take_no_time_at_all_make_nobody_slow() -> None:
    compared = speeds(1e-12, 3e-12)
    compare_speeds(compared, open_tasks=1000, now=0.0)
    assert [speed.slowness for speed in compared] == [1, 1]


@pytest.mark.parametrize(
    ("slow", "open_tasks", "now", "rests"),
    [
        (4.0, 4, 0.0, True),  # while it makes one row, the others and it make five
        (4.0, 5, 0.0, False),
        (2.0, 2, 0.0, True),
        (1.0, 0, 0.0, False),
        (4.0, 0, 99.9, True),
        (4.0, 0, 100.0, False),
    ],
)
def test_a_slow_loader_rests_if_the_others_end_before_it_until_it_is_asked_again(
    slow: float, open_tasks: int, now: float, rests: bool
) -> None:
    compared = speeds(1.0, slow)
    compare_speeds(compared, open_tasks, now)
    assert [speed.rests for speed in compared] == [False, rests]


def test_a_loader_of_this_host_counts_as_one_of_the_fastest() -> None:
    here, _, slow = compared = [LoaderSpeed(), *speeds(1.0, 4.0)]
    compare_speeds(compared, open_tasks=8, now=0.0)
    assert (here.rests, slow.rests) == (False, True)
    compare_speeds(compared, open_tasks=9, now=0.0)
    assert not slow.rests


# ---- in the ledger


def ledger_of(loaders: int, rows: int = 20, slots: int = 2, **given: Any) -> Ledger:
    """With rows for all, a task each; `loaders` are remote, and their first tasks are given to them at 10.0."""
    ledger = Ledger(schedule_of(rows, groups=2, **given), slots=slots)
    ledger.rows_per_task = 1
    for loader in range(1, loaders + 1):
        ledger.add_loader(loader, remote=True)
    ledger.open_groups()
    assert [loader for loader, _ in ledger.assign(10.0)] == list(range(1, loaders + 1))
    return ledger


def end_oldest(ledger: Ledger, loader: int, now: float) -> None:
    assert ledger.done(loader, ledger.assigned(loader)[0].id, now) is not None


def test_a_node_four_times_slower_has_a_quarter_of_the_tasks() -> None:
    ledger = ledger_of(2)
    end_oldest(ledger, 1, 11.0)
    assert [loader for loader, _ in ledger.assign(11.0)] == [1] * MAX_ASSIGNED_REMOTE
    end_oldest(ledger, 2, 14.0)
    assert [loader for loader, _ in ledger.assign(14.0)] == [2]


def test_a_task_goes_to_whom_would_have_done_it_the_soonest() -> None:
    ledger = ledger_of(2)
    end_oldest(ledger, 2, 11.0)
    end_oldest(ledger, 1, 12.0)
    # The faster one, with 0, 1, 2, 3 tasks, would have done one more after 1, 2, 3, 4 s, the other one after 2, 4 s.
    assert [loader for loader, _ in ledger.assign(12.0)] == [2, 1, 2, 2, 1, 2]


def test_a_loader_of_this_host_has_two_tasks_however_slow_it_is() -> None:
    ledger = ledger_of(1)
    end_oldest(ledger, 1, 11.0)
    ledger.add_loader(2)
    assert [loader for loader, _ in ledger.assign(11.0)].count(2) == 2
    end_oldest(ledger, 2, 1000.0)
    assert [loader for loader, _ in ledger.assign(1000.0)] == [2]


def test_a_loader_that_rests_gets_nothing_but_what_it_alone_shall_get() -> None:
    for affinity, loaders in ((lambda _, row: row, [1, 2]), (lambda *_: None, [1, 1])):
        ledger = ledger_of(2, rows=2, slots=1, affinity=affinity)
        end_oldest(ledger, 1, 11.0)
        end_oldest(ledger, 2, 20.0)
        ((group, _),) = ledger.announcements()
        ledger.release(group)
        ledger.open_groups()
        assert [loader for loader, _ in ledger.assign(20.0)] == loaders
