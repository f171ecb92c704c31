"""The samples of any batch, past or coming: arithmetic over the order, and the sampler's draws once more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from ..base.errors import ParameterError
from ..base.source import Source
from ..base.specs import IndexArray
from ..order.batches import Batches, rand_skip_of
from ..order.draws import draws_of
from ..order.sample_rng import globals_kept
from ..order.samplers import draw_epoch
from ..transport.messages import Announce, Draw, Drawn
from .plan import IndexedPlan, Plan
from .sampled_plan import SampledPlan

Rows = tuple[int, IndexArray, IndexArray]
"""A batch's number, and of each of its rows the index and the epoch."""


class Place(msgspec.Struct, frozen=True):
    """The sample in one row of a batch: its epoch, its index, and the file and the entry that hold it."""

    epoch: int
    index: int
    where: str


def locate(plan: Plan, numbers: Iterable[int]) -> dict[int, list[Place]]:
    """Return, by the number of each batch, the places of its rows' samples; no sample is read.

    A batch before the plan's start is found if a run with the plan's parameters has come from the beginning to there.
    Raises ParameterError if it has not, if there is no such batch, and for a stream.
    """
    wanted = sorted(set(numbers))
    if wanted and wanted[0] < 0:
        raise ParameterError(f"batch {wanted[0]}: batches are counted from 0")
    source = plan.source
    if not isinstance(source, Source):
        raise ParameterError("a stream's samples have no indices, so its batches cannot be located")
    with globals_kept():
        rows = list(_of_order(plan, wanted) if isinstance(plan, IndexedPlan) else _of_sampler(plan, wanted))
    return {
        number: [
            Place(epoch, index, source.where(index))
            for index, epoch in zip(indices.tolist(), epochs.tolist(), strict=True)
        ]
        for number, indices, epochs in rows
    }


def _of_order(plan: IndexedPlan, wanted: Sequence[int]) -> Iterator[Rows]:
    given = plan.parameters
    start = Batches(plan.samples, given, rand_skip_of(given.seed, given.rand_skip))
    for number in wanted:
        rounds, within = plan.rounds, number - plan.first_number
        if within < 0:
            if start.round_start(plan.first_number) != plan.rounds.start:
                raise _unknown_past(number, plan)
            rounds, within = start, number
        if rounds.total is not None and within >= rounds.total:
            raise _no_batch(number, plan)
        at = rounds.batch(within)
        yield number, *plan.order.with_epochs(at.start, at.rows)


def _of_sampler(plan: Plan, wanted: Sequence[int]) -> Iterator[Rows]:
    assert isinstance(plan, SampledPlan)
    past = [number for number in wanted if number < plan.first_number]
    if past:
        start = replace(plan, epoch=0, position=0, first_number=0)
        # The state has only those weights that count from its epoch on.
        if plan.log.changes or _begin_of(start, plan.first_number) != (plan.epoch, plan.position):
            raise _unknown_past(past[0], plan)
        yield from _drawn(start, past)
    yield from _drawn(plan, wanted[len(past) :])


def _drawn(plan: SampledPlan, wanted: Sequence[int]) -> Iterator[Rows]:
    if not wanted:
        return
    for number, batch in _walk(plan, wanted[0], wanted[-1]):
        if number in wanted:
            epochs, rows = zip(*((run.epoch, run.rows) for run in batch.runs), strict=True)
            yield number, np.frombuffer(batch.indices, np.int64), np.repeat(np.array(epochs, np.int64), rows)


def _begin_of(plan: SampledPlan, number: int) -> tuple[int, int]:
    """The epoch and the item where batch `number` begins."""
    if plan.batches is not None:
        return divmod(plan.batches.round_start(number - plan.first_number), plan.batches.samples)
    if number == plan.first_number:
        return plan.epoch, plan.position
    *_, (_, batch) = _walk(plan, plan.first_number, number - 1)
    return batch.ends[0]


def _walk(plan: SampledPlan, first: int, last: int) -> Iterator[tuple[int, Announce]]:
    """Batches `first` … `last`, drawn here, epoch after epoch; where epochs are equally long none before `first` is."""
    if plan.batches is not None:
        if plan.batches.total is not None and last - plan.first_number >= plan.batches.total:
            raise _no_batch(last, plan)
        epoch, position = _begin_of(plan, first)
        plan = replace(plan, epoch=epoch, position=position, first_number=first)
    schedule = replace(plan, batches_per_slot=1).schedule()
    memory = _Memory()
    schedule.use_file(memory)
    for number in range(plan.first_number, last + 1):
        while not schedule.has(number):
            if schedule.complaint:
                raise ParameterError(f"batch {number}: {schedule.complaint}")
            if schedule.finished:
                raise _no_batch(number, plan)
            if (asked := schedule.wanted()) is None:
                raise ParameterError("the sampler's epochs cannot be drawn here")
            schedule.note_drawn(asked, _drawn_into(memory, plan, asked))
        announce = schedule.announcement(number, 0, ())
        if announce is not None and number >= first:
            yield number, announce


class _Memory(dict[int, IndexArray]):
    """Drawn epochs by the offset in bytes that each would have in the shared file."""

    def read(self, offset: int, count: int, _kind: type[np.int64]) -> IndexArray:
        begin = max(start for start in self if start <= offset)
        return self[begin][(offset - begin) // 8 :][:count]

    def free(self, offset: int, _size: int) -> None:
        del self[offset]


def _drawn_into(memory: _Memory, plan: SampledPlan, asked: Draw) -> Drawn:
    if not asked.weights and plan.log.changes and min(change.version for change in plan.log.changes) > 1:
        raise ParameterError(
            f"the weights that epoch {asked.epoch} was drawn by have been given up since newer ones count: look at its "
            "batches before that"
        )
    drawn = draw_epoch(
        plan.sampler.value,
        asked.epoch,
        seed=plan.parameters.seed,
        samples=plan.source_samples,
        batch_size=plan.parameters.batch_size,
        weights=plan.log.weights.get(asked.weights),
    )
    sizes = np.empty(0, np.int64) if drawn.sizes is None else drawn.sizes
    memory[asked.offset] = np.concatenate([draws_of(drawn.indices), sizes])
    return Drawn(len(drawn.indices), len(sizes))


def _unknown_past(number: int, plan: Plan) -> ParameterError:
    return ParameterError(
        f"batch {number} lies before batch {plan.first_number}, where the state stands, and a run with these "
        "parameters and weights has not come there from the beginning: give the batch_size, world_size and last_batch "
        "that the run had then, or a state from before the batch"
    )


def _no_batch(number: int, plan: Plan) -> ParameterError:
    return ParameterError(f"there is no batch {number}: epochs={plan.parameters.epochs} have fewer")
