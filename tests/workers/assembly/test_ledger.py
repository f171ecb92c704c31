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


def make_all(ledger: Ledger) -> list[tuple[int, int, int]]:
    """Do all tasks that there are; returns the batch, first row and rows of each."""
    made = []
    ledger.open()
    while given := list(ledger.assign(0.0)):
        for loader, task in given:
            made.append((task.batch, task.first_row, task.rows))
            ledger.done(loader, task.id, 0.0)
    return made


def test_a_slot_is_freed_once_its_batch_is_complete_and_released() -> None:
    ledger = make_ledger(slots=1)
    ledger.add_loader(1)
    ledger.open()
    ((_, task),) = ledger.assign(0.0)
    assert ledger.release(1) == [], "it is not complete"
    ledger.done(1, task.id, 0.0)
    assert (ledger.completed(), ledger.slots_full) == (range(1), 1)
    assert [ledger.release(upto) for upto in (2, 1, 1, 0)] == [[], [0], [], []]
    assert (ledger.slots_full, ledger.completed()) == (0, range(1, 1))


def test_a_batch_on_loan_keeps_its_slot_and_others_go_on_without_it() -> None:
    ledger = make_ledger(rows=1, slots=3)
    ledger.add_loader(1)
    assert make_all(ledger) == [(0, 0, 1), (1, 0, 1), (2, 0, 1)]
    assert ledger.completed() == range(3)
    kept = [ledger.slots.of(0), ledger.slots.of(1)]
    assert ledger.release(3, (0, 1)) == [2]
    assert make_all(ledger) == [(3, 0, 1)]
    assert ledger.slots.of(3) not in kept
    assert (ledger.slots_full, ledger.slots_filling, ledger.slots.loans) == (0, 1, {0, 1})
    assert ledger.release(2) == [], "a late message"
    assert [ledger.release(3, loans) for loans in ((0,), (0, 1), (0,), ())] == [[1], [], [], [0]]


def test_several_small_batches_are_one_task_in_slots_side_by_side() -> None:
    ledger = Ledger(schedule_of(4, batches=7, last_rows=3), slots=9, batches_per_task=3)
    ledger.rows_per_task = 15
    ledger.add_loader(1)
    assert make_all(ledger) == [(0, 0, 12), (3, 0, 12), (6, 0, 3)]
    assert ledger.completed() == range(7)
    assert [ledger.slots.of(batch) for batch in range(7)] == list(range(7))
    ledger = Ledger(schedule_of(4, batches=7), slots=8, batches_per_task=3)
    ledger.rows_per_task = 7
    ledger.add_loader(1)
    assert make_all(ledger) == [(batch, 0, 4) for batch in range(7)], "a task would be too long"


def test_slots_side_by_side_are_looked_for_where_some_are_on_loan() -> None:
    ledger = Ledger(schedule_of(4), slots=6, batches_per_task=6)
    ledger.add_loader(1)
    make_all(ledger)
    assert ledger.completed() == range(6)
    ledger.release(6, (2,))
    assert make_all(ledger) == [(6, 0, 12), (9, 0, 8)], "the longest stretch first"
    assert [ledger.slots.of(batch) for batch in range(6, 11)] == [3, 4, 5, 0, 1]


def test_small_batches_wait_for_the_slots_of_a_whole_task_while_as_many_are_on_their_way() -> None:
    ledger = Ledger(schedule_of(4), slots=9, batches_per_task=3)
    ledger.add_loader(1)
    assert make_all(ledger) == [(0, 0, 12), (3, 0, 12), (6, 0, 12)]
    assert ledger.completed() == range(9)
    ledger.release(2)
    assert make_all(ledger) == []
    ledger.release(3)
    assert make_all(ledger) == [(9, 0, 12)]
    assert ledger.completed() == range(9, 12)
    ledger.release(7, (4, 5))
    assert make_all(ledger) == [(12, 0, 4)], "five were left, beside those on loan"


