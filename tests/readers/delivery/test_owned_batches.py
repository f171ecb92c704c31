"""A reader's batch is the user's own, however large it is: nothing of it lies in the ring."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from blobfeed.readers.delivery.named_batches import NamedBatch
from blobfeed.workers.base.specs import AnyArray

from blobfeed import BatchReader

_SAMPLES, _BATCH = 480, 48
_SHAPE = (3, 128, 128)  # a batch is 2.4 MB: more than half of what several in a slot may have


def _data() -> AnyArray:
    return np.random.default_rng(3).integers(0, 256, (_SAMPLES, *_SHAPE), np.uint8)


def _reader(data: AnyArray) -> BatchReader:
    source = {"arrays": {"data": data, "label": np.arange(_SAMPLES)}}
    return BatchReader(source, batch_size=_BATCH, num_loaders=1, shuffle=True)


def _require_right(batch: NamedBatch, data: AnyArray) -> None:
    np.testing.assert_array_equal(batch["data"], data[batch.indices])
    np.testing.assert_array_equal(batch["label"], batch.indices)


def test_no_batch_shows_the_ring() -> None:
    with _reader(_data()) as reader:
        for batch in islice(reader, 6):
            ring = reader._pipeline._feed.shared.ring  # type: ignore[union-attr]
            assert not np.may_share_memory(batch["data"], ring.memory)


@pytest.mark.parametrize("part", [np.s_[...], np.s_[1:, :, ::2]], ids=["batches", "views"])
def test_batches_that_are_kept_stay_as_they_were(part: Any) -> None:
    data, kept = _data(), []
    with _reader(data) as reader:
        for batch in islice(reader, 12):
            _require_right(batch, data)
            kept.append((batch["data"][part], batch.indices))
    for shown, indices in kept:
        np.testing.assert_array_equal(shown, data[indices][part])


def test_what_is_written_into_a_batch_comes_with_no_later_one() -> None:
    data = _data()
    with _reader(data) as reader:
        for batch in islice(reader, 12):
            _require_right(batch, data)
            batch["data"][...] = 0
            batch["label"][...] = -1
