"""What a loader does with its tasks, whatever the source. The loader itself moves messages; this part knows rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from ..base.parameters import Parameters
from ..base.source import Source
from ..base.specs import NamedRows
from ..sources.stream import StreamSource
from ..transport.error_channel import SendError, describe, sendable, summary_of
from ..transport.messages import BadRow, Fill, Postprocess, ToLoader
from ..transport.status_board import Activity, LoaderStatus
from .postprocessing import BatchSamples, Postprocessor

_MOST_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class WorkDone:
    """`stream_rows`: rows that a stream had for the batch; -1 for an indexed source, which always has all."""

    bad: list[BadRow] = field(default_factory=list)
    stream_rows: int = -1


class Worker(ABC):
    """Makes rows in the slots, and says which could not be made. `slots`: each slot's rows by name."""

    def __init__(
        self,
        parameters: Parameters,
        postprocessor: Postprocessor | None,
        slots: Sequence[NamedRows],
        status: LoaderStatus,
        send_error: SendError,
    ) -> None:
        self.parameters = parameters
        self.slots = [postprocessor.decoded_rows(slot) for slot in slots] if postprocessor else slots
        self.status = status
        self._postprocessor = postprocessor
        self._whole_slots = slots
        self._send_error = send_error

    def announce(self, task: Fill) -> None:  # noqa: B027 - a stream is read as it comes
        """`task` will have to be done later."""

    def work(self, message: ToLoader) -> WorkDone:
        """Do what `message` asks for; a sample that raises is a bad row, not an exception."""
        return self.fill(message) if isinstance(message, Fill) else WorkDone(self._postprocess_batches(message))

    @abstractmethod
    def fill(self, task: Fill) -> WorkDone:
        """Make the task's rows."""

    @abstractmethod
    def samples_of(self, task: Postprocess, number: int) -> BatchSamples:
        """Of the group's batch `number`, counted from 0."""

    def _postprocess_batches(self, task: Postprocess) -> list[BadRow]:
        """Run the hook on each batch; what it raises counts against the batch's first row."""
        if self._postprocessor is None:
            raise RuntimeError(f"slot {task.slot} is to be postprocessed, but there is no such hook")
        for number, rows in enumerate(task.batches):
            first = number * self.parameters.batch_size
            samples = self.samples_of(task, number)
            for row, index in task.replaced:
                if first <= row < first + rows:
                    samples.indices[row - first] = index
            self.status.write(Activity.POSTPROCESSING)
            try:
                self._postprocessor.run(self._whole_slots[task.slot], first, samples)
            except Exception as error:
                text = f"postprocess of the batch that begins with it raised {summary_of(error)}"
                return [self.with_cause(BadRow(first, -1, -1, -1, "", text), error)]
        return []

    def with_cause(self, bad: BadRow, error: Exception) -> BadRow:
        """`bad` with all that can be told of `error`, because the run ends with it."""
        return msgspec.structs.replace(bad, cause=self._send_error(error), traceback=describe(error))


def location_of(source: Source | StreamSource, index: int) -> str:
    """Where sample `index` is stored; a source that fails to say so must not hide what was wrong with the sample."""
    try:
        return sendable(source.where(index), _MOST_CHARACTERS)
    except Exception as error:
        return f"at a location that its source cannot name: {summary_of(error)}"
