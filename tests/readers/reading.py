"""Readers over small sources, and the labels of their batches."""

from __future__ import annotations

from typing import Any

from blobfeed import BatchReader, NamedBatch

SAMPLES = 10


def read(source: object, **parameters: Any) -> BatchReader:
    """Endless, and in this process, if the test does not say otherwise: test_in_process.py compares with loaders."""
    return BatchReader(source, **{"batch_size": 4, "num_loaders": 0, "epochs": None, **parameters})  # type: ignore[arg-type]


def all_labels(batches: list[NamedBatch]) -> list[int]:
    return [int(label) for batch in batches for label in batch["label"]]
