"""Makes a batch in this process the way a loader does: for tests of hooks, and for a debugger."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...workers.api import IndexArray, Rows, allocate_rows
from ...workers.base import ParameterError
from ...workers.loading import BatchSamples, RowDecoder
from ...workers.order import DrawnEpoch, globals_kept
from ...workers.plan import Batch, Plan
from ...workers.transport import Run


def postprocessed_batch(plan: Plan, indices: Sequence[int] | IndexArray, epoch: int) -> dict[str, Rows]:
    """Return the batch of these samples by top, after the postprocess hook if there is one.

    Its random numbers are those of the epoch's first batch. Raises the exceptions of reading and the hooks.
    """
    slot = made_batch(plan, indices, epoch).tops
    return {name: slot[name] for name in plan.specs}


def made_batch(plan: Plan, indices: Sequence[int] | IndexArray, epoch: int) -> Batch:
    """Return the batch in the trainer's form, ready for delivery, with notes of crops besides the tops."""
    if not len(indices):
        raise ParameterError("a batch of no samples was asked for: expected the index of one sample or more")
    decoded: RowDecoder = plan.decoded.value
    slot, hook = allocate_rows(plan.slot_specs, len(indices)), decoded.postprocessor
    run = Run(0, len(indices), epoch, 0)
    with globals_kept():
        decoded.try_on(indices, epoch, hook.decoded_rows(slot) if hook else slot, plan.supply, plan.parameters)
        if hook is not None:
            key = plan.supply.batch_key(run, plan.parameters.batch_size)
            hook.run(slot, 0, BatchSamples(np.array(indices, np.int64), epoch, key))
    return Batch(0, epoch, 0, len(indices), slot, 0, [run], plan.supply)


def drawn_epoch(plan: Plan, epoch: int) -> DrawnEpoch:
    """Return the samples of `epoch`, for all ranks; raises ParameterError for a stream, and a sampler's exceptions."""
    with globals_kept():
        return plan.supply.epoch_of(plan.parameters, epoch)
