"""`for batch in reader`: the pipeline as a plain Python loop wants it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Unpack, cast

from ..workers.base.closing import Closing
from ..workers.base.errors import ConcurrentUseError, EndOfData, ParameterError, PipelineClosed, SourceError
from ..workers.base.hooks import DecodeHook, Hooks, PostprocessHook
from ..workers.base.parameters import ReaderParameters
from ..workers.base.specs import ArraySpec
from ..workers.base.statistics import Statistics
from ..workers.base.tracebacks import shortened, shortens_tracebacks
from ..workers.plan.locating import Place, locate
from ..workers.plan.state import State
from .delivery.named_batches import NamedBatch, NamedBatches, TupleBatch
from .delivery.own_arrays import OwnArrays
from .delivery.tops import UnevenTop
from .keywords import check_keywords, names_parameters
from .looped import LoopedPipeline, SourceLike, close_when_forgotten


class BatchReader(Closing):
    """Whole batches by name, made ahead of time in other processes.

        reader = BatchReader({"hdf5": {"path": "train.h5"}}, batch_size=64, shuffle=True, epochs=1)
        for batch in reader:
            train(batch["data"], batch["label"])

    `source`: a mapping such as {"hdf5": {"path": …}}, or a Source. All parameters of a pipeline may be given by name.
    `decode(sample, rng)` and `postprocess(batch)` run in the loaders; `sampler` and `batch_sampler` say which samples
    an epoch has (docs/order.md). `base_dir`: what relative paths are taken from, else the working directory. `train`:
    False for centred crops and no mirroring.

    `epochs`: each loop over the reader is so many epochs, and the next loop goes on with the following ones, shuffled
    anew, whose last batch is smaller if `batch_size` does not divide it (`last_batch` says otherwise); without it one
    loop never ends. A loop that is left early is over: the next one begins with the next epochs.
    (An endless loop has no next one, it is continued.) After Ctrl-C, or an error, `next` of the same loop gives the
    batch that had not been given; for a new loop that goes on there, `load_state_dict(state_dict())`.

    `device`: "" gives NumPy arrays; "cpu", "cuda", "cuda:1" torch tensors there. `copy=True`, the default, gives arrays
    of your own: keep them, collect them, write into them; memory that you let go is used again, so that a plain loop
    allocates nothing. `copy=False` spares the copy: what you get is the slot's own memory, writable, and valid until
    the next step of the loop only, when it is filled anew. `tuples=True` gives tuples of them in the order of the tops,
    for `for data, label in reader`, in place of NamedBatches, which are dicts and so unpack to their names.

    Raises ParameterError, SourceError, and whatever `decode` raises on its first sample; processes are started by the
    first step of the first loop, or by `start`.
    """

    @names_parameters
    @shortens_tracebacks
    def __init__(
        self,
        source: SourceLike = None,
        *,
        decode: DecodeHook | None = None,
        postprocess: PostprocessHook | None = None,
        copy: bool | None = None,
        tuples: bool = False,
        base_dir: Path | str | None = None,
        train: bool = True,
        **parameters: Unpack[ReaderParameters],
    ) -> None:
        check_keywords(BatchReader, parameters)
        hooks = Hooks(decode, postprocess)
        self._feed = LoopedPipeline("BatchReader", source, hooks, parameters, copy=copy, base_dir=base_dir, train=train)
        self.parameters = self._feed.parameters
        self.copies = self._feed.copies
        self.tuples = tuples
        self.error: Exception | None = None
        """What the last step of a loop raised. TensorFlow passes only its text on, as an UnknownError."""
        self._newest: _Span | None = None
        """Of the loop that was asked for last: no other one goes on."""
        self._begun: _Span | None = None
        """Of the loop that began last."""
        self._is_asked = False
        """A thread is in `next`."""
        self._closed = False
        self._finalizer = close_when_forgotten(self, self._feed)

    # ---- what it gives

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        """What each sample of a batch has, by name; where it varies, the largest shape."""
        return {
            top.name: ArraySpec(top.largest_shape(1)[1:], top.dtype, isinstance(top, UnevenTop))
            for top in self._feed.tops
        }

    def __repr__(self) -> str:
        tops = ", ".join(f"{name}: {spec}" for name, spec in self.specs.items())
        source = self._feed.pipeline.plan.source
        samples = ""
        with suppress(SourceError):  # of a stream, or a sampler that says it epoch by epoch
            samples = f"{self.samples:,} samples, "
        return f"{type(self).__name__}({source.kind}, {samples}batch_size={self.parameters.batch_size}, {{{tops}}})"

    @property
    def samples(self) -> int:
        """Samples in an epoch, over all ranks; raises SourceError for a stream, or a sampler, that does not know."""
        return self._feed.pipeline.samples

    @property
    def is_indexed(self) -> bool:
        """False for a stream, which has neither length nor indices."""
        return self._feed.is_indexed

    @property
    def batches_per_loop(self) -> int | None:
        """What `len` says, or None where there is no telling."""
        return self._feed.loops.batches

    @property
    def was_moved(self) -> bool:
        """A state has been loaded, and no loop has been asked for since."""
        return self._newest is None

    def __len__(self) -> int:
        """Batches of one whole loop; raises TypeError where it is endless, or a stream."""
        batches = self.batches_per_loop
        if batches is None and self.parameters.epochs is None:
            raise TypeError("a BatchReader without 'epochs' is endless and has no length; give epochs=1 for one")
        if batches is None:
            raise TypeError(
                "a BatchReader of a stream has no length, nor has one of a user's own sampler: where an epoch ends is "
                "known when it has been drawn"
            )
        return batches

    def __bool__(self) -> bool:
        return True  # without it Python asks for the length, which an endless one has not

    def __iter__(self) -> Iterator[NamedBatch]:
        self._newest = span = _Span()
        return _Loop(self, span)

    def into(self, arrays: Mapping[str, Any]) -> Iterator[NamedBatch]:
        """Begin a loop whose batches are put into `arrays`, one for each top; each step overwrites the last batch.

        `arrays`: by the top's name, a C-contiguous NumPy array or torch tensor, shape (batch_size, *sample shape), the
        largest one where samples vary; tensors on a CUDA device if the reader's `device` is that one. Values are
        converted to the array's type as they are for a layer's blobs.

        Each batch holds the arrays themselves. A partial batch, or one of smaller samples, holds the start of each
        array's memory in its own shape; the rest of the array stays as it was. Raises ParameterError.
        """
        if not self.copies:
            raise ParameterError("into: the reader was made with copy=False, which copies nothing: leave it out")
        own = self._feed.batches.own(arrays)
        self._newest = span = _Span()
        return _Loop(self, span, own)

    def _next(self, span: _Span, into: OwnArrays | None) -> NamedBatch | None:
        """The next batch within `span`, the same one again until it is received; None at the end."""
        self._check_open()
        if span is not self._newest:
            raise PipelineClosed(
                "this loop is over: another loop over the same reader has begun, or a state was loaded; for two loops "
                "at a time use two readers"
            )
        if span.batches is not self._feed.batches:
            self._begin(span)
        batches = self._feed.batches
        try:
            if span.end is not None and batches.count >= span.end:
                return None
            if span.end_epoch is not None and int(batches.delivery.state_dict()["epoch"]) >= span.end_epoch:
                span.has_ended = True
                return None
            return batches.next(into)
        except EndOfData:
            span.has_ended = span.has_drained = True
            if batches.count:
                return None
        self._begin(span)  # a stream's state was saved at the last batch of a loop, as nobody could know then
        return self._next(span, into)

    def _begin(self, span: _Span) -> None:
        if self.parameters.epochs is not None and self._begun is not None and self._begun.is_left(self._feed.batches):
            left = None if self._begun.end is None else self._begun.end - self._feed.batches.count
            self._feed.go_to(self._state_of_next_loop(), left)
        state, batches = self.state_dict(), self._feed.batches
        self._feed.begin_loop(state)
        left = self._feed.loops.left(state)
        span.end = None if left is None else batches.count + left
        span.end_epoch = self._feed.loops.end_epoch(state)
        span.has_ended = span.has_drained = False
        span.batches = batches
        self._begun = span

    # ---- the start, states, counts, the end

    def start(self) -> None:
        """Start the loaders now, so that the first batches lie ready by the time they are asked for.

        It returns while they start. Call it behind `load_state_dict`, and before the model is built or restored. With
        `num_loaders: 0`, or where the trainer's process makes all batches, there is nothing to start. May be repeated.
        Raises RingAllocationError, DescriptorLimitError and the like.
        """
        self._check_open()
        self._feed.pipeline.start(ahead=True)

    def state_dict(self) -> State:
        """Where the next batch stands: a few plain values, for json, torch.save or what else keeps a checkpoint."""
        begun = self._begun
        if begun is not None and begun.has_ended and begun.batches is self._feed.batches:
            return self._state_of_next_loop()
        return self._feed.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where `state` was saved: the next loop begins with exactly the batch that would have come next.

        It may be called at any time; a loop in progress is over. Raises ParameterError where the state does not fit.
        """
        self._check_open()
        self._feed.jump(state)
        self._newest = None

    def locate(self, batches: int | Iterable[int]) -> dict[int, list[Place]]:
        """Return epoch, index and place of each sample of these batches, by their `number`, past or coming.

        Reads no sample. A sampler's epochs are drawn once more, here. A bad sample that `on_error: replace` has
        replaced is named itself. Raises ParameterError if there is no such batch, for a batch before the state that
        the reader has gone on from if another run came there, and for a stream.
        """
        self._check_open()
        return locate(self._feed.pipeline.plan, [batches] if isinstance(batches, int) else batches)

    def set_weights(self, weights: object) -> None:
        """Draw by other weights, one for each sample of the source: those of `sampler={"weights": …}` count no more.

        They count from the first epoch on of which no batch may have been planned: see docs/order.md. `state_dict` has
        them. Raises ParameterError.
        """
        self._check_open()
        received = self._feed.batches.delivery.progress
        self._feed.pipeline.set_weights(weights, received=received)

    def statistics(self) -> Statistics:
        """Counts since the reader was made, or last went to another position."""
        return self._feed.pipeline.statistics()

    def close(self) -> None:
        """End the loaders and give everything back. A reader that is forgotten does so too, when it is collected."""
        self._closed = True
        self._finalizer()

    def _state_of_next_loop(self) -> State:
        state, begun = self._feed.state_dict(), self._begun
        if begun is not None and begun.end_epoch is not None and int(state["epoch"]) >= begun.end_epoch:
            return state  # the loop's last batch said that it was the last of its epochs
        return self._feed.loops.next_loop(state)

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


