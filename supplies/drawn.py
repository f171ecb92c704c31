"""The supply of a run with a sampler: epochs are drawn one ahead, into a shared file. Pure, except for that file.

A loader draws; the assembler has the DrawnEpochs; loaders read the draws that a run names. Some samplers say how
long an epoch is only when they have drawn it.

A draw is one int64: a sample index and the count of its earlier draws. So each draw has its own random numbers:
otherwise all copies of a rare class would be augmented in the same way. A sample's first draw equals its index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from ..workers.api import IndexArray, Parameters
from ..workers.base import ParameterError
from ..workers.order import At, DrawnEpoch, Draws, DrawsFile, Rounds, Supply
from ..workers.transport import Draw, Drawn, Packed, Run, SharedFile
from .samplers import AboutSampler, Sampler, draw_epoch
from .walk import Walk

_INDEX_BYTES = 8
_INDEX_BITS = 48

MOST_SAMPLES = 1 << _INDEX_BITS

_MOST_TIMES = (1 << 63 - _INDEX_BITS) - 1
"""The largest count of earlier draws. Draws beyond it share their random numbers."""


@dataclass(kw_only=True)
class DrawnSupply(Supply):
    """A sampler that draws from a source of `source_samples` samples, packed for the loader that draws.

    `about`: what others know of it. The sampler is unpickled at the first draw: often that imports torch, which loaders
    that never draw do not need.
    """

    sampler: Packed[Sampler]
    about: AboutSampler
    source_samples: int
    descriptors: tuple[int, ...] = ()
    was_changed: bool = False
    _file: SharedFile | None = field(default=None, repr=False)

    fixed = ("samples", "seed", "sampler", "order")

    @classmethod
    def by(cls, sampler: Sampler, samples: int) -> DrawnSupply:
        """Pack the sampler; raises ParameterError for more samples than it can number."""
        if samples > MOST_SAMPLES:
            raise ParameterError(
                f"{sampler.about.name} chooses among at most 2**48 samples, and the source has {samples}"
            )
        packed = Packed(sampler, parts={sampler.about.name: sampler})
        return cls(sampler=packed, about=sampler.about, source_samples=samples, descriptors=sampler.descriptors)

    def __post_init__(self) -> None:
        about = self.about
        self.name, self.items, self.gives_batches = about.name, about.length, about.gives_batches

    # ---- the verbs

    def land(self, given: Parameters, state: Mapping[str, int | str] | None = None) -> tuple[Supply, At]:
        return self, At(0, 0) if state is None else At(int(state["epoch"]), int(state["position"]))

    def rounds(self, given: Parameters, at: At) -> Rounds:
        drawn = DrawnEpochs(given, self.about)
        rounds = Walk(drawn, given, at)
        rounds.draws = drawn
        return rounds

    def samples_of(self, run: Run) -> tuple[IndexArray, IndexArray, IndexArray]:
        return _samples_of(self._file, run)

    def identify(self, given: Parameters, at: At) -> dict[str, int | str]:
        return {
            "epoch": at.epoch,
            "position": at.item,
            "samples": self.source_samples,
            "sampler": self.about.name,
            "order": self.about.declared,
        }

    @property
    def samples(self) -> int:
        return super().samples if self.items is None or self.gives_batches else self.items

    def among(self, run: Run) -> range:
        return range(run.of)

    def batch_key(self, run: Run, batch_size: int) -> tuple[int, ...]:
        return run.epoch, run.position

    def epoch_of(self, given: Parameters, epoch: int) -> DrawnEpoch:
        size = given.batch_size
        return draw_epoch(self.sampler.value, epoch, seed=given.seed, samples=self.source_samples, batch_size=size)

    # ---- drawing

    def with_file(self, file: SharedFile) -> DrawnSupply:
        return replace(self, _file=file)

    def draw(self, task: Draw, given: Parameters) -> Drawn:
        assert self._file is not None
        drawn = self.epoch_of(given, task.epoch)
        end = self._file.write(task.offset, draws_of(drawn.indices))
        if drawn.sizes is not None:
            self._file.write(end, drawn.sizes)
        return Drawn(len(drawn.indices), 0 if drawn.sizes is None else len(drawn.sizes))

    def file_parts(self, runs: Iterable[Run]) -> Iterator[tuple[int, int]]:
        yield from ((_offset_of(run), run.rows) for run in runs)

    def require_sendable(self) -> None:
        self.sampler.require_sendable(to_all=False)

    def reweighed(self, weights: object) -> DrawnSupply:
        sampler = self.sampler.value.reweighed(weights, self.source_samples)
        return replace(self.by(sampler, self.source_samples), was_changed=True)


class _Epoch(msgspec.Struct, frozen=True):
    """A drawn epoch. `starts`: the first sample of each of its batches, and the end, if it was drawn in batches."""

    offset: int
    size: int
    samples: int
    items: int
    starts: IndexArray | None = None


@dataclass(slots=True)
class DrawnEpochs(Draws):
    """The epochs that are drawn, one ahead of the rounds, in the assembler.

    `failure`: the reason why an epoch could not be drawn.
    """

    parameters: Parameters
    about: AboutSampler
    file: DrawsFile = field(init=False, repr=False)
    failure: Drawn | None = None
    _failed: dict[int, Drawn] = field(default_factory=dict)
    _drawn: dict[int, _Epoch] = field(default_factory=dict)
    _needed: int | None = None
    _asked: Draw | None = None
    _file_end: int = 0

    @property
    def gives_batches(self) -> bool:
        return self.about.gives_batches

    @property
    def is_computed(self) -> bool:
        return False

    def use_file(self, file: DrawsFile) -> None:
        self.file = file

    # ---- for the rounds

    def length(self, epoch: int) -> int | None:
        """Return the items of the epoch; None while it is awaited, and if it could not be drawn."""
        found = self._drawn.get(epoch)
        self._needed = epoch if found is None else None
        self.failure = self._failed.get(epoch)
        return None if found is None else found.items

    def run(self, row: int, epoch: int, item: int, items: int) -> Run:
        drawn = self._drawn[epoch]
        if drawn.starts is not None:
            item, end = int(drawn.starts[item]), int(drawn.starts[item + items])
            items = end - item
        return Run(row, items, epoch, item, drawn.offset, of=drawn.samples)

    def called(self, epoch: int) -> str:
        return f"{self.about.name}, epoch {epoch}"

    def samples_of(self, run: Run) -> tuple[IndexArray, IndexArray, IndexArray]:
        return _samples_of(self.file, run)

    def affinity(self, run: Run, skipped: int) -> None:
        return None

    # ---- draws

    def wanted(self, epoch: int) -> Draw | None:
        """Return the next epoch to draw if the rounds stand in `epoch`, each once."""
        if self._asked is not None or self.failure is not None:
            return None
        epochs = self.parameters.epochs
        due = [] if self._needed is None else [self._needed]
        due += [each for each in (epoch, epoch + 1) if epochs is None or each < epochs]
        first = next((each for each in due if each not in self._drawn and each not in self._failed), None)
        if first is not None:
            self._asked = Draw(0, first, self._file_end)
        return self._asked

    def note_drawn(self, draw: Draw, answer: Drawn) -> None:
        """Record the answer to `draw`."""
        self._asked = None
        if answer.failure:
            self._failed[draw.epoch] = answer
            return
        size, starts = _INDEX_BYTES * (answer.indices + answer.batches), None
        if answer.batches:
            sizes = self.file.read(draw.offset + _INDEX_BYTES * answer.indices, answer.batches, np.int64)
            starts = np.concatenate([[0], np.cumsum(sizes)])
        items = answer.batches or answer.indices
        self._drawn[draw.epoch] = _Epoch(draw.offset, size, answer.indices, items, starts)
        self._file_end = draw.offset + size

    def indices(self, runs: Sequence[Run]) -> bytes:
        """Return the sample of each row of `runs`, as int64."""
        return b"".join(self.samples_of(run)[0].tobytes() for run in runs)

    def free(self, epoch: int, in_use: int | None) -> None:
        """Give back the memory of epochs before `epoch` that lie before the offset `in_use`; None: none is in use."""
        for past, drawn in list(self._drawn.items()):
            if past < epoch and (in_use is None or drawn.offset + drawn.size <= in_use):
                del self._drawn[past]
                self.file.free(drawn.offset, drawn.size)


def draws_of(indices: IndexArray) -> IndexArray:
    """Return the draws of an epoch with these sample indices, in order; both have the shape (samples,)."""
    order = np.argsort(indices, kind="stable")
    is_first = np.diff(indices[order], prepend=-1) != 0
    if is_first.all():
        return indices
    times = np.arange(len(indices))
    times -= np.maximum.accumulate(np.where(is_first, times, 0))
    draws = np.empty_like(indices)
    draws[order] = np.minimum(times, _MOST_TIMES) << _INDEX_BITS
    draws += indices
    return draws


def samples_in(draws: IndexArray) -> IndexArray:
    """Return the sample indices of `draws`, in the same shape."""
    return draws & (MOST_SAMPLES - 1)


def _offset_of(run: Run) -> int:
    return run.offset + _INDEX_BYTES * run.position


def _samples_of(file: DrawsFile | None, run: Run) -> tuple[IndexArray, IndexArray, IndexArray]:
    assert file is not None
    draws = file.read(_offset_of(run), run.rows, np.int64)
    return samples_in(draws), np.full(run.rows, run.epoch, np.int64), draws
