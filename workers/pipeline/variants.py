"""A pipeline that writes the trainer's spans too.

It is a class of its own, so that a plain pipeline does not ask at each batch whether there is a trace.
"""

from __future__ import annotations

import time
from pathlib import Path

from ..base.hooks import Hooks
from ..base.parameters import Parameters
from ..base.source import Source
from ..plan.batch import Batch
from ..sources.stream import StreamSource
from ..transport.messages import Announce
from ..transport.trace_ring import NO_WAIT_NS, Kind, TraceWriter
from .feed import Feed
from .pipeline import AnyFeed, Pipeline

_GATHERED_NS = 5_000_000


class TracedPipeline(Pipeline):
    """Writes when the trainer waits for a slot's first batch, when it copies it, and when it does its own work.

        take ─ step ─► peek ─ wait ─► (slot) ─ copy ─► take ─ step, and the slot's other batches ─► peek

    Each batch is peeked at before it is taken, as every delivery does. If the trainer comes back so soon that a record
    for each slot would cost more than a hundredth of the time, the pipeline is a `_Gathering`.
    """

    _writer: TraceWriter | None = None
    _asked_ns = 0
    _there_ns = 0
    """Since when the slot's first batch has been looked at; 0: it has not."""
    _noted_ns = 0
    """The end of the last record."""

    def _next_batches(self) -> tuple[Batch, ...]:
        asked_ns = time.monotonic_ns()
        batches = super()._next_batches()
        self._asked_ns, self._there_ns = asked_ns, time.monotonic_ns()
        return batches

    def peek(self) -> Batch:
        if not self._there_ns and self._at.ready:  # it was there before anybody asked
            self._asked_ns = self._there_ns = time.monotonic_ns()
        return super().peek()

    def take(self) -> Batch:
        batch = super().take()
        soon = self._asked_ns - self._noted_ns < _GATHERED_NS
        self._note(batch.number, self._asked_ns, self._there_ns, time.monotonic_ns())
        self._there_ns = 0
        if soon:
            self.__class__ = _Gathering
        return batch

    def _note(self, number: int, asked_ns: int, there_ns: int, taken_ns: int) -> None:
        """Write that batch `number` has been taken."""
        if self._writer is None and isinstance(self._feed, Feed) and self._feed.shared.trace is not None:
            self._writer = self._feed.shared.trace.trainer()
        if self._writer is not None:
            step_ns = asked_ns - self._noted_ns if self._noted_ns else 0
            self._writer.write(Kind.TAKEN, asked_ns, taken_ns, 0, -1, number, step_ns, there_ns)
        self._noted_ns = taken_ns

    def close(self) -> None:
        if self._writer is not None and self.is_ours:
            number = self._plan.first_number + self._at.progress.taken
            self._writer.write(Kind.END, self._noted_ns, time.monotonic_ns(), group=number)
        self._writer = None
        super().close()


class _Gathering(TracedPipeline):
    """Writes only waits, and looks at no single batch, until a slot is opened that much later than the last record.

    A wait does not change the class: that takes microseconds.
    """

    peek = Pipeline.peek
    take = Pipeline.take

    def _next_batches(self) -> tuple[Batch, ...]:
        batches = super()._next_batches()
        if type(self) is _Gathering:
            if self._there_ns - self._asked_ns > NO_WAIT_NS:
                self._note(batches[0].number, self._asked_ns, self._there_ns, self._there_ns)
            self._there_ns = 0
        return batches

    def _open_group(self, feed: AnyFeed, announce: Announce) -> tuple[Batch, ...]:
        batches = super()._open_group(feed, announce)
        if time.monotonic_ns() - self._noted_ns > _GATHERED_NS:
            self.__class__ = TracedPipeline  # type: ignore[assignment]  # for mypy it stays what it is here
        return batches


def make_pipeline(
    parameters: Parameters,
    hooks: Hooks = Hooks(),  # noqa: B008 - frozen
    *,
    base_dir: Path | None = None,
    train: bool = True,
    source: Source | StreamSource | None = None,
) -> Pipeline:
    """The pipeline that `parameters` ask for; see there."""
    kind = TracedPipeline if parameters.trace else Pipeline
    return kind(parameters, hooks, base_dir=base_dir, train=train, source=source)