class _Span:
    """What one loop covers, once it has begun. Nothing is counted down: the end is compared with the count."""

    def __init__(self) -> None:
        self.batches: NamedBatches | None = None
        """What it began on: after a jump the reader has another."""
        self.end: int | None = None
        self.end_epoch: int | None = None
        self.has_ended = False
        self.has_drained = False
        """The pipeline itself has come to its end."""

    def is_left(self, batches: NamedBatches) -> bool:
        """Whether a loop that begins on `batches` has to jump over what is left of this one."""
        if self.batches is not batches or self.has_drained:
            return self.batches is batches
        return not self.has_ended and (self.end is None or batches.count < self.end)


class _Loop(Iterator[NamedBatch]):
    """One loop over a reader. No generator: one that Ctrl-C has left is over, and this goes on with the same batch."""

    def __init__(self, reader: BatchReader, span: _Span, into: OwnArrays | None = None) -> None:
        self._reader = reader
        self._span = span
        self._into = into
        self._is_over = False

    def __len__(self) -> int:
        """Batches that are left of the loop; raises TypeError as the reader's `len` does. Progress bars ask for it."""
        span, feed, begun = self._span, self._reader._feed, self._reader._begun
        if span.batches is None and (begun is None or begun.batches is not feed.batches):
            left = feed.loops.left(feed.state_dict())  # fewer than a whole loop has, if a state was loaded
            return len(self._reader) if left is None else left
        if span.batches is None or span.end is None:
            return len(self._reader)
        return max(0, span.end - span.batches.count)

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
            batch = None if self._is_over else reader._next(self._span, self._into)
            reader.error = None
            delivery = reader._feed.batches.delivery
            if batch is not None:
                delivery.filled = None
                # Typed as what a loop gives without it: a type of its own for each would make two classes of readers.
                return cast("NamedBatch", TupleBatch(batch.values())) if reader.tuples else batch
            delivery.end_loans()
            self._is_over = True
        except Exception as error:
            reader.error = error
            raise shortened(error)  # noqa: B904 - itself
        finally:
            reader._is_asked = False
        raise StopIteration
