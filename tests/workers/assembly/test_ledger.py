"""Decisions of the ledger, one at a time; test_interleavings.py has every order of events."""

from __future__ import annotations

import heapq
from typing import Any

import hypothesis.strategies as st
import pytest
from blobfeed.workers.assembly import Evidence, Ledger
from blobfeed.workers.transport import Draw
from hypothesis import given

from tests.support.schedules import schedule_of


def make_ledger(rows: int = 4, slots: int = 2) -> Ledger:
    return Ledger(schedule_of(rows), slots=slots)


def test_a_slot_is_freed_by_one_release_of_its_group() -> None:
    ledger = make_ledger(slots=1)
    ledger.add_loader(1)
    ledger.open_groups()
    ((_, task),) = ledger.assign(0.0)
    assert not ledger.release(0), "it is not announced"
    ledger.done(1, task.id, 0.0)
    assert list(ledger.announcements()) == [(0, 0)]
    assert [ledger.release(group) for group in (1, 0, 0)] == [False, True, False]
    assert (ledger.slots_full, list(ledger.announcements())) == (0, [])


def test_a_task_becomes_overdue_from_when_it_was_begun_not_from_when_it_was_queued() -> None:
    ledger = make_ledger()
    ledger.rows_per_task = 2
    ledger.add_loader(1)
    ledger.open_groups()
    first, _ = [task for _, task in ledger.assign(0.0)]
    assert ledger.overdue(10.0, 10.0) == []
    assert ledger.next_deadline(10.0) == 10.0
    assert ledger.overdue(11.0, 10.0) == [1]
    ledger.done(1, first.id, 9.0)
    assert ledger.overdue(11.0, 10.0) == []


@pytest.mark.parametrize(
    ("evidence", "enough"), [(Evidence.HUNG, 3), (Evidence.CRASHED, 4), (Evidence.KILLED_FROM_OUTSIDE, 7)]
)
@pytest.mark.parametrize("rows", [2, 3])
def test_a_task_that_kills_is_cut_into_single_rows_and_the_row_is_named(
    rows: int, evidence: Evidence, enough: int
) -> None:
    ledger = make_ledger(rows=rows, slots=1)
    deadly_row = 1
    deaths = 0
    for loader in range(1, 20):
        ledger.add_loader(loader)
        ledger.open_groups()
        while tasks := [task for _, task in ledger.assign(0.0)] or ledger.assigned(loader):
            task = tasks[0]
            if task.first_row <= deadly_row < task.first_row + task.rows:
                break
            ledger.done(loader, task.id, 0.0)
        deaths += 1
        if poisoned := ledger.remove_loader(loader, task.id, evidence):
            break
    assert poisoned is not None
    assert (poisoned.first_row, poisoned.rows) == (deadly_row, 1)
    assert poisoned.deaths == enough - 1, "the first death was of all rows, and only cut them"
    assert poisoned.suspicion == (enough - 1) * evidence
    assert deaths == enough


@pytest.mark.parametrize(
    ("deaths", "convicted"),
    [
        ([Evidence.HUNG], False),
        ([Evidence.HUNG, Evidence.CRASHED], False),
        ([Evidence.HUNG, Evidence.HUNG], True),
        ([Evidence.HUNG, Evidence.CRASHED, Evidence.KILLED_FROM_OUTSIDE], True),
        ([Evidence.CRASHED, Evidence.CRASHED, Evidence.KILLED_FROM_OUTSIDE], False),
    ],
)
def test_deaths_of_different_kinds_add_up(deaths: list[Evidence], convicted: bool) -> None:
    ledger = make_ledger(rows=1, slots=1)
    ledger.open_groups()
    poisoned = None
    for loader, evidence in enumerate(deaths):
        ledger.add_loader(loader)
        ((_, task),) = ledger.assign(0.0)
        poisoned = ledger.remove_loader(loader, task.id, evidence)
    assert (poisoned is not None) == convicted


