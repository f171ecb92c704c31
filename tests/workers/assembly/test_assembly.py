"""What the assembler decides, event by event: orders, bad samples, poisoned tasks, and what the trainer is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import pytest
from blobfeed.supplies import FIX_STREAM
from blobfeed.workers.assembly import OUT_OF_MEMORY, Assembly, Death, Evidence
from blobfeed.workers.order import At, Schedule
from blobfeed.workers.transport import (
    Activity,
    Announce,
    BadRow,
    Count,
    Done,
    Draw,
    End,
    Failure,
    Fill,
    LoaderState,
    Replaced,
    Run,
    WorkDone,
)

from tests.interleavings.variants import Variant


def assembly(loaders: int = 1, max_bad_samples: int = 100, **values: Any) -> Assembly:
    plan = Variant("test", **values).plan()
    changed = msgspec.structs.replace(plan.parameters, max_bad_samples=max_bad_samples)
    object.__setattr__(plan, "parameters", changed)
    made = Assembly(plan)
    for loader in range(1, loaders + 1):
        made.ledger.add_loader(loader)
    return made


class Order(NamedTuple):
    """A task, and the loader that gets it."""

    loader: int
    task: Any


def orders(made: Assembly) -> list[Order]:
    return [Order(*each) for each in made.assignments(0.0)]


def report(made: Assembly, order: Order, *bad: BadRow) -> None:
    made.done(Done(order.loader, order.task.task, 20_000_000, WorkDone(bad)), 0.0)


def bad_row(row: int, index: int, replacement: int = -1, path: str = "a.h5") -> BadRow:
    return BadRow(row, 0, index, replacement, path, "broken", cause=7, traceback="trace")


def told(made: Assembly) -> list[Any]:
    made.announce()
    messages = list(made.outbox)
    made.outbox.clear()
    return messages


def announce(batch: int, slot: int, replaced: Replaced = (), rows: int = 1) -> Announce:
    return Announce(batch, slot, replaced, (Run(0, rows, 0, batch * rows),))


def release_all(made: Assembly, messages: list[Any]) -> None:
    for message in messages:
        if isinstance(message, Announce):
            made.release(message.batch + 1)


def death(loader: int, task: int = 0, sample: int = -1, evidence: Evidence = Evidence.CRASHED) -> Death:
    state = LoaderState(9, loader, Activity.DECODING, task, sample, 0.0)
    return Death(loader, state, "killed by SIGSEGV", was_ready=True, dismissed=False, evidence=evidence)


def test_an_order_says_which_rows_of_which_slot() -> None:
    first, second = orders(assembly(rows=2))
    assert (first.task, second.task) == (
        Fill(1, 0, 0, 0, 1, 0, (Run(0, 1, 0, 0),)),
        Fill(2, 0, 0, 1, 1, 0, (Run(1, 1, 0, 1),)),
    )


def test_a_repeated_or_foreign_report_changes_nothing() -> None:
    made = assembly(rows=1)
    (order, _) = orders(made)
    report(made, order, bad_row(0, 0, replacement=1))
    report(made, order, bad_row(0, 0, replacement=2))
    made.done(Done(3, order.task.task, 0), 0.0)
    assert (made.tasks_done, made.bad_samples.replaced) == (1, 1)


def test_rows_that_come_to_take_no_time_come_to_be_one_task() -> None:
    made, sizes = assembly(rows=8, batches=8), []
    while given := orders(made):
        sizes += [order.task.rows for order in given if isinstance(order.task, Fill)]
        for order in given:
            made.done(Done(order.loader, order.task.task, 1_000), 0.0)
        release_all(made, told(made))
    assert (sizes[0], sizes[-1]) == (1, 8)


# ---- bad samples


def test_replaced_rows_are_announced_and_each_bad_sample_is_told_and_counts_once() -> None:
    made = assembly(rows=2, rows_per_task=2, max_bad_samples=2)
    first, second = orders(made)
    report(made, first, bad_row(0, 5, replacement=3), bad_row(1, 6, replacement=2))
    report(made, second, bad_row(0, 5, replacement=1))
    assert [" ".join(text.split()[:3]) for text in made.bad_samples.new_texts()] == ["bad sample 5", "bad sample 6"]
    assert not made.bad_samples.new_texts()
    assert (made.bad_samples.replaced, made.last) == (3, None)
    assert told(made) == [announce(0, 0, ((0, 3), (1, 2)), rows=2), announce(1, 1, ((0, 1),), rows=2)]


def test_rows_of_two_batches_that_are_opened_together_are_replaced_each_in_its_own() -> None:
    made = assembly(rows=2, rows_per_task=4, slots=4, batches=2)
    (whole,) = orders(made)
    report(made, whole, bad_row(1, 5, replacement=3), bad_row(2, 6, replacement=4))
    assert [message.replaced for message in told(made)] == [((1, 3), (2, 4))]


def test_a_row_replaced_again_after_a_death_in_the_hook_is_no_further_one() -> None:
    made = assembly(rows=1, batches=1, postprocess=True)
    (whole,) = orders(made)
    assert whole.task.finishes
    made.loader_died(death(1, whole.task.task))
    for loader in (2, 3):
        made.ledger.add_loader(loader)
        (fill,) = orders(made)
        report(made, fill, bad_row(0, 5, replacement=3))
        (hook,) = orders(made)
        assert (hook.task.rows, hook.task.finishes, hook.task.replaced) == (0, True, ((0, 3),))
        made.loader_died(death(loader, hook.task.task))
    assert (made.bad_samples.replaced, len(made.bad_samples.new_texts())) == (1, 1)


def test_as_many_bad_samples_as_are_allowed_are_and_one_more_is_not() -> None:
    made = assembly(rows=1, max_bad_samples=1)
    first, second = orders(made)
    report(made, first, bad_row(0, 4, replacement=0))
    assert made.last is None
    report(made, second, bad_row(0, 5, replacement=0))
    assert isinstance(made.last, Failure)
    assert made.last.error == "TooManyBadSamples"
    assert made.last.text == "2 bad samples, more than max_bad_samples=1: 4 (a.h5): broken; 5 (a.h5): broken"
    assert made.last.details == ("4", "5")


def test_of_many_bad_samples_ten_are_written_out() -> None:
    made = assembly(rows=12, rows_per_task=12, max_bad_samples=11)
    first, _ = orders(made)
    report(made, first, *(bad_row(row, row, replacement=20) for row in range(12)))
    assert isinstance(made.last, Failure)
    assert made.last.text.count("broken") == 10
    assert len(made.last.details) == 12


def test_a_bad_row_ends_the_run_in_its_batchs_turn_and_names_the_sample() -> None:
    made = assembly(rows=1)
    first, second = orders(made)
    report(made, second, bad_row(0, 9))
    assert told(made) == []
    report(made, first)
    failure = Failure("SampleError", "broken", 0, 9, "a.h5", 7, "trace")
    assert told(made) == [announce(0, 0), failure]
    assert made.last == failure
    assert orders(made) == []
    made.end(Failure("LoaderDied", "later"))
    assert (made.last, made.outbox) == (failure, [])


def test_of_several_bad_rows_the_first_in_the_batch_is_the_error() -> None:
    made = assembly(rows=2, loaders=2, batches=1)
    given = {order.task.first_row: order for order in orders(made) if isinstance(order.task, Fill)}
    report(made, given[1], bad_row(1, 11))
    report(made, given[0], bad_row(0, 0))
    assert [(message.index, message.path) for message in told(made)] == [(0, "a.h5")]


def test_a_hook_that_raises_is_an_error_of_its_batchs_first_sample() -> None:
    made = assembly(rows=2, rows_per_task=2, batches=2, postprocess=True)
    first, second = orders(made)
    assert second.task == Fill(2, 1, 1, 0, 2, 0, (Run(0, 2, 0, 2),), finishes=True)
    report(made, second, bad_row(0, -1))
    report(made, first)
    announced, failure = told(made)
    assert (announced, failure.index, failure.path) == (announce(0, 0, rows=2), 2, "a.h5")


def test_a_batch_with_a_bad_row_is_not_finished() -> None:
    made = assembly(loaders=2, rows=3, batches=1, postprocess=True)
    first, second = orders(made)
    report(made, second)
    report(made, first, bad_row(0, 0))
    assert orders(made) == []
    assert [type(message) for message in told(made)] == [Failure]


def test_of_a_tasks_batches_those_before_its_first_bad_row_are_delivered() -> None:
    plan = Variant("test", rows=2, batches=4, slots=4).plan()
    for bad, good in ((1, 0), (3, 1), (6, 3)):
        made = Assembly(replace(plan, batches_per_task=4, seconds_per_row=0.0))
        made.ledger.add_loader(1)
        (order,) = orders(made)
        report(made, order, bad_row(bad, bad))
        *announced, failure = told(made)
        assert [message.runs for message in announced] == ([(Run(0, 2 * good, 0, 0),)] if good else [])
        assert failure.index == bad


def test_a_hook_that_raises_on_a_streams_batch_is_an_error_of_its_place_in_the_shard() -> None:
    plan = Variant("test", stream=True, postprocess=True).plan()
    made = Assembly(replace(plan, start=At(0, 2)))
    made.ledger.add_loader(1)
    (fill, _) = orders(made)
    made.done(Done(1, fill.task.task, 1, WorkDone((bad_row(0, -1),), stream_rows=1)), 0.0)
    failure = told(made)[-1]
    assert (failure.index, failure.path, failure.advice) == (2, "the stream's shard 0", "fix the hook")


def test_an_epoch_on_whose_draw_loaders_die_ends_the_run() -> None:
    made = assembly(loaders=0, drawn=((5, 3),))
    for loader in range(1, 4):
        made.ledger.add_loader(loader)
        (order,) = orders(made)
        assert isinstance(order.task, Draw)
        made.loader_died(death(loader, order.task.task))
    assert orders(made) == []
    (failure,) = told(made)
    assert failure.error == "SourceError"
    assert failure.text.startswith("sampler(), epoch 0: 3 loaders died on it, the last one, loader 3")


@pytest.mark.parametrize(
    ("stream", "postprocess", "how", "advice"),
    [
        (False, False, "killed by SIGSEGV", ""),
        (False, True, "killed by SIGSEGV", "fix the hook"),
        (True, False, "killed by SIGSEGV", FIX_STREAM),
        (False, False, "killed by SIGKILL", OUT_OF_MEMORY),
    ],
)
def test_what_is_told_of_a_task_on_which_loaders_die(stream: bool, postprocess: bool, how: str, advice: str) -> None:
    """No other sample can be tried for one of a stream, or for one that postprocessing has seen."""
    on_error = "replace" if stream or postprocess else "raise"
    made = assembly(loaders=0, rows=1, batches=1, stream=stream, postprocess=postprocess, on_error=on_error)
    for loader in range(0 if postprocess else 1, 4):
        made.ledger.add_loader(loader)
        order = orders(made)[0]
        if postprocess and loader:  # the first death was of the row and the hook
            report(made, order)
            (order,) = orders(made)
        made.loader_died(msgspec.structs.replace(death(loader, order.task.task, sample=4), how=how))
    (failure,) = told(made)
    what = "its batch's postprocessing" if postprocess else "it"
    assert failure.text.startswith(f"3 loaders died on {what}, the last one, loader 3 (pid 9): decoding sample 4")
    assert failure.text.endswith(how)
    assert (failure.error, failure.epoch, failure.index, failure.advice) == ("SampleError", 0, 4 * stream, advice)


# ---- deaths


def test_a_loader_that_had_nothing_to_do_was_idle_and_a_stranger_was_not() -> None:
    made = assembly(loaders=2, rows=1, batches=1)
    ((order),) = orders(made)
    assert not made.loader_died(death(5))
    assert made.loader_died(death(3 - order.loader))
    assert not made.loader_died(death(order.loader, order.task.task))


def _die_on_the_first_row(made: Assembly, times: int) -> None:
    for loader in range(1, times + 1):
        made.ledger.add_loader(loader)
        order = orders(made)[0]
        made.loader_died(death(loader, order.task.task, sample=4))


@pytest.mark.parametrize(("seen", "path"), [(0, "a.h5[0]"), (5, "")])
def test_where_every_sample_hangs_the_first_one_is_named_after_three_hangs(seen: int, path: str) -> None:
    """Its place is what the loader has noted, if it was at this sample."""
    made = assembly(loaders=0, rows=8, rows_per_task=4, batches=3)
    for loader in range(1, 4):
        made.ledger.add_loader(loader)
        order = orders(made)[0]
        hung = death(loader, order.task.task, seen, Evidence.HUNG)
        made.loader_died(msgspec.structs.replace(hung, place="a.h5[0]"))
    (failure,) = told(made)
    assert (failure.error, failure.index, failure.path) == ("SampleError", 0, path)


def test_another_sample_is_tried_in_place_of_one_on_which_loaders_die() -> None:
    made = assembly(loaders=0, rows=1, batches=1, on_error="replace")
    _die_on_the_first_row(made, 3)
    made.ledger.add_loader(9)
    (order,) = orders(made)
    assert isinstance(order.task, Fill)
    assert order.task.skip == 1


# ---- towards the trainer


def test_a_slot_in_which_nothing_is_for_the_trainer_is_free_at_once() -> None:
    made = assembly(rows=2, stream=True)
    for order in orders(made):
        made.done(Done(order.loader, order.task.task, 1, WorkDone(stream_rows=0)), 0.0)
    told(made)
    assert made.ledger.slots_full == made.ledger.slots_filling == 0


def test_a_stream_ends_behind_its_last_batch() -> None:
    made = assembly(rows=4, stream=True)
    assert {run.epoch for order in orders(made) for run in order.task.runs} == {0}
    for task in made.ledger.assigned(1):
        made.done(Done(1, task.id, 1, WorkDone(stream_rows=1)), 0.0)
    *announced, end = told(made)
    release_all(made, announced)
    assert (len(announced), end, made.last) == (2, End(), End())
    assert (made.counts[Count.BATCHES], made.counts[Count.SAMPLES]) == (2, 2)
    assert orders(made) == []


def test_what_the_schedule_complains_of_ends_the_run_with_its_cause() -> None:
    made = assembly(rows=1, stream=True)
    assert isinstance(made.schedule, Schedule)
    made.schedule.rounds.ended, made.schedule.rounds.failure = True, "no samples"
    (failure,) = told(made)
    assert failure == Failure("SourceError", "no samples")
    assert made.last is failure


def test_behind_the_last_message_nothing_is_announced() -> None:
    made = assembly(rows=1, batches=1)
    (order,) = orders(made)
    made.end(Failure("LoaderDied", "no more"))
    report(made, order)
    assert told(made) == [Failure("LoaderDied", "no more")]
