"""The content of each slot, as the assembler asks for it: rounds of an order or of a stream, some in each slot. Pure.

A *group* is the content of one slot. The assembler asks for groups in rising order. Lengths of drawn epochs and of a
stream's shards become known on the way, so a group may have to wait, and a stream's group may turn out to be empty.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..order.drawn_order import DrawnOrder, DrawsFile
from ..order.rounds import Rounds, batch_sizes, between
from ..order.shard_rounds import ShardRounds
from ..transport.messages import Announce, Draw, Drawn, Replaced, Run


@dataclass(slots=True)
class _Group:
    """The rounds of a slot. `ends`: see Announce. `had`: the batch that a stream had for it, once that is known."""

    runs: list[Run] = field(default_factory=list)
    rounds: int = 0
    ends: list[tuple[int, int]] = field(default_factory=list)
    had: list[Run] = field(default_factory=list)


@dataclass(slots=True)
class Schedule:
    """`rounds_per_slot`: in each group; `rounds_in_first`: in the first one. `drawn`: the order if a sampler draws."""

    rounds: Rounds | ShardRounds
    rounds_per_slot: int = 1
    rounds_in_first: int = 1
    drawn: DrawnOrder | None = None
    _open: _Group = field(default_factory=_Group)
    """The next group, as far as lengths are known."""
    _groups: dict[int, _Group] = field(default_factory=dict)

    @property
    def _batch_size(self) -> int:
        return self.rounds.parameters.batch_size

    @property
    def _failed_draw(self) -> Drawn | None:
        return None if self.drawn is None else self.drawn.failure

    @property
    def _is_over(self) -> bool:
        return self.rounds.ended or self._failed_draw is not None

    # ---- groups

    @property
    def can_be_cut(self) -> bool:
        """True if several loaders may make rows of one affinity."""
        return self.rounds.can_be_cut

    def has(self, group: int) -> bool:
        """Return true if the group exists by now; may be called until it does."""
        if group in self._groups:
            return True
        most, following = self.rounds_per_slot if group else self.rounds_in_first, self._open
        while following.rounds < most:
            placed = self.rounds.place(following.rounds * self._batch_size, most - following.rounds)
            if placed is None:
                break
            following.runs += placed.runs
            following.rounds += placed.rounds
            if not self.rounds.is_computed:
                size, inner = self._batch_size, range(1, placed.rounds)  # of several rounds there is one run
                following.ends += [(run.epoch, run.position + size * n) for run in placed.runs for n in inner]
                following.ends.append(placed.end)
        if following.rounds == most or (following.rounds and self._is_over):
            self._groups[group], self._open = following, _Group()
        return group in self._groups

    def rows_of(self, group: int) -> int:
        """Return the number of rows to make."""
        return self._groups[group].rounds * self._batch_size

    def runs(self, group: int, first_row: int, rows: int) -> tuple[Run, ...]:
        """Return the samples of these rows."""
        return tuple(between(self._groups[group].runs, first_row, first_row + rows))

    def affinity(self, group: int, row: int) -> int | None:
        """Return the affinity of a row; None if any loader may make it.

        Rows of one affinity should be made by one loader, since they share storage chunks or a shard of a stream.
        """
        run = self._run_at(group, row)
        return self.rounds.affinity(run, row - run.row)

    def _run_at(self, group: int, row: int) -> Run:
        """Return the run that holds `row`, or the last one before it, behind a short batch."""
        return [run for run in self._groups[group].runs if run.row <= row][-1]

    def note_done(self, group: int, stream_rows: int) -> None:
        """Record that a loader has made rows of the group; `stream_rows`: the rows that a stream had for it."""
        made = self._groups[group]
        if not self.can_be_cut:
            made.had = self.rounds.note_rows(made.runs[0], stream_rows)

    def batch_rows(self, group: int, good_rows: int) -> tuple[int, ...]:
        """Return the number of rows of each batch that lies within the group's first `good_rows` rows."""
        return batch_sizes(self._good(self._groups[group], good_rows), self._batch_size)

    def _batches(self, made: _Group) -> list[Run]:
        return made.runs if self.can_be_cut else made.had

    def _good(self, made: _Group, good_rows: int) -> list[Run]:
        """Return the batches that lie within the first `good_rows` rows."""
        size = self._batch_size
        ends = [place * size + rows for place, rows in enumerate(batch_sizes(made.runs, size))]
        good = sum(end <= good_rows for end in ends)
        return list(between(self._batches(made), 0, good * size))

    def sample_in(self, group: int, row: int, seen: int) -> tuple[int, int, str]:
        """Return (epoch, index, location) of the sample in `row`, as far as known; `seen`: the loader's last sample."""
        run = self._run_at(group, row)
        return self.rounds.sample_in(run, row - run.row, seen)

    def announcement(self, group: int, slot: int, replaced: Replaced, good_rows: int = -1) -> Announce | None:
        """Return the trainer's message about the group; None if the group has no batch for it.

        `good_rows`: if the run ends with a bad row of the group, the number of rows before it.
        """
        made = self._groups.pop(group)
        runs = self._batches(made) if good_rows < 0 else self._good(made, good_rows)
        if not runs:
            return None
        if self.rounds.is_computed:
            return Announce(group, slot, replaced, tuple(runs))
        indices = b"" if self.drawn is None else self.drawn.indices(runs)
        return Announce(group, slot, replaced, tuple(runs), tuple(made.ends), indices)

    # ---- draws

    def called(self, draw: Draw) -> str:
        """Return the name of a drawn epoch for messages."""
        return f"{'' if self.drawn is None else self.drawn.about.name}, epoch {draw.epoch}"

    def use_file(self, file: DrawsFile) -> None:
        """Record the file that holds drawn epochs."""
        if self.drawn is not None:
            self.drawn.file = file

    def wanted(self) -> Draw | None:
        """Return the epoch that a sampler is to draw next, once; its task has no number yet. None if there is none."""
        if self.drawn is None:
            return None
        groups = (*self._groups.values(), self._open)
        in_use = next((group.runs[0].offset for group in groups if group.runs), None)
        self.drawn.free(self.rounds.epoch, in_use)
        return None if self.rounds.ended else self.drawn.wanted(self.rounds.epoch)

    def note_drawn(self, draw: Draw, answer: Drawn) -> None:
        """Record the answer to `draw`."""
        if self.drawn is not None:
            self.drawn.note_drawn(draw, answer)

    # ---- the end

    def go_on(self) -> None:
        """Go on with the next loop over a stream."""
        self.rounds.ended = False

    @property
    def _all_announced(self) -> bool:
        return self._is_over and not self._groups and not self._open.runs

    @property
    def complaint(self) -> str:
        """The reason why the run cannot continue; "" if it can."""
        failed = self._failed_draw
        return (self.rounds.failure if failed is None else failed.failure) if self._all_announced else ""

    @property
    def cause(self) -> tuple[int, str]:
        """The exception behind the complaint: its number on the error channel and its traceback; (0, "") for none."""
        failed = self._failed_draw
        return (0, "") if failed is None else (failed.cause, failed.traceback)

    @property
    def finished(self) -> bool:
        """True if no more groups will come and the trainer needs a message; it needs none if it knows their number."""
        return not self.rounds.is_computed and self._all_announced and not self.complaint
