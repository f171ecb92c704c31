"""One rule replaces bad samples: of all supplies, in loaders and in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from blobfeed.workers.order import replacements

from blobfeed import BatchReader, Sample, StreamSource

SAMPLES, SEED, BATCH = 53, 11, 8
BAD = (0, 3, 30, 31, 52)


def numbered(shard: int, num_shards: int) -> Iterator[dict[str, int]]:
    yield from ({"label": number} for number in range(SAMPLES))


def refuses(sample: Sample, _rng: np.random.Generator) -> dict[str, Any]:
    if sample["label"] in BAD:
        raise ValueError("bad")
    return dict(sample)


def labels(num_loaders: int, **given: Any) -> list[int]:
    source = {"arrays": {"label": np.arange(SAMPLES)}}
    settings = {"source": source, "batch_size": BATCH, "seed": SEED, "epochs": 1, "last_batch": "partial", **given}
    with BatchReader(settings.pop("source"), num_loaders=num_loaders, **settings) as reader:
        return [label for batch in reader for label in batch["label"].tolist()]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"shuffle": True},
        {"sampler": [*range(20, 40), *BAD, *BAD]},
        {"sampler": {"weights": np.arange(SAMPLES) % 3 == 0}},
        {"batch_sampler": [[1, 2, *BAD], list(range(25, 33))]},
        {"source": StreamSource(numbered, shards=1, capacity=3)},
    ],
    ids=["as stored", "shuffled", "sampler", "weights", "batches", "stream"],
)
def test_a_bad_sample_gives_way_to_what_another_position_of_its_epoch_or_streams_batch_has(
    given: dict[str, Any],
) -> None:
    whole = labels(0, **given)

    def in_the_place_of(position: int) -> int:
        first = position // BATCH * BATCH
        among = range(first, min(first + BATCH, len(whole))) if "source" in given else range(len(whole))
        others = (whole[other] for other in replacements(SEED, 0, position, among))
        return next(other for other in others if other not in BAD)

    expected = [in_the_place_of(place) if label in BAD else label for place, label in enumerate(whole)]
    for num_loaders in (0, 2):
        assert labels(num_loaders, **given, decode=refuses, on_error="replace") == expected
