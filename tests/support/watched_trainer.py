"""A trainer to be watched from outside; its arguments: how, a folder, and perhaps a trace.

starved: decode computes and the trainer does nothing. starving: the trainer takes its time. waiting: the source waits.
local: it makes its batches itself. stuck: one sample never comes. dying: loaders kill themselves, each at a sample of
its own.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from blobfeed.workers.api import AnyArray, IndexArray, NamedRows

from blobfeed import BatchReader, Sample

from .pipelines import Numbered, first_of_all

STUCK_AT = 41
SAMPLES = 400


class Numbers(Numbered):
    kind = "[numbers]"

    def __init__(self, wait_s: float) -> None:
        super().__init__(SAMPLES, items=1)
        self._wait_s = wait_s

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        time.sleep(self._wait_s * len(indices))
        super().read(indices, out)

    def where(self, index: int) -> str:
        return f"[numbers]/{index}.txt"


class Decode:
    def __init__(self, how: str, folder: Path) -> None:
        self._how = how
        self._folder = folder

    def __call__(self, sample: Sample, _: np.random.Generator) -> AnyArray:
        time.sleep(0.001)  # in setup too: batches that are made in no time share a slot
        if os.environ.get("BLOBFEED_ROLE") == "loader" or self._how == "local":
            self._act(sample.index, sample.epoch)
        data: AnyArray = sample["data"]
        return data

    def _act(self, index: int, epoch: int) -> None:
        if self._how in ("starved", "local"):
            end = time.process_time() + 0.01
            while time.process_time() < end:
                pass
        if self._how == "stuck" and index == STUCK_AT:
            while True:
                time.sleep(1000)
        if self._how == "dying" and index % 16 == 9 and first_of_all(self._folder / f"{epoch}.{index}"):
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    how, folder, *trace = sys.argv[1:]
    reader = BatchReader(
        Numbers(0.005 if how == "waiting" else 0.0),
        decode=Decode(how, Path(folder)),
        batch_size=8,
        num_loaders=0 if how == "local" else 2,
        tops="data",
        epochs=None,
        trace="".join(trace),
    )
    for number, batch in enumerate(reader):
        assert batch["data"].shape == (8, 1)
        if how == "starving":
            time.sleep(0.05)
        if how == "dying":
            time.sleep(0.01)
        if number == 4:
            print("running", flush=True)


if __name__ == "__main__":
    main()
