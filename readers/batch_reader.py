"""`for batch in reader`: a pipeline as a plain Python loop, in loops of some epochs each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, Unpack, cast

import msgspec
import numpy as np

from ..sources import with_own_arrays
from ..workers.api import (
    AnySource,
    ArraySpec,
    DecodeHook,
    Hooks,
    IndexArray,
    PostprocessHook,
    ReaderParameters,
    Statistics,
    loop_end,
)
from ..workers.base import (
    Closing,
    ConcurrentUseError,
    EndOfData,
    ParameterError,
    PipelineClosed,
    SourceError,
    absolute,
    shorten,
    shortens_tracebacks,
)
from ..workers.order import At
from ..workers.plan import State
from .closing import close_when_forgotten
from .delivery import LOANS, NamedBatch, NamedBatches, OwnArrays, TupleBatch, UnevenTop, make_tops
from .keywords import SourceLike, check_hook, check_keywords, check_reader_parameters, names_parameters
from .opening import Place, locate, open_declared, open_pipeline
from .sharding import warn_of_other_ranks, with_shard


class BatchReader(Closing):
    """Whole batches by name, made ahead of time in other processes.

        reader = BatchReader({"hdf5": {"path": "train.h5"}}, batch_size=64, shuffle=True)
        for batch in reader:                        # a mapping; an epoch, and the next loop is the next one
            train(batch["data"], batch["label"])
            state = reader.state_dict()             # load_state_dict(state) goes on with the next batch

    `source`: a mapping such as {"hdf5": {"path": …}}, or a Source; docs/sources.md has all kinds.
    `decode(sample, rng)`, `postprocess(batch)`: functions of yours, which run in the loaders; docs/your_code.md.
    The arrays are your own, for as long as anything refers to them. `tuples`: True for batches that are tuples in the
    order of the tops. `base_dir`: the folder of relative paths. `train`: False for centred crops and no
    mirroring. `device`: "" for NumPy arrays; "cpu", "cuda", "cuda:1" for torch tensors there. `epochs`: of one loop,
    None for one without an end. `blobfeed params NAME` explains the others.

    A loop that is left early is over: the next one begins with the next epochs; an endless one is continued. After
    Ctrl-C, `next` of the same loop returns the batch that was not received, from loaders that start anew; for a new
    loop that goes on there, call `load_state_dict(state_dict())`.

    Raises ParameterError, SourceError, and the errors of `decode` on its first sample. The first step of the first
    loop, or `start`, starts the processes.
    """

    _called: ClassVar[str] = "BatchReader"
    """The name of the user's class, for messages."""

    _receives: ClassVar[bool] = True
    """False where the caller of a loop's step says itself, by `delivery.before = None`, that the batch is received."""

    @names_parameters
    @shortens_tracebacks
    def __init__(
        self,
        source: SourceLike = None,
        *,
        decode: DecodeHook | None = None,
        postprocess: PostprocessHook | None = None,
        tuples: bool = False,
        base_dir: Path | str | None = None,
        train: bool = True,
        **parameters: Unpack[ReaderParameters],
    ) -> None:
        check_keywords(BatchReader, parameters)
        check_hook(self._called, "decode", decode)
        check_hook(self._called, "postprocess", postprocess)
        hooks = Hooks(decode, postprocess)
        self.parameters = with_shard(check_reader_parameters(self._called, source, parameters))
        self.tuples = tuples
        self.error: Exception | None = None
        """The error of a loop's last step. TensorFlow passes only its text on, as an UnknownError."""
        where = absolute(base_dir)
        opened = source
        if not isinstance(opened, AnySource):
            opened = open_declared(self.parameters, hooks, where)
            given = self.parameters
            self.parameters = msgspec.structs.replace(
                given,
                source=with_own_arrays(given.source, opened),
                mix=tuple(with_own_arrays(given.mix, opened)),
            )
        self.knows_samples = opened.known_samples > 0
        """False for a stream, whose length is known when all has been read."""
        # Without an end, so that the next loop's batches lie ready. A stream's function is asked for no later epoch.
        epochs = None if self.knows_samples else self.parameters.epochs
        self._pipeline = open_pipeline(
            msgspec.structs.replace(self.parameters, epochs=epochs),
            hooks,
            base_dir=where,
            train=train,
            source=opened,
            loans=LOANS if self.parameters.device in ("", "cpu") else 0,
        )
        if tuples:
            self._pipeline.plan.require_order(f"{self._called}: tuples=True gives arrays by position")
        self.tops = make_tops(self._pipeline.specs, self.parameters, where)
        self._batches = NamedBatches(self._pipeline, self.tops)
        self._warns_of_other_ranks = parameters.get("rank") is None and self.parameters.world_size == 1
        self._newest: object = None
        """The loop that was made last: no other one goes on."""
        self._span: _Span | None = None
        """The loop that began last."""
        self._is_asked = False
        """True while a thread is in `next`."""
        self._closed = False
        self._finalizer = close_when_forgotten(self, self._batches)

    # ---- the contents

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        """The shape and type of a sample in each top, by name; if samples vary, the largest shape."""
        return {
            top.name: ArraySpec(top.largest_shape(1)[1:], top.dtype, isinstance(top, UnevenTop)) for top in self.tops
        }

    def __repr__(self) -> str:
        tops = ", ".join(f"{name}: {spec}" for name, spec in self.specs.items())
        samples = ""
        with suppress(SourceError):  # unknown for a stream, or a sampler of epochs of any length
            samples = f"{self.samples:,} samples, "
        kind = self._pipeline.plan.source.kind
        return f"{type(self).__name__}({kind}, {samples}batch_size={self.parameters.batch_size}, {{{tops}}})"

    @property
    def samples(self) -> int:
        """The number of samples in an epoch, over all ranks; raises SourceError if it is unknown, as for a stream."""
        return self._pipeline.samples

    @property
    def batches_per_loop(self) -> int | None:
        """The number of batches of a loop, as in `len`; None if it is endless or unknown."""
        return self._pipeline.plan.batches_of(self.parameters.epochs, At(0, 0))

    @property
    def was_moved(self) -> bool:
        """True if a state was loaded and no loop was made since."""
        return self._newest is None

    def is_newest(self, loop: Iterator[NamedBatch]) -> bool:
        """Return False for a loop that is over, since another one was made after it or a state was loaded."""
        return isinstance(loop, _Loop) and loop._loop is self._newest

    def __len__(self) -> int:
        """Return the number of batches of a loop; raises TypeError for an endless one, or a stream.

        With `last_batch: wrap` a later loop may have one batch less, if a batch of the loop before reaches into it.
        """
        batches = self.batches_per_loop
        if batches is None and self.parameters.epochs is None:
            raise TypeError(
                "a BatchReader with epochs=None is endless and has no length: leave 'epochs' out for one epoch a loop"
            )
        if batches is None:
            raise TypeError(
                "a BatchReader of a stream has no length, nor has one of a user's own sampler: where an epoch ends is "
                "known when it has been drawn"
            )
        return batches

    def __bool__(self) -> bool:
        return True  # without it Python asks for the length, which an endless one has not

    # ---- loops

    def __getitem__(self, index: object) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__}[{index!r}]: a reader gives batches in a loop and has none by number: "
            "next(iter(reader)) is the next one; H5Dataset reads samples by index"
        )

    def __iter__(self) -> Iterator[NamedBatch]:
        return _Loop(self)

    def into(self, arrays: Mapping[str, Any]) -> Iterator[NamedBatch]:
        """Begin a loop whose batches are put into `arrays`, one for each top; each step overwrites the last batch.

        `arrays`: by the top's name, a C-contiguous NumPy array or torch tensor, shape (batch_size, *sample shape), the
        largest one where samples vary; tensors on a CUDA device if the reader's `device` is that one. Values are
        converted to the array's type as they are for a layer's blobs.

        Each batch holds the arrays themselves. A partial batch, or one of smaller samples, holds the start of each
        array's memory in its own shape; the rest of the array stays as it was. Raises ParameterError.
        """
        return _Loop(self, self._batches.own(arrays))

    def _next(self, loop: object, into: OwnArrays | None) -> NamedBatch | None:
        """Return the next batch of `loop`; None at the end."""
        self._check_open()
        if loop is not self._newest:
            raise PipelineClosed(
                "this loop is over: another loop over the same reader has begun, or a state was loaded; for two loops "
                "at a time use two readers"
            )
        span, batches = self._span, self._batches
        if span is None or span.loop is not loop:
            span = self._begin(loop, into)
        if span.end is None:
            return batches.next(into)
        if batches.delivery.progress.epoch >= span.end:
            return None
        try:
            return batches.next(into)
        except EndOfData:  # of a stream's loop
            if batches.delivery.progress.number > span.number:
                return None
        # A state of a stream that was saved behind a loop's last batch, before it was known to be the last.
        self._begin(loop, into)
        return self._next(loop, into)

    def _begin(self, loop: object, into: OwnArrays | None) -> _Span:
        if self._warns_of_other_ranks:
            self._warns_of_other_ranks = False
            warn_of_other_ranks()
        end, progress = self._span and self._span.end, self._batches.delivery.progress
        if end is not None and progress.epoch < end:
            self._batches.delivery.go_to(progress.plan_from(end).begin())
        self._batches.begin(own=into is not None)
        progress = self._batches.delivery.progress
        self._span = span = _Span(loop, loop_end(self.parameters.epochs, progress.epoch), progress.number)
        return span

    def _batches_left(self, loop: object) -> int:
        """Return the number of batches left in `loop`; raises TypeError as `len` does."""
        span, progress = self._span, self._batches.delivery.progress
        if span is not None and span.loop is not loop:  # the next loop: what is left of the last one does not count
            return len(self)
        end = loop_end(self.parameters.epochs, progress.epoch) if span is None else span.end
        left = None if end is None else progress.batches_before(end)
        return len(self) if left is None else left

    # ---- the start, states, counts, the end

    def start(self) -> None:
        """Start the loaders now, so that the first batches lie ready by the time they are asked for.

        It returns while they start. Call it behind `load_state_dict`, and before the model is built or restored. With
        `num_loaders: 0`, or if the trainer's process makes all batches, there is nothing to start. May be repeated.
        Raises RingAllocationError, DescriptorLimitError and the like.
        """
        self._check_open()
        self._pipeline.start()

    def state_dict(self) -> State:
        """Return the position of the next batch: a few plain values, for json, torch.save or another checkpoint."""
        return self._batches.delivery.progress.state()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from a saved `state`: the next loop begins with exactly the batch that would have come next.

        It may be called at any time; a loop in progress is over. Raises ParameterError if the state does not fit; then
        nothing has changed. Raises PipelineClosed in a fork.
        """
        self._check_open()
        self._pipeline.check_usable()
        plan = self._pipeline.plan.resumed(state)
        self._newest = self._span = None
        self._pipeline.forget_weights()
        self._batches.delivery.go_to(plan.begin())

    def locate(self, batches: int | np.integer | Iterable[int]) -> dict[int, list[Place]]:
        """Return epoch, index and place of each sample of these batches, by their `number`, past or coming.

        Reads no sample. A sampler's epochs are drawn once more, here. A bad sample that `on_error: replace` has
        replaced is named itself. Raises ParameterError if there is no such batch, for a batch before the state that
        the reader has gone on from if another run came there, and for a stream.
        """
        self._check_open()
        return locate(self._pipeline.plans, [int(batches)] if isinstance(batches, int | np.integer) else batches)

    def corners(self, indices: IndexArray) -> Mapping[str, IndexArray]:
        """Return where the patches with these indices, as `batch.indices` has them, begin along each axis.

        Raises ParameterError if the samples are no patches (docs/sources.md).
        """
        return self._pipeline.plan.source.corners(np.asarray(indices, np.int64))

    def set_weights(self, weights: object) -> None:
        """Draw by other weights, one for each sample of the source, in place of those of `sampler={"weights": …}`.

        They hold from the next epoch on, where other loaders start. A state names them by a digest: see docs/order.md.
        Raises ParameterError.
        """
        self._check_open()
        self._pipeline.set_weights(weights, received=self._batches.delivery.progress)

    def statistics(self) -> Statistics:
        """Return the counts since the reader was made, or last went to another position."""
        return self._pipeline.statistics()

    def close(self) -> None:
        """End the loaders and release everything, as a reader does that is collected as garbage."""
        self._closed = True
        self._finalizer()

    def _check_open(self) -> None:
        if self._closed:
            raise PipelineClosed("the reader has been closed; make a new one")


class DatasetOverReader(Closing):
    """A framework's dataset over a BatchReader."""

    reader: BatchReader

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.reader!r})"

    def __len__(self) -> int:
        return len(self.reader)

    def __bool__(self) -> bool:
        return True  # as of the reader

    def start(self) -> None:
        self.reader.start()

    def state_dict(self) -> State:
        return self.reader.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        self.reader.load_state_dict(state)

    def close(self) -> None:
        self.reader.close()


