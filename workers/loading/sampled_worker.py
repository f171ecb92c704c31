"""Rows of an indexed source whose epochs were drawn by a sampler: the indices lie in a file that all loaders share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..base.parameters import Parameters
from ..base.specs import NamedRows
from ..transport.error_channel import SendError
from ..transport.messages import Fill, Postprocess
from ..transport.shared_file import SharedFile
from ..transport.status_board import LoaderStatus
from .indexed_worker import DecodedSource, IndexedWorker, WantedRows
from .postprocessing import BatchSamples


class SampledWorker(IndexedWorker):
    """The tasks say where the indices of their rows lie."""

    def __init__(
        self,
        decoded: DecodedSource,
        drawn: SharedFile,
        parameters: Parameters,
        slots: Sequence[NamedRows],
        status: LoaderStatus,
        send_error: SendError,
    ) -> None:
        super().__init__(decoded, parameters, slots, status, send_error)
        self._drawn = drawn

    def wanted(self, task: Fill) -> Iterator[WantedRows]:
        for run in task.drawn:
            indices = self._drawn.read(run.offset, run.count, np.int64)
            yield WantedRows(run.row, indices, np.full(run.count, run.epoch, np.int64))

    def samples_of(self, task: Postprocess, number: int) -> BatchSamples:
        first = number * self.parameters.batch_size
        runs = [run for run in task.drawn if first <= run.row < first + task.batches[number]]
        indices = np.concatenate([self._drawn.read(run.offset, run.count, np.int64) for run in runs])
        return BatchSamples(indices, runs[0].epoch, (runs[0].epoch, runs[0].position))
