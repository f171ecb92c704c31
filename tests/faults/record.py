"""What a run delivered, batch by batch, and how two runs differ."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from blobfeed.workers.pipeline import Pipeline
from blobfeed.workers.plan import Batch

from blobfeed import EndOfData


@dataclass
class Record:
    """`samples`: the labels in the order of delivery; `digests`: of each batch, over the bytes of all its tops."""

    samples: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)

    def add(self, batch: Batch) -> None:
        digest = hashlib.blake2b(digest_size=16)
        for name, top in batch.tops.items():
            digest.update(name.encode())
            digest.update(np.asarray(top).tobytes())
        self.samples.extend(np.asarray(batch.tops["label"]).tolist())
        self.digests.append(digest.digest())


@dataclass(frozen=True)
class Difference:
    """`lost`, `repeated`: samples; `misplaced`: samples where another one stood; `altered`: batches of other bytes."""

    lost: int
    repeated: int
    misplaced: int
    altered: int

    @property
    def is_none(self) -> bool:
        return not (self.lost or self.repeated or self.misplaced or self.altered)


def compare(undisturbed: Record, disturbed: Record) -> Difference:
    before, after = Counter(undisturbed.samples), Counter(disturbed.samples)
    misplaced = sum(a != b for a, b in zip(undisturbed.samples, disturbed.samples, strict=False))
    first, second = undisturbed.digests, disturbed.digests
    altered = sum(a != b for a, b in zip(first, second, strict=False)) + abs(len(first) - len(second))
    return Difference((before - after).total(), (after - before).total(), misplaced, altered)


def read(pipeline: Pipeline, step_s: float = 0.0, record: Record | None = None) -> Record:
    """All batches to the end, added to `record`; the trainer computes for `step_s` seconds on each."""
    record = Record() if record is None else record
    while True:
        try:
            batch = pipeline.take()
        except EndOfData:
            return record
        record.add(batch)
        pipeline.release(batch)
        if step_s:
            time.sleep(step_s)