def owning_reader(dataset: Any, source: SourceLike, arguments: Any) -> BatchReader:
    """Return the reader of a dataset; raises ParameterError, also for `tuples`."""
    if "tuples" in arguments:
        raise ParameterError(f"{dataset.__name__} has its framework's own form of a batch: leave out 'tuples'")
    check_keywords(dataset, arguments)
    return BatchReader(source, **arguments)


class _Span(NamedTuple):
    """A loop that has begun, the first epoch behind it, and the number of its first batch."""

    loop: object
    end: int | None
    number: int


class _Loop(Iterator[NamedBatch]):
    """One loop over a reader. No generator, since one that Ctrl-C has left is over."""

    def __init__(self, reader: BatchReader, into: OwnArrays | None = None) -> None:
        self._reader = reader
        self._into = into
        self._loop = reader._newest = object()  # not this one itself: a reader without references shall end at once
        self._is_over = False

    def __len__(self) -> int:
        """Return the number of batches left; raises TypeError as the reader's `len` does. Progress bars ask for it."""
        return 0 if self._is_over else self._reader._batches_left(self._loop)

    def __bool__(self) -> bool:
        return True  # without it Python asks for the length, which an endless one has not

    def __next__(self) -> NamedBatch:
        __tracebackhide__ = True
        reader = self._reader
        if reader._is_asked:
            raise ConcurrentUseError(
                "two threads ask one reader for a batch at the same time: give each a reader of its own, or put a lock "
                "around next()"
            )
        # A plain flag: Ctrl-C comes with a call or a jump back, so never between `try` or `finally` and its assignment.
        try:
            reader._is_asked = True
            batch = None if self._is_over else reader._next(self._loop, self._into)
            reader.error = None
            delivery = reader._batches.delivery
            if batch is not None:
                # Typed as the result without it: a type of its own for each would make two classes of readers.
                received = cast("NamedBatch", TupleBatch(batch.values())) if reader.tuples else batch
                if reader._receives:  # last, with no call behind it: Ctrl-C in one would lose the batch
                    delivery.before = None
                return received
            self._is_over = True
        except Exception as error:
            reader.error = error
            shorten(error)
            raise
        finally:
            reader._is_asked = False
        raise StopIteration
