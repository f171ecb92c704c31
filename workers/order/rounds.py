"""The sequence of batches that the rounds of a supply make, as the assembler asks for them. Pure.

A *run* is a row of consecutive samples of one epoch. Lengths become known on the way, so the sequence waits for the
draw of an epoch, and a batch of a stream may turn out to be empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from ..transport import Announce, Draw, Failure, Give, Replaced, Run
from .supply import Draws, Rounds


def between(runs: Iterable[Run], first_row: int, end: int) -> Iterator[Run]:
    """Yield the parts of `runs` in rows first_row … end-1."""
    for run in runs:
        skipped, rows = max(0, first_row - run.row), min(run.row + run.rows, end) - max(run.row, first_row)
        if rows > 0:
            yield run if rows == run.rows else part_of(run, skipped, rows)


def by_batch(runs: Iterable[Run], batch_size: int) -> dict[int, list[Run]]:
    """Return the runs of each batch, by its place among them; each begins `batch_size` rows behind the one before."""
    batches: dict[int, list[Run]] = {}
    for run in runs:
        done = 0
        while done < run.rows:
            place, within = divmod(run.row + done, batch_size)
            rows = min(run.rows - done, batch_size - within)
            batches.setdefault(place, []).append(run if rows == run.rows else part_of(run, done, rows))
            done += rows
    return batches


def _counted_from(row: int, runs: Iterable[Run]) -> tuple[Run, ...]:
    """Return `runs` with their rows counted from `row` on."""
    return tuple(runs) if not row else tuple(msgspec.structs.replace(run, row=run.row - row) for run in runs)


def part_of(run: Run, skipped: int, rows: int) -> Run:
    """Return the `rows` rows behind the first `skipped` ones of `run`, or any others of its epoch."""
    return Run(run.row + skipped, rows, run.epoch, run.position + skipped, run.offset, run.shard, run.of)


# ---- the sequence of batches


@dataclass(slots=True)
class _Stretch:
    """Batches that were placed together, of which only the last may be short; their rows adjoin.

    `ends`: see Announce. `runs`: of a stream that has made the batch, what it had.
    """

    first: int
    runs: list[Run] = field(default_factory=list)
    rounds: int = 0
    ends: list[tuple[int, int]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        last = self.runs[-1]
        return last.row + last.rows


@dataclass(slots=True)
class Schedule:
    """The sequence of a run's batches, counted from 0: the samples of each, from when it is opened until it is told.

    Rows count as in Run.
    """

    rounds: Rounds
    opened: int = 0
    """The number of batches that were opened."""
    _stretches: dict[int, _Stretch] = field(default_factory=dict)
    """By batch."""

    @property
    def batch_size(self) -> int:
        return self.rounds.parameters.batch_size

    @property
    def draws(self) -> Draws:
        return self.rounds.draws

    @property
    def _is_over(self) -> bool:
        return self.rounds.ended or self.draws.failure is not None

    # ---- batches

    def give(self, given: Give) -> None:
        """See Rounds."""
        self.rounds.give(given)

    @property
    def can_be_cut(self) -> bool:
        """True if several loaders may make rows of one affinity."""
        return self.rounds.can_be_cut

    @property
    def advice(self) -> str:
        """What to do about a sample on which loaders die, if it is not to repair it."""
        return self.rounds.advice

    def open(self, most: int) -> int:
        """Open the next batches, at most `most`; returns their number, 0 if none is known by now."""
        size, new = self.batch_size, _Stretch(self.opened)
        while new.rounds < most and (not new.runs or new.rows == new.rounds * size):
            placed = self.rounds.place(new.rounds * size, most - new.rounds)
            if placed is None:
                break
            new.runs += placed.runs
            new.rounds += placed.rounds
            new.ends += placed.ends
        self._stretches.update(dict.fromkeys(range(self.opened, self.opened + new.rounds), new))
        self.opened += new.rounds
        return new.rounds

    def _found(self, batch: int, row: int) -> tuple[_Stretch, int]:
        """Return the stretch of `batch`, and where a row of that lies in it."""
        stretch = self._stretches[batch]
        return stretch, (batch - stretch.first) * self.batch_size + row

    def rows_of(self, batch: int) -> int:
        """Return the number of rows to make."""
        stretch, first = self._found(batch, 0)
        return min(self.batch_size, stretch.rows - first)

    def runs(self, batch: int, first_row: int, rows: int) -> tuple[Run, ...]:
        """Return the samples of these rows, which may go on into the batches behind `batch`."""
        stretch, first = self._found(batch, first_row)
        return _counted_from(first - first_row, between(stretch.runs, first, first + rows))

    def affinity(self, batch: int, row: int) -> int | None:
        """Return the affinity of a row; None if any loader may make it.

        Rows of one affinity should be made by one loader, since they share storage chunks or a shard of a stream.
        """
        run, skipped = self._sample_at(batch, row)
        return self.rounds.affinity(run, skipped)

    def _sample_at(self, batch: int, row: int) -> tuple[Run, int]:
        """Return the run that holds the row, or the last one before it, and the rows of that run before it."""
        stretch, row = self._found(batch, row)
        run = [run for run in stretch.runs if run.row <= row][-1]
        return run, row - run.row

    def note_done(self, batch: int, stream_rows: int) -> None:
        """Record that a loader has made rows of the batch; `stream_rows`: the rows that a stream had for it."""
        made = self._stretches[batch]
        made.runs = self.rounds.note_rows(made.runs, stream_rows)

    def sample_in(self, batch: int, row: int, seen: int) -> tuple[int, int, str]:
        """Return (epoch, index, location) of the sample in `row`, as far as known; `seen`: the loader's last sample."""
        return self.rounds.sample_in(*self._sample_at(batch, row), seen)

    def told(self, batch: int, end: int) -> int:
        """Return how many of the batches from `batch` to `end`-1 one message tells of: those opened together."""
        stretch = self._stretches[batch]
        return min(end, stretch.first + stretch.rounds) - batch

    def announcement(self, batch: int, count: int, slot: int, replaced: Replaced) -> Announce | None:
        """Return the trainer's message about `count` batches from `batch` on; None if a stream had none there.

        They were opened together, and are forgotten with this.
        """
        stretch, first = self._found(batch, 0)
        for each in range(batch, batch + count):
            del self._stretches[each]
        runs = _counted_from(first, between(stretch.runs, first, first + count * self.batch_size))
        if not runs:
            return None
        ends = tuple(stretch.ends[batch - stretch.first :][:count])
        return Announce(batch, slot, replaced, runs, ends, self.draws.indices(runs))

    # ---- draws

    def wanted(self) -> Draw | None:
        """Return the epoch that a sampler is to draw next, once; its task has no number yet. None if there is none."""
        in_use = next((run.offset for stretch in self._stretches.values() for run in stretch.runs), None)
        self.draws.free(self.rounds.epoch, in_use)
        return None if self.rounds.ended else self.draws.wanted(self.rounds.epoch)

    # ---- the end

    @property
    def _all_announced(self) -> bool:
        return self._is_over and not self._stretches

    @property
    def failure(self) -> Failure | None:
        """The reason why the run cannot continue; None if it can."""
        if not self._all_announced:
            return None
        if (drawn := self.draws.failure) is not None:
            return Failure("SourceError", drawn.failure, cause=drawn.cause, traceback=drawn.traceback)
        return Failure("SourceError", self.rounds.failure) if self.rounds.failure else None

    @property
    def finished(self) -> bool:
        """True if no more batches will come and the trainer needs a message; it needs none if it knows their number."""
        return not self.rounds.is_computed and self._all_announced and self.failure is None