def test_what_cannot_be_cut_is_given_out_whole_and_convicted_whole() -> None:
    ledger = Ledger(schedule_of(4, groups=1, can_be_cut=False), slots=1)
    ledger.rows_per_task = 1
    for loader in (1, 2, 3):
        ledger.add_loader(loader)
        ledger.open_groups()
        ((_, task),) = ledger.assign(0.0)
        assert (task.first_row, task.rows) == (0, 4)
        poisoned = ledger.remove_loader(loader, task.id)
    assert poisoned is task
    assert task.deaths == 3


def test_a_row_is_tried_with_one_candidate_after_the_other_each_free_of_blame() -> None:
    ledger = make_ledger(rows=1, slots=1)
    ledger.open_groups()
    for skip in range(3):
        ledger.add_loader(skip)
        ((_, task),) = ledger.assign(0.0)
        assert (task.skip, task.deaths, task.suspicion, task.first_row, task.rows) == (skip, 0, 0, 0, 1)
        assert ledger.remove_loader(skip, task.id, Evidence.HUNG) is None
        ledger.add_loader(skip)
        assert list(ledger.assign(0.0)) == [(skip, task)]
        assert ledger.remove_loader(skip, task.id, Evidence.HUNG) is task
        ledger.retry(task)


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_each_loader_has_as_many_tasks_at_a_time_as_it_may_have(most: int) -> None:
    ledger = make_ledger(rows=20)
    ledger.rows_per_task = 1
    ledger.add_loader(1, most)
    ledger.add_loader(2, 4, remote=True)
    ledger.open_groups()
    given = [loader for loader, _ in ledger.assign(0.0)]
    assert given == [1, 2] * most + [2] * (4 - most), "the one with the fewest comes first"
    assert list(ledger.assign(0.0)) == []
    assert ledger.done(1, ledger.assigned(1)[0].id, 50.0)  # however slow it is
    assert [loader for loader, _ in ledger.assign(50.0)] == [1]


def test_the_first_loader_to_become_overdue_is_waited_for() -> None:
    ledger = make_ledger(rows=8)
    ledger.rows_per_task = 1
    for loader, now in ((1, 5.0), (2, 3.0), (3, 4.0)):
        ledger.add_loader(loader)
        ledger.open_groups()
        assert list(ledger.assign(now))
    assert ledger.next_deadline(10.0) == 13.0
    assert ledger.overdue(14.5, 10.0) == [2, 3]
    assert make_ledger().next_deadline(10.0) is None


def test_the_earliest_rows_come_first_whether_they_wait_for_their_owner_or_for_any_loader() -> None:
    ledger = Ledger(schedule_of(6, groups=1, affinity=lambda _group, row: 2 if row == 3 else row), slots=1)
    ledger.rows_per_task = 1
    ledger.add_loader(1, 1)
    ledger.add_loader(2, 1)
    ledger.open_groups()
    given = [task for _, task in ledger.assign(0.0)]
    ledger.done(1, given[0].id, 0.0)
    ((_, owned),) = ledger.assign(0.0)
    ledger.add_loader(3, 1)
    ((_, other),) = ledger.assign(0.0)
    assert [task.first_row for task in (*given, owned, other)] == [0, 1, 2, 4]
    ledger.done(1, owned.id, 0.0)
    ledger.remove_loader(2)
    assert [task.first_row for _, task in ledger.assign(0.0)] == [1]


def test_a_task_that_comes_behind_another_leaves_the_deadline_as_it_is() -> None:
    ledger = Ledger(schedule_of(2, groups=1), slots=1)
    ledger.rows_per_task = 1
    ledger.add_loader(1)
    ledger.add_loader(2)
    ledger.open_groups()
    assert [loader for loader, _ in ledger.assign(5.0)] == [1, 2]
    ledger.remove_loader(2)
    assert [loader for loader, _ in ledger.assign(9.0)] == [1]
    assert ledger.next_deadline(10.0) == 15.0


