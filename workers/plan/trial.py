"""One sample, or one batch, made in this process as a loader makes it: for tests of hooks, and for a debugger."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from ..base.specs import AnyArray, NamedRows, RaggedRows, Rows, allocate_rows
from ..loading.indexed_worker import DecodedSource
from ..loading.stream_worker import DecodedStream, shard_items
from ..loading.worker import postprocess_rows
from .plan import Plan


def decoded_sample(plan: Plan, index: int, epoch: int) -> dict[str, AnyArray]:
    """Sample `index` by the names of the tops, after decode, crop and mirror, before mean and scale.

    Of a stream: the sample of that number in its first shard. Raises IndexError for a sample that is not there, and
    whatever reading and decode raise.
    """
    rows = _decoded_rows(plan, [index], epoch)
    return {name: top.get(0) if isinstance(top, RaggedRows) else top[0] for name, top in _tops(plan, rows).items()}


def postprocessed_batch(plan: Plan, indices: Sequence[int], epoch: int) -> dict[str, Rows]:
    """The batch of these samples after postprocess, if there is such a hook; raises what that raises too."""
    rows = _decoded_rows(plan, indices, epoch)
    decoded: DecodedSource | DecodedStream = plan.decoded.value
    if decoded.rows.hooks.postprocess is not None:
        postprocess_rows(decoded.rows.hooks.postprocess, rows)
    return _tops(plan, rows)


def _tops(plan: Plan, rows: NamedRows) -> dict[str, Rows]:
    return {name: rows[name] for name in plan.specs}


def _decoded_rows(plan: Plan, indices: Sequence[int], epoch: int) -> NamedRows:
    decoded: DecodedSource | DecodedStream = plan.decoded.value
    rows = allocate_rows(plan.slot_specs, len(indices))
    if isinstance(decoded, DecodedSource):
        for index in indices:
            if not 0 <= index < len(decoded.source):
                raise IndexError(f"sample {index} of a source of {len(decoded.source)} samples")
        decoded.make(np.array(indices, np.int64), np.full(len(indices), epoch, np.int64), rows, lambda _: None)
        return rows
    for row, index in enumerate(indices):
        item = next(
            islice(shard_items(decoded.source, decoded.num_shards, 0, epoch, plan.parameters.seed), index, None), None
        )
        if item is None:
            raise IndexError(f"sample {index} of the stream's first shard, which has fewer in epoch {epoch}")
        decoded.rows.put(decoded.sample(item), rows, row)
    return rows
