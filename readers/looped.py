"""The pipeline under a reader: made from its arguments, cut into loops, begun anew where the reader jumps."""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, cast

import msgspec

from ..workers.base.closing import close_all
from ..workers.base.errors import BlobfeedError, ParameterError
from ..workers.base.files import absolute
from ..workers.base.hooks import Hooks
from ..workers.base.parameters import Parameters, check_parameters
from ..workers.base.source import Source
from ..workers.pipeline.pipeline import Pipeline
from ..workers.plan.make_plan import open_declared
from ..workers.plan.state import State
from ..workers.processes.process import interrupts_deferred, interrupts_ignored
from ..workers.sources.stream import StreamSource
from .delivery.named_batches import NamedBatches
from .delivery.tops import make_tops
from .loops import LOOP_START, IndexedLoops, Loops, SampledLoops, StreamLoops
from .sharding import warn_of_other_ranks, with_shard

if TYPE_CHECKING:
    from .delivery.cuda_device import CudaDevice

_RESTART_S = 0.2
"""What it takes to end the processes and to start others, until they give the first batch."""

_Hook = TypeVar("_Hook")

SourceLike = Source | StreamSource | Mapping[str, object] | str | Path | None


class LoopedPipeline:
    """A pipeline that can be begun anew elsewhere: `loops` says where, `batches` gives the batches.

    `copy`, `loans`: see NamedBatches; `copy` None: as the parameter `delivery` says.
    """

    def __init__(
        self,
        what: str,
        source: SourceLike,
        hooks: Hooks,
        values: Mapping[str, object],
        *,
        copy: bool | None,
        loans: int = 1,
        base_dir: Path | str | None = None,
        train: bool = True,
    ) -> None:
        """`what` begins the messages about wrong parameters. Raises what Pipeline raises."""
        check_hook(what, "decode", hooks.decode)
        check_hook(what, "postprocess", hooks.postprocess)
        self._base_dir = absolute(base_dir)
        self.parameters = _check(what, source, values)
        self._is_whole_by_default = values.get("rank") is None and self.parameters.world_size == 1
        if copy is not None:
            delivery: Literal["copy", "view"] = "copy" if copy else "view"
            if values.get("delivery", delivery) != delivery:
                raise ParameterError(
                    f"{what}: parameter 'delivery' is {values['delivery']!r}, and 'copy' is {copy}, which means "
                    f"{delivery!r}: leave 'delivery' out; Keras and TensorFlow always need the copy"
                )
            self.parameters = msgspec.structs.replace(self.parameters, delivery=delivery)
        self._hooks = hooks
        self._train = train
        # Opened once and kept: examining a million files again at each jump would take seconds.
        self._source = (
            source
            if isinstance(source, Source | StreamSource)
            else open_declared(self.parameters, hooks, self._base_dir)
        )
        self.is_indexed = not isinstance(self._source, StreamSource)
        self.copies = self.parameters.delivery == "copy"
        self._loans = loans
        if self.is_indexed:
            self.pipeline = self._pipeline(None)
            batches, epochs = self.pipeline.plan.batches, self.parameters.epochs
            self.loops: Loops = (
                SampledLoops(epochs) if batches is None else IndexedLoops(batches.begun_at(0, None), epochs)
            )
        else:
            self.loops = StreamLoops(self.parameters.epochs)
            self.pipeline = self._pipeline(self.loops.pipeline_epochs({}))
        self.tops = make_tops(self.pipeline.specs, self.parameters, self._base_dir)
        self.batches = self._batches_of(self.pipeline)
        self._loop_start: State = {}
        """What states are to say of it."""

    def state_dict(self) -> State:
        """Where the next batch stands, and, if that has to be said, where its loop began."""
        state = self.batches.delivery.state_dict()
        start = self.loops.start({**state, **self._loop_start})
        return state if start is None else {**state, LOOP_START: start}

    def begin_loop(self, state: State) -> None:
        """A loop begins in `state`, or goes on there after a jump."""
        if self._is_whole_by_default:
            self._is_whole_by_default = False  # warned of once
            warn_of_other_ranks()
        self._loop_start = {name: start for name, start in state.items() if name == LOOP_START}

    def go_to(self, state: Mapping[str, object], batches: int | None) -> None:
        """Go on where `state` was saved, which lies so many `batches` ahead, if that is known.

        If they are quickly made, leaving them out takes less time than starting other processes.
        """
        if batches is None:
            self.jump(state)
        elif not self._leave_out(batches):
            self.jump({**state, "batches": batches + cast("int", state["batches"])})  # counted in either case

    def _leave_out(self, batches: int) -> bool:
        """Whether the next `batches` have been left out."""
        rows = batches * self.parameters.batch_size
        loaders = max(1, self.pipeline.statistics().loaders)
        if rows * self.pipeline.plan.seconds_per_row / loaders > _RESTART_S:
            return False
        end, deadline = self.batches.count + batches, time.monotonic() + _RESTART_S
        try:
            while self.batches.count < end and time.monotonic() < deadline:
                self.batches.delivery.leave_out()
        except BlobfeedError:
            return False  # a sample is bad, of which nobody wants to know
        return self.batches.count == end

    def jump(self, state: Mapping[str, object]) -> None:
        """Go on where `state` was saved; what has been prefetched is thrown away.

        Raises ParameterError where that is not possible; then all is as it was. PipelineClosed in a fork, where another
        pipeline would give the same batches once more.
        """
        self.pipeline.check_usable()
        told = dict(state) if isinstance(state, Mapping) else {}
        start = told.pop(LOOP_START, 0)
        if not isinstance(start, int) or start < 0:
            raise ParameterError(f"the state's {LOOP_START} is {start!r}: expected a position, at least 0")
        pipeline = self._pipeline(self.loops.pipeline_epochs(told))
        pipeline.load_state_dict(told or state)
        # The same device, whichever is the current one now, and its stream: torch gives freed memory to no other.
        batches = self._batches_of(pipeline, self.batches.on)
        with interrupts_deferred():
            self.close()
            self.pipeline, self.batches = pipeline, batches
            self._loop_start = {LOOP_START: start} if LOOP_START in state else {}

    def close(self) -> None:
        if self.pipeline.is_ours:
            close_all(self.batches.delivery.close, self.pipeline.close)

    def _batches_of(self, pipeline: Pipeline, on: CudaDevice | None = None) -> NamedBatches:
        return NamedBatches(pipeline, self.tops, copy=self.copies, loans=self._loans, on=on)

    def _pipeline(self, epochs: int | None) -> Pipeline:
        parameters = msgspec.structs.replace(self.parameters, epochs=epochs)
        return Pipeline(parameters, self._hooks, base_dir=self._base_dir, train=self._train, source=self._source)


