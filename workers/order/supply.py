"""The seam to what says which samples come: computed orders, samplers, streams. Pure.

A supply is made once, in the trainer, and sent with the plan. It has four verbs:

    land         where a state lands, or a run begins: an epoch, and an item in it
    rounds       the rounds from there on, one batch for each rank: the next one, or not known yet, or the end
    samples_of   the samples of a run of rows
    identify     what identifies a place in a state

An *item* is what the ranks share out: a sample, a whole batch if a sampler gives batches, or a batch of the shards in
turn. Whoever needs to know more asks the supply, and never which kind it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn, Protocol

import msgspec
import numpy as np

from ..api import IndexArray, Parameters
from ..base import ParameterError, SourceError
from ..transport import Draw, Drawn, Give, Run, SharedFile
from .cut import At, Cut


class DrawnEpoch(msgspec.Struct, frozen=True):
    """An epoch. `indices`: the samples in order, shape (samples,). `sizes`: its batches' sizes, or None."""

    indices: IndexArray
    sizes: IndexArray | None = None


class Placed(NamedTuple):
    """`rounds` rounds, whose batches of this rank are `runs`. `ends`: see Announce."""

    runs: list[Run]
    rounds: int
    ends: Sequence[At]


class DrawsFile(Protocol):
    """The shared file that holds draws and sizes of batches; offsets and sizes in bytes."""

    def read(self, offset: int, count: int, kind: type[np.int64], /) -> IndexArray: ...

    def free(self, offset: int, size: int, /) -> None: ...


class Draws:
    """The epochs that loaders draw for the rounds: none, unless the supply overrides this."""

    failure: Drawn | None = None
    """The reason why the epoch that is needed could not be drawn."""

    def use_file(self, file: DrawsFile) -> None:
        """Use the file, which holds the drawn epochs."""

    def called(self, epoch: int) -> str:
        """Return the name of an epoch for messages."""
        return f"epoch {epoch}"

    def wanted(self, epoch: int) -> Draw | None:
        """Return the next epoch to draw if the rounds stand in `epoch`, each once; None if there is none."""
        return None

    def note_drawn(self, draw: Draw, answer: Drawn) -> None:
        """Record the answer to `draw`."""
        raise TypeError(f"no epoch is drawn, and {draw!r} got {answer!r}")

    def indices(self, runs: Sequence[Run]) -> bytes:
        """Return the sample of each row of `runs`, as int64, if they were drawn."""
        return b""

    def free(self, epoch: int, in_use: int | None) -> None:
        """Give back the memory of epochs before `epoch` that lie before the offset `in_use`; None: none is in use."""


class Rounds(ABC):
    """The rounds of a supply from a place on, for one assembler.

    `ended`: no round follows; `failure`: the reason, if that is not the end of a loop over a stream, or of all epochs.
    """

    parameters: Parameters
    epoch: int
    item: int
    ended: bool
    failure: str
    draws: Draws = Draws()

    can_be_cut: bool = True
    """True if several loaders may make rows of one affinity."""

    is_computed: bool = False
    """True if the trainer can compute where each round begins, and so knows the end."""

    advice: str = ""
    """What to do about a sample on which loaders die, if it is not to repair it."""

    @abstractmethod
    def place(self, row: int, most: int) -> Placed | None:
        """Return the next round, in rows from `row` on; None while that is not known, and at the end.

        It returns several rounds, at most `most`, if their samples of this rank make one run. None, too, if `row` is
        not 0 and the rows before it must be a task by themselves.
        """

    def give(self, given: Give) -> None:  # noqa: B027 - most rounds are known without
        """Note what a batch is to hold, where the trainer says that; a message that comes again changes nothing."""

    def note_rows(self, runs: list[Run], rows: int) -> list[Run]:
        """Record that a stream had `rows` rows for the batch `runs`; returns what it holds then, [] for nothing."""
        return runs

    @abstractmethod
    def affinity(self, run: Run, skipped: int) -> int | None:
        """Return the affinity of the row `skipped` rows behind the first one of `run`; None if there is none."""

    @abstractmethod
    def sample_in(self, run: Run, skipped: int, seen: int) -> tuple[int, int, str]:
        """Return (epoch, index, location) of the sample, as far as known; `seen`: the loader's last sample."""