def test_rows_of_several_batches_are_cut_where_chunks_end() -> None:
    windows = Ledger(
        schedule_of(4, batches=3, affinity=lambda batch, row: (4 * batch + row) // 6), slots=3, batches_per_task=3
    )
    windows.add_loader(1)
    assert make_all(windows) == [(0, 0, 6), (1, 2, 6)]
    assert windows.completed() == range(3)


# ---- a hook over whole batches


def test_the_task_that_completes_a_batch_waits_for_its_other_rows_and_finishes_it() -> None:
    ledger = Ledger(schedule_of(3, batches=1), slots=1, hook=True)
    ledger.rows_per_task = 1
    for loader in (1, 2):
        ledger.add_loader(loader, 1)
    ledger.open()
    first, second = [task for _, task in ledger.assign(0.0)]
    ledger.done(1, first.id, 0.0)
    assert (list(ledger.assign(0.0)), first.finishes, second.finishes) == ([], False, False)
    ledger.done(2, second.id, 0.0)
    ((loader, last),) = ledger.assign(0.0)
    assert (last.first_row, last.rows, last.finishes, ledger.completed()) == (2, 1, True, range(0))
    ledger.done(loader, last.id, 0.0)
    assert ledger.completed() == range(1)


def test_small_batches_are_finished_together() -> None:
    ledger = Ledger(schedule_of(3, batches=4), slots=4, batches_per_task=2, hook=True)
    ledger.add_loader(1)
    ledger.open()
    assert [(task.batch, task.rows, task.finishes) for _, task in ledger.assign(0.0)] == [(0, 6, True), (2, 6, True)]


def test_where_chunks_divide_small_batches_each_is_finished_by_itself() -> None:
    ledger = Ledger(
        schedule_of(4, batches=2, affinity=lambda batch, row: (4 * batch + row) // 6),
        slots=2, batches_per_task=2, hook=True,
    )  # fmt: skip
    ledger.add_loader(1)
    assert make_all(ledger) == [(0, 0, 4), (1, 0, 2), (1, 2, 2)]
    assert ledger.completed() == range(2)


@pytest.mark.parametrize("batches", [1, 2])
def test_all_rows_are_made_again_if_a_loader_dies_while_it_finishes_a_batch(batches: int) -> None:
    ledger = Ledger(schedule_of(2, batches=batches), slots=2, batches_per_task=2, hook=True)
    ledger.add_loader(1)
    ledger.open()
    ((_, task),) = ledger.assign(0.0)
    assert ledger.remove_loader(1, task.id) is None
    for loader in (2, 3, 4):  # from here on the rows are made, and only the hook is suspect
        ledger.add_loader(loader, 1)
        for row in (0, 1):
            ((_, again),) = ledger.assign(0.0)
            assert (again.batch, again.first_row, again.finishes) == (0, row if loader == 2 else 0, False)
            ledger.done(loader, again.id, 0.0)
            if again.rows == 2:
                break
        ((_, hook),) = ledger.assign(0.0)
        assert (hook.batch, hook.is_hook, hook.finishes) == (0, True, True)
        poisoned = ledger.remove_loader(loader, hook.id)
        assert (poisoned is hook) == (loader == 4)
    assert hook.deaths == 3


def test_a_task_becomes_overdue_from_when_it_was_begun_not_from_when_it_was_queued() -> None:
    ledger = make_ledger()
    ledger.rows_per_task = 2
    ledger.add_loader(1)
    ledger.open()
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
        ledger.open()
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
    ledger.open()
    poisoned = None
    for loader, evidence in enumerate(deaths):
        ledger.add_loader(loader)
        ((_, task),) = ledger.assign(0.0)
        poisoned = ledger.remove_loader(loader, task.id, evidence)
    assert (poisoned is not None) == convicted


def test_a_loader_that_dies_before_it_begins_a_task_blames_none() -> None:
    ledger = make_ledger(rows=1, slots=1)
    ledger.open()
    for loader in range(5):
        ledger.add_loader(loader)
        ((_, task),) = ledger.assign(0.0)
        assert ledger.remove_loader(loader) is None
    assert (task.deaths, task.suspicion) == (0, 0)


def test_what_cannot_be_cut_is_given_out_whole_and_convicted_whole() -> None:
    ledger = Ledger(schedule_of(4, batches=1, can_be_cut=False), slots=1)
    ledger.rows_per_task = 1
    for loader in (1, 2, 3):
        ledger.add_loader(loader)
        ledger.open()
        ((_, task),) = ledger.assign(0.0)
        assert (task.first_row, task.rows) == (0, 4)
        poisoned = ledger.remove_loader(loader, task.id)
    assert poisoned is task
    assert task.deaths == 3


def test_a_row_is_tried_with_one_candidate_after_the_other_each_free_of_blame() -> None:
    ledger = make_ledger(rows=1, slots=1)
    ledger.open()
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
    ledger.open()
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
        ledger.open()
        assert list(ledger.assign(now))
    assert ledger.next_deadline(10.0) == 13.0
    assert ledger.overdue(14.5, 10.0) == [2, 3]
    assert make_ledger().next_deadline(10.0) is None


def test_the_earliest_rows_come_first_whether_they_wait_for_their_owner_or_for_any_loader() -> None:
    ledger = Ledger(schedule_of(6, batches=1, affinity=lambda _batch, row: 2 if row == 3 else row), slots=1)
    ledger.rows_per_task = 1
    ledger.add_loader(1, 1)
    ledger.add_loader(2, 1)
    ledger.open()
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
    ledger = Ledger(schedule_of(2, batches=1), slots=1)
    ledger.rows_per_task = 1
    ledger.add_loader(1)
    ledger.add_loader(2)
    ledger.open()
    assert [loader for loader, _ in ledger.assign(5.0)] == [1, 2]
    ledger.remove_loader(2)
    assert [loader for loader, _ in ledger.assign(9.0)] == [1]
    assert ledger.next_deadline(10.0) == 15.0


def test_a_loader_that_is_being_killed_has_no_deadline_and_gets_no_task() -> None:
    ledger = Ledger(schedule_of(8, batches=1, affinity=lambda _batch, row: row // 6), slots=1)
    ledger.rows_per_task = 1
    ledger.add_loader(1)
    ledger.open()
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
    ledger.open()
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
    ledger = Ledger(schedule_of(1, affinity=lambda batch, _: batch // 2), slots=4)
    ledger.add_loader(1)
    ledger.add_loader(2)
    ledger.open()
    given = [(loader, task.batch) for loader, task in ledger.assign(0.0)]
    assert given == [(1, 0), (1, 1), (2, 2), (2, 3)]
    ledger.remove_loader(1)
    for _, task in [(2, task) for task in ledger.assigned(2)]:
        ledger.done(2, task.id, 0.0)
    assert [(loader, task.batch) for loader, task in ledger.assign(0.0)] == [(2, 0), (2, 1)]


def test_of_very_many_windows_the_latest_are_remembered() -> None:
    ledger = Ledger(schedule_of(600, affinity=lambda batch, row: 599 - row if batch else row), slots=1)
    ledger.add_loader(1)
    ledger.open()
    while given := list(ledger.assign(0.0)):
        for loader, task in given:
            ledger.done(loader, task.id, 0.0)
    assert ledger.completed() == range(1)
    ledger.release(1)
    ledger.add_loader(2)
    ledger.open()
    assert [(loader, task.first_row) for loader, task in ledger.assign(0.0)] == [(1, 0), (1, 1), (2, 256), (2, 257)]


def shards_by_loader(ledger: Ledger, shards: int) -> dict[int, set[int]]:
    """Make at least one more batch of each of a stream's shards; returns the shards that each loader has run."""
    made: dict[int, set[int]] = {}
    for _ in range(shards):
        ledger.open()
        for loader, task in list(ledger.assign(0.0)):
            assert task.affinity is not None
            made.setdefault(loader, set()).add(task.affinity)
            ledger.done(loader, task.id, 0.0)
        ledger.completed()
        ledger.release(ledger.complete)
    return made


def test_a_streams_shards_stay_with_their_loaders_however_many_there_are() -> None:
    ledger = Ledger(schedule_of(1, affinity=lambda batch, _: batch % 301, can_be_cut=False), slots=2)
    ledger.add_loader(1)
    ledger.add_loader(2)
    assert sum(map(len, shards_by_loader(ledger, 301).values())) == 301


def test_a_loader_that_comes_later_takes_over_its_share_of_a_streams_shards() -> None:
    ledger = Ledger(schedule_of(1, affinity=lambda batch, _: batch % 6, can_be_cut=False), slots=1)
    for loader, shares in ((1, [6]), (2, [3, 3]), (3, [2, 2, 2])):
        ledger.add_loader(loader)
        assert [len(shards) for shards in shards_by_loader(ledger, 6).values()] == shares
    ledger.remove_loader(2)
    shards_by_loader(ledger, 6)
    ledger.add_loader(4)
    assert [len(shards) for shards in shards_by_loader(ledger, 6).values()] == [2, 2, 2]


def test_batches_that_wait_for_a_streams_first_loader_are_shared_with_the_second() -> None:
    ledger = Ledger(schedule_of(1, affinity=lambda batch, _: batch % 2, can_be_cut=False), slots=8)
    ledger.open()
    for loader in (1, 2):
        ledger.add_loader(loader)
        assert {given for given, _ in ledger.assign(0.0)} == {loader}


def test_batches_that_wait_for_the_owner_of_their_shard_go_to_the_loader_that_takes_it_over() -> None:
    ledger = Ledger(schedule_of(1, affinity=lambda batch, _: batch % 3, can_be_cut=False), slots=8)
    ledger.open()
    for loader in (1, 2):
        ledger.add_loader(loader, most=1)
    given = list(ledger.assign(0.0))
    while given[-1][1].batch < 4:  # the first one stays at shard 0; the second has the others
        ledger.done(2, given[-1][1].id, 0.0)
        given += ledger.assign(0.0)
    assert [(loader, task.batch) for loader, task in given] == [(1, 0), (2, 1), (2, 2), (2, 4)]
    ledger.add_loader(3, most=1)
    assert [(loader, task.batch) for loader, task in ledger.assign(0.0)] == [(3, 5)]


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
    ledger = Ledger(schedule_of(queued, batches=1, affinity=lambda *_: 0), slots=1)
    ledger.rows_per_task = 1
    ledger.add_loader(1)
    ledger.add_loader(2)
    ledger.open()
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
    def window(_batch: int, row: int) -> int:
        return sum(row >= border for border in borders)

    ledger = Ledger(schedule_of(rows, batches=1, affinity=window), slots=1)
    ledger.rows_per_task = size
    ledger.add_loader(1)
    ledger.open()
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
    ledger = Ledger(schedule_of(4, batches=4), slots=4)
    ledger.add_loader(1, 1, remote=True)
    ledger.open()
    ledger.enqueue_draw(Draw(0, 0, 0))
    assert {task.draw for _, task in ledger.assign(0.0)} == {None}  # a remote loader gets no draw
    for loader in (2, 3):
        ledger.add_loader(loader)
    given = list(ledger.assign(0.0))
    assert [task.batch for _, task in given if task.draw is None] == [1, 2, 3]
    (drawer,) = [loader for loader, task in given if task.draw is not None]
    assert ledger.assigned(drawer)[-1].draw is not None
    for task in ledger.assigned(drawer):
        ledger.done(drawer, task.id, 1.0)
    ledger.enqueue_draw(Draw(0, 1, 0))
    assert [(loader, task.draw is not None) for loader, task in ledger.assign(1.0)] == [(drawer, True)]