_open_feeds: set[LoopedPipeline] = set()


def close_when_forgotten(owner: object, feed: LoopedPipeline) -> Callable[[], object]:
    """Have `feed` closed when `owner` is collected, or at exit; what is returned closes it at once."""
    _open_feeds.add(feed)
    finalizer = weakref.finalize(owner, _close, feed)
    finalizer.atexit = False  # there a second Ctrl-C would end in "Exception ignored in atexit callback"

    def close() -> None:
        with interrupts_deferred():  # a finalizer that has been interrupted does nothing when it is called again
            finalizer()

    return close


def _close(feed: LoopedPipeline) -> None:
    with interrupts_deferred():
        _open_feeds.discard(feed)
        feed.close()


@atexit.register
def _close_at_exit() -> None:
    with interrupts_ignored():
        close_all(*(partial(_close, feed) for feed in _open_feeds))


def check_hook(what: str, name: str, hook: _Hook | None) -> _Hook | None:
    """`hook` where it can be called, or None; raises ParameterError."""
    if hook is not None and not callable(hook):
        raise ParameterError(f"{what}: parameter {name!r} is {hook!r}: expected a function or another callable")
    return hook


def _check(what: str, source: SourceLike, values: Mapping[str, object]) -> Parameters:
    declared: dict[str, object] = dict(values)
    if isinstance(source, Source | StreamSource):
        declared["source"] = {source.kind: {}}
    elif source is not None:
        declared["source"] = source
    if values.get("epochs") is not None:  # a loop over a reader ends, and then it should have had each sample once
        declared.setdefault("last_batch", "partial")
    parameters = check_parameters(declared, what)
    if parameters.state_file:
        raise ParameterError(
            f"{what}: parameter 'state_file' is {parameters.state_file!r}: it is for layers, which nobody tells of a "
            "snapshot; keep the reader's state_dict() beside your checkpoint"
        )
    if parameters.start != "at_first_batch":
        raise ParameterError(
            f"{what}: parameter 'start' is {parameters.start!r}: it is for layers; call the reader's start() instead"
        )
    return with_shard(parameters)
