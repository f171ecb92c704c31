"""Every order of events in small runs; and mistakes put into ledger, assembly and feed, each of which is found."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest
from blobfeed.supplies import DrawnEpochs
from blobfeed.workers.assembly import Assembly, Evidence, Ledger, Slots, Task
from blobfeed.workers.pipeline import ProcessFeed
from blobfeed.workers.transport import Draw, Drawn

from tests.interleavings.explore import explore
from tests.interleavings.variants import DRAWN, VARIANTS, Faults, Variant
from tests.support.part import some_of

_QUICK = 200
"""States of each variant that a test run looks at; `make faults` looks at all."""


@pytest.mark.parametrize("variant", some_of(VARIANTS, 3), ids=lambda variant: variant.name)
def test_whatever_the_order_of_events_nothing_goes_wrong(variant: Variant) -> None:
    found = explore(variant, _QUICK)
    assert found.wrong == ""
    assert found.states >= 150


@pytest.mark.slow
def test_a_whole_run_of_one_batch_is_explored_with_every_fault() -> None:
    found = explore(Variant("one batch", Faults(deaths=1), batches=1))
    assert (found.wrong, found.complete) == ("", True)
    assert found.transitions > 500


# ---- mistakes


def _done_is_counted_twice(patch: pytest.MonkeyPatch) -> None:
    right = Ledger._tick_off

    def wrong(ledger: Ledger, task: Task) -> None:
        right(ledger, task)
        if task.batch in ledger._left:
            right(ledger, task)

    patch.setattr(Ledger, "_tick_off", wrong)


def _a_repeated_report_is_believed(patch: pytest.MonkeyPatch) -> None:
    right = Ledger.done

    def wrong(ledger: Ledger, loader: int, task_id: int, now: float) -> Task | None:
        task = right(ledger, loader, task_id, now)
        if task is not None and loader in ledger._loaders:
            ledger._loaders[loader].tasks.append(task)
        return task

    patch.setattr(Ledger, "done", wrong)


def _a_dead_loaders_queued_tasks_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    right = Ledger.remove_loader

    def wrong(ledger: Ledger, loader: int, working_on: int = 0, *evidence: Evidence) -> Task | None:
        line = ledger._loaders[loader]
        line.tasks = deque(task for task in line.tasks if task.id == working_on)
        return right(ledger, loader, working_on, *evidence)

    patch.setattr(Ledger, "remove_loader", wrong)


def _a_suspect_is_put_back_whole_and_in_parts(patch: pytest.MonkeyPatch) -> None:
    right = Ledger._put_back_suspect

    def wrong(ledger: Ledger, task: Task, evidence: Evidence) -> Task | None:
        if task.rows > 1:
            ledger._enqueue(task)
        return right(ledger, task, evidence)

    patch.setattr(Ledger, "_put_back_suspect", wrong)


def _each_death_counts_double(patch: pytest.MonkeyPatch) -> None:
    right = Ledger._put_back_suspect

    def wrong(ledger: Ledger, task: Task, evidence: Evidence) -> Task | None:
        task.deaths += 1
        return right(ledger, task, evidence)

    patch.setattr(Ledger, "_put_back_suspect", wrong)


def _a_death_weighs_double(patch: pytest.MonkeyPatch) -> None:
    right = Ledger._put_back_suspect
    patch.setattr(Ledger, "_put_back_suspect", lambda ledger, task, evidence: right(ledger, task, 2 * evidence))


def _a_repeated_release_frees_again(patch: pytest.MonkeyPatch) -> None:
    right = Slots.release

    def wrong(slots: Slots, upto: int, loans: Collection[int]) -> list[int]:
        if upto and upto == slots.released:
            slots._free.insert(0, slots._free[0] if slots._free else 0)
        return right(slots, upto, loans)

    patch.setattr(Slots, "release", wrong)


def _loans_are_not_kept(patch: pytest.MonkeyPatch) -> None:
    right = Slots.release
    patch.setattr(Slots, "release", lambda slots, upto, _loans: right(slots, upto, ()))


def _order_does_not_matter(patch: pytest.MonkeyPatch) -> None:
    def wrong(ledger: Ledger) -> range:
        for batch, left in list(ledger._left.items()):
            if left == 0:
                del ledger._left[batch]
                ledger.complete = max(ledger.complete, batch + 1)
                return range(batch, batch + 1)
        return range(0)

    patch.setattr(Ledger, "completed", wrong)


def _a_batch_is_finished_before_its_other_rows_are_there(patch: pytest.MonkeyPatch) -> None:
    def wrong(ledger: Ledger, task: Task) -> None:
        task.finishes = True
        ledger._enqueue(task)

    patch.setattr(Ledger, "_wait_to_finish", wrong)


def _hangs_are_not_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "overdue", lambda *_: [])


def _a_written_off_row_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "write_off", lambda _ledger, _task: None)


def _what_waits_for_a_dismissed_loader_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    right = Ledger.dismiss_one

    def wrong(ledger: Ledger) -> None:
        for line in ledger._loaders.values():
            line.waiting.clear()
        right(ledger)

    patch.setattr(Ledger, "dismiss_one", wrong)


def _a_loader_gets_all_that_there_is(patch: pytest.MonkeyPatch) -> None:
    right = Ledger.add_loader
    patch.setattr(Ledger, "add_loader", lambda ledger, loader: right(ledger, loader, 3))


def _a_failure_is_told_out_of_turn(patch: pytest.MonkeyPatch) -> None:
    right = Assembly._note_bad

    def wrong(assembly: Assembly, batch: int, bad: Any) -> None:
        right(assembly, batch, bad)
        assembly.end(assembly._failures[batch][bad.row])

    patch.setattr(Assembly, "_note_bad", wrong)


def _a_repeated_message_counts(patch: pytest.MonkeyPatch) -> None:
    right = ProcessFeed._received
    patch.setattr(ProcessFeed, "_received", lambda feed, _wanted: right(feed, 0))


def _an_epoch_is_requested_again_and_again(patch: pytest.MonkeyPatch) -> None:
    right = DrawnEpochs.wanted

    def wrong(order: DrawnEpochs, epoch: int) -> Draw | None:
        order._asked = None
        return right(order, epoch)

    patch.setattr(DrawnEpochs, "wanted", wrong)


def _draws_are_given_back_while_rows_are_made_by_them(patch: pytest.MonkeyPatch) -> None:
    right = DrawnEpochs.free
    patch.setattr(DrawnEpochs, "free", lambda order, epoch, _in_use: right(order, epoch, None))


def _an_epoch_is_drawn_over_the_one_before(patch: pytest.MonkeyPatch) -> None:
    right = DrawnEpochs.note_drawn

    def wrong(order: DrawnEpochs, draw: Draw, answer: Drawn) -> None:
        right(order, draw, answer)
        order._file_end = 0

    patch.setattr(DrawnEpochs, "note_drawn", wrong)


Mistake = Callable[[pytest.MonkeyPatch], None]

_DEATH = Variant("mistakes: a death", Faults(deaths=1), batches=2)
_REPEAT = Variant("mistakes: a repeated message", Faults(repeats=1), batches=1)
_REPEATS = Variant("mistakes: a repeated message of two batches", Faults(repeats=1), rows=1, batches=3)
_HANGS = Variant("mistakes: two hangs", Faults(hangs=2), batches=1, may_fail=True)
_DRAWN = Variant("mistakes: drawn", drawn=DRAWN)
_POSTPROCESS = replace(_DEATH, name="mistakes: postprocess", postprocess=True, batches=1)
_LOANS = Variant("mistakes: loans", rows=1, batches=3, keeps=1, slots=2)
_NOTHING = Variant("mistakes: nothing happens")

# At least one for each check of the world and for each kind of fault.
MISTAKES: list[tuple[Mistake, Variant]] = [
    (_done_is_counted_twice, _NOTHING),
    (_a_repeated_report_is_believed, _REPEAT),
    (_a_dead_loaders_queued_tasks_are_forgotten, _DEATH),
    (
        _a_suspect_is_put_back_whole_and_in_parts,
        replace(_DEATH, name="mistakes: rows", batches=1, rows=4, rows_per_task=2),
    ),
    (_each_death_counts_double, _HANGS),
    (_a_death_weighs_double, replace(_HANGS, name="mistakes: a hang", faults=Faults(hangs=1), may_fail=False)),
    (_a_repeated_release_frees_again, _REPEATS),
    (_loans_are_not_kept, _LOANS),
    (_order_does_not_matter, _NOTHING),
    (_a_batch_is_finished_before_its_other_rows_are_there, _POSTPROCESS),
    (_hangs_are_not_seen, _HANGS),
    (_a_written_off_row_is_not_counted, _HANGS),
    (
        _what_waits_for_a_dismissed_loader_is_forgotten,
        Variant("mistakes: dismissed", Faults(dismissals=1), rows=3, affinity=True),
    ),
    (_a_loader_gets_all_that_there_is, Variant("mistakes: three rows", rows=3)),
    (_a_failure_is_told_out_of_turn, Variant("mistakes: bad", batches=2, bad_batch=1, may_fail=True)),
    (_a_repeated_message_counts, _REPEAT),
    (_an_epoch_is_requested_again_and_again, _DRAWN),
    (_draws_are_given_back_while_rows_are_made_by_them, _DRAWN),
    (_an_epoch_is_drawn_over_the_one_before, _DRAWN),
]


@pytest.mark.slow  # `_QUICK` states of variants like these are looked at above
@pytest.mark.parametrize("variant", {variant.name: variant for _, variant in MISTAKES}.values(), ids=lambda v: v.name)
def test_without_a_mistake_nothing_is_found(variant: Variant) -> None:
    found = explore(variant)
    assert (found.wrong, found.complete) == ("", True)


@pytest.mark.parametrize(
    ("mistake", "variant"), some_of(MISTAKES, 3), ids=[mistake.__name__[1:] for mistake, _ in MISTAKES]
)
def test_a_mistake_is_found(mistake: Mistake, variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    assert explore(variant).wrong != ""
