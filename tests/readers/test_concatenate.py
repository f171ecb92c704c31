"""`concatenate`: samples of several rows each, put end to end, and a top that says which sample each row is of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from blobfeed.workers.api import AnyArray

from blobfeed import BatchReader, LayerHarness, MultiProcessInputLayer

COUNTS = np.array([2, 0, 3, 1, 4, 1, 0, 0, 2, 5])
SOURCE = {"arrays": {"count": COUNTS}}


def boxes_of(index: int) -> AnyArray:
    """As many rows as the sample's count says, each of them different."""
    return (100 * index + np.arange(COUNTS[index] * 5).reshape(-1, 5)).astype(np.float32)


def decode(sample: Any, rng: Any) -> Any:
    info = np.full(3, sample.index, np.float32)
    return {"im_info": info, "index": sample.index, "boxes": boxes_of(sample.index)}


GIVEN: dict[str, Any] = {
    "batch_size": 4,
    "num_loaders": 0,
    "last_batch": "partial",
    "epochs": 1,
    "concatenate": "boxes",
}


@pytest.mark.parametrize("options", [{}, {"device": "cpu"}])
def test_rows_lie_end_to_end_and_each_says_whose_it_is(options: dict[str, Any]) -> None:
    with BatchReader(SOURCE, decode=decode, shuffle=True, seed=3, max_rows=5, **GIVEN, **options) as reader:
        assert list(reader.specs) == ["im_info", "index", "boxes", "boxes_samples"]
        seen = 0
        for batch in reader:
            of_samples = [boxes_of(index) for index in batch.indices]
            np.testing.assert_array_equal(batch["boxes"], np.concatenate(of_samples))
            np.testing.assert_array_equal(batch["boxes_samples"], np.repeat(range(batch.rows), COUNTS[batch.indices]))
            np.testing.assert_array_equal(batch["im_info"][:, 0], batch.indices)
            seen += batch.rows
    assert seen == len(COUNTS)


def test_a_batch_without_any_row_is_delivered_too() -> None:
    with BatchReader(SOURCE, decode=decode, max_rows=5, **{**GIVEN, "batch_size": 1}) as reader:
        shapes = [(batch["boxes"].shape, batch["boxes_samples"].shape) for batch in reader]
    assert shapes == [((count, 5), (count,)) for count in COUNTS]


def test_a_layers_tops_follow_with_and_without_the_owners() -> None:
    class Boxes(MultiProcessInputLayer):
        def decode(self, sample: Any, rng: Any) -> object:
            return decode(sample, rng)

    given = {"source": SOURCE, "max_rows": 5, "concatenate": ["boxes"], "batch_size": 4, "num_loaders": 0}
    for tops in (["im_info", "index", "boxes"], ["im_info", "index", "boxes", "boxes_samples"]):
        with LayerHarness(Boxes, given, tops=tops) as harness:
            assert harness.tops["boxes"].shape == (20, 5)
            for first in (0, 4):
                made = harness.forward()
                wanted = np.concatenate([boxes_of(index) for index in range(first, first + 4)])
                np.testing.assert_array_equal(made["boxes"], wanted)
                if "boxes_samples" in made:
                    counts = COUNTS[first : first + 4]
                    np.testing.assert_array_equal(made["boxes_samples"], np.repeat(range(4), counts))
            np.testing.assert_array_equal(harness.decode(4)["boxes"], boxes_of(4))


def test_regions_of_one_number_need_no_maximum_and_mean_and_scale_count_their_channels() -> None:
    crops = np.arange(6 * 2 * 3 * 4 * 4, dtype=np.uint8).reshape(6, 2, 3, 4, 4)
    transform = {"mean_value": [1, 2, 3], "scale": [1, 0.5, 0.25]}
    given: dict[str, Any] = {"batch_size": 3, "num_loaders": 0, "concatenate": ["crops"], "transform": transform}
    with BatchReader({"arrays": {"crops": crops}}, **given) as reader:
        batch = next(iter(reader))
    mean, scale = (np.array(values, np.float32).reshape(3, 1, 1) for values in ([1, 2, 3], [1, 0.5, 0.25]))
    np.testing.assert_array_equal(batch["crops"], (crops[:3].reshape(6, 3, 4, 4) - mean) * scale)
    assert batch["crops_samples"].tolist() == [0, 0, 1, 1, 2, 2]
