"""A source of sixty samples, samplers over it, and what they have to deliver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from blobfeed.supplies import BalancedSampler, draw_epoch, sampler_rng

from blobfeed import BatchReader
from tests.support.pipelines import Numbered
from tests.support.sampled import expected_batches
from tests.support.waiting import DEADLINE_S

SAMPLES, SEED, BATCH = 60, 11, 8
WEIGHTS = np.arange(SAMPLES, dtype=np.float64) ** 2
SUBSET = np.arange(0, SAMPLES, 3)
LENGTHS = np.arange(SAMPLES) * 7 % 13
"""The lengths that the samples would have as texts."""


def varying(epoch: int, samples: int, rng: np.random.Generator) -> Any:
    """Another number in each epoch, some twice."""
    return rng.integers(samples, size=20 + 9 * (epoch % 3))


def bucketed(epoch: int, samples: int, rng: np.random.Generator) -> Iterator[Any]:
    """Samples of about the same length together, as many as make up 40."""
    batch: list[int] = []
    for index in rng.permutation(samples)[np.argsort(LENGTHS[:samples], kind="stable")]:
        if len(batch) == BATCH or LENGTHS[[*batch, index]].sum() > 40:
            yield np.array(batch)
            batch = []
        batch.append(int(index))
    yield np.array(batch)


ORDERS: dict[str, tuple[dict[str, Any], Callable[[int], Any]]] = {
    "weighted": (
        {"sampler": {"weights": WEIGHTS, "draws": 45}},
        lambda epoch: sampler_rng(SEED, epoch).choice(SAMPLES, 45, p=WEIGHTS / WEIGHTS.sum()),
    ),
    "subset": ({"sampler": {"indices": SUBSET}}, lambda epoch: SUBSET),
    "shuffled subset": (
        {"sampler": SUBSET.tolist(), "shuffle": True},
        lambda epoch: sampler_rng(SEED, epoch).permutation(SUBSET),
    ),
    "balanced": (
        {"sampler": {"balance": "label", "draws": 70}},
        lambda epoch: (
            draw_epoch(
                BalancedSampler("label", lambda: np.arange(SAMPLES), 70),
                epoch,
                seed=SEED,
                samples=SAMPLES,
                batch_size=1,
            ).indices
        ),
    ),
    "a function": ({"sampler": varying}, lambda epoch: varying(epoch, SAMPLES, sampler_rng(SEED, epoch))),
    "bucketed": ({"batch_sampler": bucketed}, lambda epoch: list(bucketed(epoch, SAMPLES, sampler_rng(SEED, epoch)))),
}


def expected(order: str, epochs: int = 3, **values: Any) -> list[list[int]]:
    drawn = [ORDERS[order][1](epoch) for epoch in range(epochs + 1)]
    batches = expected_batches(
        drawn, batch_size=BATCH, epochs=epochs, gives_batches="batch_sampler" in ORDERS[order][0], **values
    )
    assert not isinstance(batches, str)
    return batches


def source(**given: Any) -> Numbered:
    return Numbered(SAMPLES, **({"items": 4} | given))


def reader_of(order: str, epochs: int = 3, **values: Any) -> BatchReader:
    settings: dict[str, Any] = {"batch_size": BATCH, "epochs": epochs, "seed": SEED, "last_batch": "wrap"}
    settings |= {"num_loaders": 2, "timeout_s": DEADLINE_S}
    return BatchReader(source(), **(settings | ORDERS[order][0] | values))


def read(**values: Any) -> BatchReader:
    """One epoch in batches of four, in this process, unless `values` say otherwise."""
    return BatchReader(source(), **({"batch_size": 4, "epochs": 1, "num_loaders": 0, "seed": SEED} | values))


def labels(batches: Any) -> list[list[int]]:
    """Return the labels of each batch; the data and the batch's indices must say the same."""
    found = []
    for batch in batches:
        assert batch["label"].tolist() == batch["data"][:, 0].tolist() == batch.indices.tolist()
        found.append(batch["label"].tolist())
    return found
