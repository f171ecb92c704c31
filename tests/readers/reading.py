"""Readers over small sources, and the labels of their batches."""

from __future__ import annotations

from typing import Any

from blobfeed import BatchReader, NamedBatch

SAMPLES = 10


def read(source: object, **parameters: Any) -> BatchReader:
    """In this process, if the test does not ask for loaders: test_in_process.py holds the two to the same batches."""
    return BatchReader(source, **{"batch_size": 4, "num_loaders": 0, **parameters})  # type: ignore[arg-type]


def all_labels(batches: list[NamedBatch]) -> list[int]:
    return [int(label) for batch in batches for label in batch["label"]]
