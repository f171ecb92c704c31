"""The samples of any batch, past or coming: arithmetic over the order, and the sampler's draws once more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from ...workers.api import IndexArray
from ...workers.base import ParameterError
from ...workers.order import At, DrawnEpoch, globals_kept
from ...workers.plan import Batch, Plan
from ...workers.transport import Draw, Drawn


class Place(msgspec.Struct, frozen=True):
    """The sample in one row of a batch: its epoch, its index, and the file and the entry that hold it."""

    epoch: int
    index: int
    where: str

    def line(self, batch: int, row: int) -> str:
        """Return the line of `blobfeed which` about this place, which is of `row` in `batch`."""
        return f"batch {batch} row {row}: epoch {self.epoch} sample {self.index} {self.where}"


def locate(plans: Sequence[Plan], numbers: Iterable[int]) -> dict[int, list[Place]]:
    """Return, by the number of each batch, the places of its rows' samples; no sample is read.

    `plans`: of the run, and of what follows it by weights to come: see `Pipeline.plans`. A batch before the start is
    found if a run with the plan's parameters has come from the beginning to there. Raises ParameterError if it has not,
    if there is no such batch, and for a stream.
    """
    wanted, source = sorted(set(numbers)), plans[0].source
    if wanted and wanted[0] < 0:
        raise ParameterError(f"batch {wanted[0]}: batches are counted from 0")
    batches: dict[int, Batch] = {}
    for plan, following in zip(plans, [*plans[1:], None], strict=True):
        if why := plan.supply.not_located:
            raise ParameterError(why)
        here = [number for number in wanted if following is None or number < following.first_number]
        wanted = wanted[len(here) :]
        with globals_kept():
            batches |= _found(plan, here)
    return {
        number: [
            Place(epoch, index, source.where(index))
            for index, epoch in zip(batch.indices.tolist(), batch.epochs.tolist(), strict=True)
        ]
        for number, batch in batches.items()
    }


def _found(plan: Plan, wanted: Sequence[int]) -> Iterator[tuple[int, Batch]]:
    """Yield batches by number."""
    past = [number for number in wanted if number < plan.first_number]
    if past:
        start = plan.from_start()
        if plan.supply.was_changed or _begin_of(start, plan.first_number) != plan.start:
            raise _unknown_past(past[0], plan)
        yield from _some(start, past)
    yield from _some(plan, wanted[len(past) :])


def _some(plan: Plan, wanted: Sequence[int]) -> Iterator[tuple[int, Batch]]:
    """Yield batches by number; on the way to each lie those that say where it begins, if arithmetic does not."""
    drawn: dict[int, DrawnEpoch] = {}
    for number in wanted:
        if plan.total_batches is not None and number - plan.first_number >= plan.total_batches:
            raise _no_batch(number, plan)
        plan = plan.nearest(number)
        *_, (_, batch) = _walk(plan, number, drawn)
        yield number, batch
        if batch.end is not None:
            plan = plan.moved(batch.end, number + 1)


def _begin_of(plan: Plan, number: int) -> At:
    """Return where batch `number` begins."""
    if (nearest := plan.nearest(number)).first_number == number:
        return nearest.start
    *_, (_, batch) = _walk(nearest, number - 1, {})
    assert batch.end is not None
    return batch.end


def _walk(plan: Plan, last: int, drawn: dict[int, DrawnEpoch]) -> Iterator[tuple[int, Batch]]:
    """Yield the plan's batches up to `last`; epochs are drawn here, once in all calls with the same `drawn`."""
    plan = replace(plan, specs={}, slot_specs={})  # only the samples are wanted
    schedule, memory = plan.schedule(), _Memory()
    schedule.draws.use_file(memory)
    for number in range(plan.first_number, last + 1):
        while not schedule.open(1):
            if (failure := schedule.failure) is not None:
                raise ParameterError(f"batch {number}: {failure.text}")
            if schedule.finished:
                raise _no_batch(number, plan)
            if (asked := schedule.wanted()) is None:
                raise ParameterError("the sampler's epochs cannot be drawn here")
            if asked.epoch not in drawn:
                drawn[asked.epoch] = plan.supply.epoch_of(plan.parameters, asked.epoch)
            schedule.draws.note_drawn(asked, memory.keep(asked, drawn[asked.epoch]))
        announce = schedule.announcement(number - plan.first_number, 1, 0, ())
        if announce is not None:
            (batch,) = plan.unpack(announce, {})
            yield number, batch


class _Memory(dict[int, IndexArray]):
    """Drawn epochs by the offset in bytes that each would have in the shared file."""

    def keep(self, asked: Draw, drawn: DrawnEpoch) -> Drawn:
        sizes = np.empty(0, np.int64) if drawn.sizes is None else drawn.sizes
        self[asked.offset] = np.concatenate([drawn.indices, sizes])
        return Drawn(len(drawn.indices), len(sizes))

    def read(self, offset: int, count: int, _kind: type[np.int64]) -> IndexArray:
        begin = max(start for start in self if start <= offset)
        return self[begin][(offset - begin) // 8 :][:count]

    def free(self, offset: int, _size: int) -> None:
        del self[offset]


def _unknown_past(number: int, plan: Plan) -> ParameterError:
    return ParameterError(
        f"batch {number} lies before batch {plan.first_number}, where the state stands, and a run with these "
        "parameters and weights has not come there from the beginning: give the batch_size, world_size and last_batch "
        "that the run had then, or a state from before the batch"
    )


def _no_batch(number: int, plan: Plan) -> ParameterError:
    return ParameterError(f"there is no batch {number}: epochs={plan.parameters.epochs} have fewer")
