"""Loaders convert what is handed over into its slots: the trainer copies nothing, and values are the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.readers.delivery import LentBlocks
from blobfeed.workers.api import AnyArray

from blobfeed import BatchReader, Sample, StreamSource

SAMPLES, BAD = 30, 7
PIXELS = np.random.default_rng(0).integers(0, 256, (SAMPLES, 3, 9, 11), dtype=np.uint8)
PIXELS[:, 0, 0, 0] = range(SAMPLES)
MEAN = (2 * PIXELS[3]).astype(np.float32)


def some_bad(sample: Sample, rng: np.random.Generator) -> AnyArray:
    if sample["data"][0, 0, 0] == BAD:
        raise ValueError("bad")
    return sample["data"]


def records(shard: int, shards: int) -> Iterator[AnyArray]:
    yield from PIXELS[shard::shards]


@pytest.mark.parametrize("num_loaders", [0, 2])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("npy", {}),
        ("arrays", {}),
        ("npy", {"transform": {"mean_file": "mean.npy", "scale": [2, 3, 1 / 3]}}),
        ("npy", {"decode": some_bad, "on_error": "replace", "prefetch_batches": 40}),
        ("npy", {"transform": {"crop_size": 5, "mirror": True, "mean_file": "mean.npy"}, "batch_size": 30}),
        ("stream", {"decode": some_bad, "on_error": "replace"}),
    ],
)
def test_what_is_handed_over_has_been_converted_by_the_loaders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_loaders: int, kind: str, values: dict[str, Any]
) -> None:
    np.save(tmp_path / "data.npy", PIXELS)
    np.save(tmp_path / "mean.npy", MEAN)
    source: Any = {"npy": {"data": "data.npy"}, "arrays": {"data": PIXELS}}
    source = {kind: source[kind]} if kind in source else StreamSource(records, shards=2, names=("data",))
    given: dict[str, Any] = {"transform": {"scale": 0.3, "mean_value": [4, 5, 6]}, "seed": 3, **values}
    given = {"batch_size": 4, "shuffle": kind != "stream", "num_loaders": num_loaders, "base_dir": tmp_path, **given}
    with BatchReader(source, **{**given, "num_loaders": 0}, postprocess=lambda batch: None) as by_trainer:
        expected = [(batch.indices, batch["data"]) for _ in range(2) for batch in by_trainer]
    monkeypatch.setattr(LentBlocks, "empty", lambda *_, **__: pytest.fail("a batch was copied"))
    with BatchReader(source, **given) as reader:
        for _ in range(2):
            for batch in reader:
                indices, data = expected.pop(0)
                np.testing.assert_array_equal(batch.indices, indices)
                np.testing.assert_array_equal(batch["data"], data)
                assert batch["data"].dtype == np.float32
                del batch
    assert not expected