class Supply(ABC):
    """Says which samples come, and in which order. `given`: the run's parameters."""

    name: str = ""
    """For messages."""
    items: int | None = None
    """The items of every epoch; None if a length is known only when its epoch is read."""
    gives_batches: bool = False
    """True if an item is a batch and not a sample."""
    is_computed: bool = False
    """True if the samples at any place are computed, and no user's code says them."""
    was_changed: bool = False
    """True if earlier epochs had another supply: weights were set."""
    parts: int = 0
    """The parts that one loader each reads from its start, as a stream's shards: more loaders have nothing to do, and
    one that comes later reads a part again. 0 for none."""
    descriptors: tuple[int, ...] = ()
    """File descriptors that drawing needs; the loaders inherit them under the same numbers."""
    fixed: tuple[str, ...] = ()
    """The names in a state that must be equal for the same batches to follow."""
    not_located: str = ""
    """The reason why batches cannot be located, if they cannot."""

    # ---- the four verbs

    @abstractmethod
    def land(self, given: Parameters, state: Mapping[str, int | str] | None = None) -> tuple[Supply, At]:
        """Return where `state`, which was checked, lands, and the supply there; None: where a run begins."""

    @abstractmethod
    def rounds(self, given: Parameters, at: At) -> Rounds:
        """Return the rounds from `at` on."""

    @abstractmethod
    def samples_of(self, run: Run) -> tuple[IndexArray, IndexArray, IndexArray]:
        """Return the samples of `run`, the epoch of each, and the number of each (see Sample); shape (rows,)."""

    @abstractmethod
    def identify(self, given: Parameters, at: At) -> dict[str, int | str]:
        """Return what identifies the place in a state, by name."""

    # ---- what follows from them

    def cut(self, given: Parameters) -> Cut:
        """Return the cut of epochs into rounds, as far as their lengths are known before they are read."""
        return Cut(given, self.items, gives_batches=self.gives_batches)

    def epochs_of(self, run: Run) -> IndexArray:
        """Return the epoch of each sample of `run`, shape (rows,)."""
        return np.full(run.rows, run.epoch, np.int64)

    def among(self, run: Run) -> range:
        """Return the positions of the epoch whose samples may take the place of a bad one of `run`."""
        return range(run.position, run.position + run.rows)

    @abstractmethod
    def batch_key(self, run: Run, batch_size: int) -> tuple[int, ...]:
        """Return what identifies a batch that begins with `run`, for its random numbers."""

    @property
    def samples(self) -> int:
        """The samples in an epoch, over all ranks; raises SourceError where that is unknown."""
        raise SourceError(f"{self.name} says how many samples an epoch has when it has drawn it")

    def epoch_of(self, given: Parameters, epoch: int) -> DrawnEpoch:
        """Return the samples of `epoch`, for all ranks; raises ParameterError if they have no indices."""
        raise ParameterError(f"the samples of {self.name} have no indices, so no sampler says which come")

    # ---- with drawn epochs

    def with_file(self, file: SharedFile) -> Supply:
        """Return this supply with the file that holds drawn epochs."""
        return self

    def draw(self, task: Draw, given: Parameters) -> Drawn:
        """Draw an epoch into the file; raises what a sampler does."""
        raise TypeError(f"{self.name} draws no epochs, and got the task {task!r}")

    def file_parts(self, runs: Iterable[Run]) -> Iterator[tuple[int, int]]:
        """Yield (offset, number of draws) of what the samples of `runs` are read from, for a loader on another host."""
        yield from ()

    def require_sendable(self) -> None:  # noqa: B027 - most hold no code of the user's
        """Raise ParameterError if a part of this cannot be sent to the loaders."""

    def reweighed(self, weights: object) -> Supply:
        """Return this supply with other weights, one for each sample; raises ParameterError."""
        raise_no_weights(f"{self.name} and no sampler with weights")


def raise_no_weights(has: str) -> NoReturn:
    """Raise the error of set_weights where the pipeline `has` no weighted sampler."""
    raise ParameterError(
        f"set_weights: this pipeline has {has}: declare sampler: {{weights: FILE, draws: n}}, or {{draws: n}} to begin "
        "with equal ones"
    )
