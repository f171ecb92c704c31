"""`for batch in reader`: the pipeline as a plain Python loop wants it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from ..workers.base.errors import EndOfData, PipelineClosed
from ..workers.base.hooks import DecodeHook, Hooks, PostprocessHook
from ..workers.base.specs import ArraySpec
from ..workers.base.statistics import Statistics
from ..workers.plan.plan import State
from .delivery.handout import NamedBatch
from .delivery.tops import UnevenTop
from .looped import LoopedPipeline, SourceLike


class BatchReader:
    """Whole batches by name, made ahead of time in other processes.

        reader = BatchReader({"hdf5": {"path": "train.h5"}}, batch_size=64, shuffle=True, epochs=1)
        for batch in reader:
            train(batch["data"], batch["label"])

    `source`: a mapping such as {"hdf5": {"path": …}}, or a Source. All parameters of a pipeline may be given by name.
    `decode(sample, rng)` and `postprocess(batch)` run in the loaders. `base_dir`: what relative paths are taken from,
    else the working directory. `train`: False for centred crops and no mirroring.

    `epochs`: each loop over the reader is so many epochs, and the next loop goes on with the following ones, shuffled
    anew; without it one loop never ends. A loop that is left early is over: the next one begins with the next epochs.
    (An endless loop has no next one, it is continued.)

    `device`: "" gives NumPy arrays; "cpu", "cuda", "cuda:1" torch tensors there. `copy=True`, the default, gives arrays
    of your own: keep them, collect them, write into them; memory that you let go is used again, so that a plain loop
    allocates nothing. `copy=False` spares the copy: what you get is the slot's own memory, writable, and valid until
    the next step of the loop only, when it is filled anew.

    Raises ParameterError, SourceError, and whatever `decode` raises on its first sample; processes are started by the
    first step of the first loop.
    """

    def __init__(
        self,
        source: SourceLike = None,
        *,
        decode: DecodeHook | None = None,
        postprocess: PostprocessHook | None = None,
        copy: bool | None = None,
        base_dir: Path | str | None = None,
        train: bool = True,
        **parameters: object,
    ) -> None:
        hooks = Hooks(decode, postprocess)
        self._feed = LoopedPipeline("BatchReader", source, hooks, parameters, copy=copy, base_dir=base_dir, train=train)
        self.parameters = self._feed.parameters
        self.copies = self._feed.copies
        self._loop = 0
        self._is_inside = False
        self._has_ended = False
        self._closed = False
        self._finalizer = weakref.finalize(self, LoopedPipeline.close, self._feed)

    # ---- what it gives

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        """What each sample of a batch has, by name; where it varies, the largest shape."""
        return {
            top.name: ArraySpec(top.largest_shape(1)[1:], top.dtype, isinstance(top, UnevenTop))
            for top in self._feed.tops
        }

    @property
    def samples(self) -> int:
        """Samples in an epoch, over all ranks; raises SourceError for a stream, which does not know."""
        return self._feed.pipeline.samples

    @property
    def is_indexed(self) -> bool:
        """False for a stream, which has neither length nor indices."""
        return self._feed.is_indexed

    @property
    def batches_per_loop(self) -> int | None:
        """What `len` says, or None where there is no telling."""
        return self._feed.loops.batches

    def __len__(self) -> int:
        """Batches of one whole loop; raises TypeError where it is endless, or a stream."""
        batches = self.batches_per_loop
        if batches is None and self.parameters.epochs is None:
            raise TypeError("a BatchReader without 'epochs' is endless and has no length; give epochs=1 for one")
        if batches is None:
            raise TypeError("a BatchReader of a stream has no length: where a stream ends is known when it has ended")
        return batches

    def __iter__(self) -> Iterator[NamedBatch]:
        self._loop += 1
        return self._batches(self._loop)

    def _batches(self, loop: int) -> Iterator[NamedBatch]:
        """One loop; only the one begun last goes on."""
        self._begin_loop(loop)
        state = self.state_dict()
        self._has_ended = False
        left, end_epoch = self._feed.loops.left(state), self._feed.loops.end_epoch(state)
        while left is None or left > 0:
            self._check(loop)
            try:
                if end_epoch is not None and self._feed.handout.next_epoch() >= end_epoch:
                    self._is_inside, self._has_ended = False, True
                    break
                batch = self._feed.handout.next()
            except EndOfData:
                self._has_ended = True
                break
            left = None if left is None else left - 1
            self._is_inside = left != 0
            yield batch
        self._feed.handout.take_back()

    def _begin_loop(self, loop: int) -> None:
        self._check(loop)
        if self._is_inside and self.parameters.epochs is not None:
            self._feed.jump(self._state_of_next_loop())
        self._is_inside = True

    def _check(self, loop: int) -> None:
        self._check_open()
        if loop != self._loop:
            raise PipelineClosed(
                "this loop is over: another loop over the same reader has begun, or a state was loaded; for two loops "
                "at a time use two readers"
            )

    # ---- states, counts, the end

    def state_dict(self) -> State:
        """Where the next batch stands: a few plain values, for json, torch.save or what else keeps a checkpoint."""
        return self._state_of_next_loop() if self._has_ended else self._feed.handout.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where `state` was saved: the next loop begins with exactly the batch that would have come next.

        It may be called at any time; a loop in progress is over. Raises ParameterError where the state does not fit.
        """
        self._check_open()
        self._feed.jump(state)
        self._loop += 1
        self._is_inside = self._has_ended = False

    def statistics(self) -> Statistics:
        """Counts since the reader was made, or last went to another position."""
        return self._feed.pipeline.statistics()

    def close(self) -> None:
        """End the loaders and give everything back. A reader that is forgotten does so too, when it is collected."""
        self._closed = True
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _state_of_next_loop(self) -> State:
        return self._feed.loops.next_loop(self._feed.handout.state_dict())

    def _check_open(self) -> None:
        if self._closed:
            raise PipelineClosed("the reader has been closed; make a new one")