def test_a_loader_that_is_being_killed_has_no_deadline_and_gets_no_task() -> None:
    ledger = Ledger(schedule_of(8, groups=1, affinity=lambda _group, row: row // 6), slots=1)
    ledger.rows_per_task = 1
    ledger.add_loader(1)
    ledger.open_groups()
    begun = [task for _, task in ledger.assign(0.0)]
    ledger.note_killed(1)
    assert ledger.next_deadline(10.0) is None
    assert ledger.overdue(11.0, 10.0) == []
    assert ledger.done(1, begun[0].id, 11.0) is begun[0], "its last report may still come"
    assert list(ledger.assign(11.0)) == []
    ledger.add_loader(2)
    rows = []
    while given := [task for _, task in ledger.assign(11.0)]:
        rows += [task.first_row for task in given]
        for task in given:
            ledger.done(2, task.id, 11.0)
    assert rows == [2, 3, 4, 5, 6, 7], "what waited for it alone is made by others"


def test_only_loaders_of_this_host_are_dismissed_the_idlest_first_and_each_once() -> None:
    ledger = make_ledger(rows=8)
    ledger.rows_per_task = 1
    ledger.add_loader(1)
    ledger.open_groups()
    assert len(list(ledger.assign(0.0))) == 2
    ledger.add_loader(2, remote=True)
    ledger.add_loader(3)
    for _ in range(2):
        ledger.dismiss_one()
        assert ledger.dismissed_and_free() == [3]
    ledger.dismiss_one()
    for task in ledger.assigned(1):
        ledger.done(1, task.id, 0.0)
    assert ledger.dismissed_and_free() == [1, 3]


def test_tasks_of_one_window_go_to_one_loader_as_long_as_it_lives() -> None:
    ledger = Ledger(schedule_of(1, affinity=lambda group, _: group // 2), slots=4)
    ledger.add_loader(1)
    ledger.add_loader(2)
    ledger.open_groups()
    given = [(loader, task.group) for loader, task in ledger.assign(0.0)]
    assert given == [(1, 0), (1, 1), (2, 2), (2, 3)]
    ledger.remove_loader(1)
    for _, task in [(2, task) for task in ledger.assigned(2)]:
        ledger.done(2, task.id, 0.0)
    assert [(loader, task.group) for loader, task in ledger.assign(0.0)] == [(2, 0), (2, 1)]


def test_of_very_many_windows_the_latest_are_remembered() -> None:
    ledger = Ledger(schedule_of(600, affinity=lambda group, row: 599 - row if group else row), slots=1)
    ledger.add_loader(1)
    ledger.open_groups()
    while given := list(ledger.assign(0.0)):
        for loader, task in given:
            ledger.done(loader, task.id, 0.0)
    assert [ledger.release(group) for group, _ in ledger.announcements()] == [True]
    ledger.add_loader(2)
    ledger.open_groups()
    assert [(loader, task.first_row) for loader, task in ledger.assign(0.0)] == [(1, 0), (1, 1), (2, 256), (2, 257)]


def shards_by_loader(ledger: Ledger, shards: int) -> dict[int, set[int]]:
    """Make at least one more batch of each of a stream's shards; returns the shards that each loader has run."""
    made: dict[int, set[int]] = {}
    for _ in range(shards):
        ledger.open_groups()
        for loader, task in list(ledger.assign(0.0)):
            assert task.affinity is not None
            made.setdefault(loader, set()).add(task.affinity)
            ledger.done(loader, task.id, 0.0)
        for group, _ in list(ledger.announcements()):
            ledger.release(group)
    return made


def test_a_streams_shards_stay_with_their_loaders_however_many_there_are() -> None:
    ledger = Ledger(schedule_of(1, affinity=lambda group, _: group % 301, can_be_cut=False), slots=2)
    ledger.add_loader(1)
    ledger.add_loader(2)
    assert sum(map(len, shards_by_loader(ledger, 301).values())) == 301


def test_a_loader_that_comes_later_takes_over_its_share_of_a_streams_shards() -> None:
    ledger = Ledger(schedule_of(1, affinity=lambda group, _: group % 6, can_be_cut=False), slots=1)
    for loader, shares in ((1, [6]), (2, [3, 3]), (3, [2, 2, 2])):
        ledger.add_loader(loader)
        assert [len(shards) for shards in shards_by_loader(ledger, 6).values()] == shares
    ledger.remove_loader(2)
    shards_by_loader(ledger, 6)
    ledger.add_loader(4)
    assert [len(shards) for shards in shards_by_loader(ledger, 6).values()] == [2, 2, 2]


def test_batches_that_wait_for_a_streams_first_loader_are_shared_with_the_second() -> None:
    ledger = Ledger(schedule_of(1, affinity=lambda group, _: group % 2, can_be_cut=False), slots=8)
    ledger.open_groups()
    for loader in (1, 2):
        ledger.add_loader(loader)
        assert {given for given, _ in ledger.assign(0.0)} == {loader}


class CountingHeaps:
    """Stands for heapq in the ledger."""

    def __init__(self) -> None:
        self.operations = 0

    def heappush(self, heap: list[Any], entry: Any) -> None:
        self.operations += 1
        heapq.heappush(heap, entry)

    def heappop(self, heap: list[Any]) -> Any:
        self.operations += 1
        return heapq.heappop(heap)


def operations_a_turn(monkeypatch: pytest.MonkeyPatch, queued: int, turns: int = 50) -> int:
    """The most heap operations in one turn, with so many tasks queued for a loader that is busy."""
    heaps = CountingHeaps()
    monkeypatch.setattr("blobfeed.workers.assembly.ledger.heapq", heaps)
    ledger = Ledger(schedule_of(queued, groups=1, affinity=lambda *_: 0), slots=1)
    ledger.rows_per_task = 1
    ledger.add_loader(1)
    ledger.add_loader(2)
    ledger.open_groups()
    assert [loader for loader, _ in ledger.assign(0.0)] == [1, 1]
    most = 0
    for _ in range(turns):
        for finished in (True, False):
            before = heaps.operations
            if finished:
                ledger.done(1, ledger.assigned(1)[0].id, 0.0)
            assert [loader for loader, _ in ledger.assign(0.0)] == [1] * finished
            most = max(most, heaps.operations - before)
    return most


def test_a_turn_touches_as_few_of_4096_tasks_that_wait_for_a_busy_loader_as_of_64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert operations_a_turn(monkeypatch, 4096) <= operations_a_turn(monkeypatch, 64) <= 2


@given(
    rows=st.integers(1, 200),
    size=st.integers(1, 80),
    borders=st.lists(st.integers(1, 199), max_size=6),
)
def test_no_task_holds_rows_of_two_windows(rows: int, size: int, borders: list[int]) -> None:
    def window(_group: int, row: int) -> int:
        return sum(row >= border for border in borders)

    ledger = Ledger(schedule_of(rows, groups=1, affinity=window), slots=1)
    ledger.rows_per_task = size
    ledger.add_loader(1)
    ledger.open_groups()
    made: list[int] = []
    while given := [task for _, task in ledger.assign(0.0)]:
        for task in given:
            mine = range(task.first_row, task.first_row + task.rows)
            assert len({window(0, row) for row in mine}) == 1
            assert len(mine) <= size
            made += mine
            ledger.done(1, task.id, 0.0)
    assert made == list(range(rows))


def test_nothing_waits_behind_a_draw_and_one_local_loader_draws_all_epochs() -> None:
    ledger = Ledger(schedule_of(4, groups=4), slots=4)
    ledger.add_loader(1, 1, remote=True)
    ledger.open_groups()
    ledger.enqueue_draw(Draw(0, 0, 0))
    assert {task.draw for _, task in ledger.assign(0.0)} == {None}  # a remote loader gets no draw
    for loader in (2, 3):
        ledger.add_loader(loader)
    given = list(ledger.assign(0.0))
    assert [task.group for _, task in given if task.draw is None] == [1, 2, 3]
    (drawer,) = [loader for loader, task in given if task.draw is not None]
    assert ledger.assigned(drawer)[-1].draw is not None
    for task in ledger.assigned(drawer):
        ledger.done(drawer, task.id, 1.0)
    ledger.enqueue_draw(Draw(0, 1, 0))
    assert [(loader, task.draw is not None) for loader, task in ledger.assign(1.0)] == [(drawer, True)]
