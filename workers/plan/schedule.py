"""The content of each slot, as the assembler asks for it: rounds of an order, some in each slot. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from ..order.drawn_order import DrawnOrder, DrawsFile
from ..order.epoch_order import EpochOrder
from ..order.rounds import Rounds, batch_sizes, between, part_of
from ..transport.messages import Announce, Draw, Drawn, Replaced, Run, WeightsChange


class Schedule(ABC):
    """The content of each group, requested by the assembler group by group in rising order; no I/O."""

    __slots__ = ()

    @property
    def can_be_cut(self) -> bool:
        """True if several loaders may make rows of one affinity."""
        return True

    @abstractmethod
    def has(self, group: int) -> bool:
        """Return true if the group exists by now; may be called until it does."""

    @abstractmethod
    def rows_of(self, group: int) -> int:
        """Return the number of rows to make."""

    def affinity(self, group: int, row: int) -> int | None:
        """Return the affinity of a row; None if any loader may make it.

        Rows of one affinity should be made by one loader, since they share storage chunks or a shard of a stream.
        """
        return None

    @abstractmethod
    def runs(self, group: int, first_row: int, rows: int) -> tuple[Run, ...]:
        """Return the samples of these rows."""

    def called(self, draw: Draw) -> str:
        """Return the name of a drawn epoch for messages."""
        return f"epoch {draw.epoch}"

    def wanted(self) -> Draw | None:
        """Return the epoch that a sampler is to draw next, once; its task has no number yet. None if there is none."""
        return None

    def use_file(self, file: DrawsFile) -> None:  # noqa: B027
        """Record the file that holds drawn epochs."""

    def note_weights(self, change: WeightsChange) -> None:  # noqa: B027
        """Record new weights of the sampler."""

    def note_drawn(self, draw: Draw, answer: Drawn) -> None:  # noqa: B027 - only a sampler draws
        """Record the answer to `draw`."""

    @abstractmethod
    def batch_rows(self, group: int, good_rows: int) -> tuple[int, ...]:
        """Return the number of rows of each batch that lies within the group's first `good_rows` rows."""

    def note_done(self, group: int, stream_rows: int) -> None:  # noqa: B027 - all that was asked for is there
        """Record that a loader has made rows of the group; `stream_rows`: the rows that a stream had for it."""

    @abstractmethod
    def sample_in(self, group: int, row: int, seen: int) -> tuple[int, int, str]:
        """Return (epoch, index, location) of the sample in `row`, as far as known; `seen`: the loader's last sample."""

    @abstractmethod
    def announcement(self, group: int, slot: int, replaced: Replaced, good_rows: int = -1) -> Announce | None:
        """Return the trainer's message about the group; None if the group has no batch for it.

        `good_rows`: if the run ends with a bad row of the group, the number of rows before it.
        """

    @property
    def complaint(self) -> str:
        """The reason why the run cannot continue; "" if it can."""
        return ""

    @property
    def cause(self) -> tuple[int, str]:
        """The exception behind the complaint: its number on the error channel and its traceback; (0, "") for none."""
        return 0, ""

    @property
    def finished(self) -> bool:
        """True if no more groups will come and the trainer needs a message; it needs none if it knows their number."""
        return False


@dataclass(slots=True)
class _Group:
    """The rounds of a slot. `ends`: see Announce."""

    runs: list[Run] = field(default_factory=list)
    rounds: int = 0
    ends: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class OrderedSchedule(Schedule):
    """`rounds_per_slot`: in each group; `rounds_in_first`: in the first one."""

    order: EpochOrder | DrawnOrder
    rounds: Rounds
    rounds_per_slot: int
    rounds_in_first: int
    _open: _Group = field(default_factory=_Group)
    """The next group, as far as lengths are known."""
    _groups: dict[int, _Group] = field(default_factory=dict)
    _drawn: DrawnOrder | None = field(init=False)
    """The order, if it is drawn; asked for several times a batch."""

    def __post_init__(self) -> None:
        self._drawn = self.order if isinstance(self.order, DrawnOrder) else None

    @property
    def _batch_size(self) -> int:
        return self.rounds.parameters.batch_size

    @property
    def _is_over(self) -> bool:
        return self.rounds.ended or (self._drawn is not None and self._drawn.failure is not None)

    # ---- groups

    def has(self, group: int) -> bool:
        if group in self._groups:
            return True
        most, following = self.rounds_per_slot if group else self.rounds_in_first, self._open
        while following.rounds < most:
            placed = self.rounds.place(following.rounds * self._batch_size, most - following.rounds)
            if placed is None:
                break
            following.runs += placed.runs
            following.rounds += placed.rounds
            if self._drawn is not None:
                first, size = placed.runs[0], self._batch_size
                following.ends += [(first.epoch, first.position + size * n) for n in range(1, placed.rounds)]
                following.ends.append(placed.end)
        if following.rounds == most or (following.rounds and self._is_over):
            self._groups[group], self._open = following, _Group()
        return group in self._groups

    def rows_of(self, group: int) -> int:
        return self._groups[group].rounds * self._batch_size

    def runs(self, group: int, first_row: int, rows: int) -> tuple[Run, ...]:
        return tuple(between(self._groups[group].runs, first_row, first_row + rows))

    def affinity(self, group: int, row: int) -> int | None:
        """Return the row's window in a chunked order. Rows of one window share chunks: one loader decodes them once."""
        if not isinstance(self.order, EpochOrder) or not self.order.has_windows:
            return None
        run = self._run_at(group, row)
        return self.order.window_at(run.epoch * self.order.samples + run.position + max(0, row - run.row))

    def _run_at(self, group: int, row: int) -> Run:
        """Return the run that holds `row`, or the last one before it, behind a short batch."""
        return [run for run in self._groups[group].runs if run.row <= row][-1]

    def batch_rows(self, group: int, good_rows: int) -> tuple[int, ...]:
        size, sizes = self._batch_size, batch_sizes(self._groups[group].runs, self._batch_size)
        return tuple(rows for place, rows in enumerate(sizes) if place * size + rows <= good_rows)

    def sample_in(self, group: int, row: int, seen: int) -> tuple[int, int, str]:
        run = self._run_at(group, row)
        indices, epochs, _ = self.order.samples_of(part_of(run, min(max(0, row - run.row), run.rows - 1), 1))
        return int(epochs[0]), int(indices[0]), ""

    def announcement(self, group: int, slot: int, replaced: Replaced, good_rows: int = -1) -> Announce | None:
        made = self._groups[group]
        good = made.rounds if good_rows < 0 else len(self.batch_rows(group, good_rows))
        del self._groups[group]
        if not good:
            return None
        runs = made.runs if good == made.rounds else list(between(made.runs, 0, good * self._batch_size))
        if self._drawn is None:
            return Announce(group, slot, replaced, tuple(runs))
        return Announce(group, slot, replaced, tuple(runs), tuple(made.ends[:good]), self._drawn.indices(runs))

    # ---- draws

    def called(self, draw: Draw) -> str:
        name = self._drawn.about.name if self._drawn is not None else ""
        return f"{name}, epoch {draw.epoch}"

    def use_file(self, file: DrawsFile) -> None:
        if self._drawn is not None:
            self._drawn.file = file

    def wanted(self) -> Draw | None:
        if self._drawn is None:
            return None
        groups = (*self._groups.values(), self._open)
        in_use = next((group.runs[0].offset for group in groups if group.runs), None)
        self._drawn.free(self.rounds.epoch, in_use)
        return None if self.rounds.ended else self._drawn.wanted(self.rounds.epoch)

    def note_drawn(self, draw: Draw, answer: Drawn) -> None:
        if self._drawn is not None:
            self._drawn.note_drawn(draw, answer)

    def note_weights(self, change: WeightsChange) -> None:
        if self._drawn is not None:
            self._drawn.note_weights(change, self.rounds.epoch)

    # ---- the end

    @property
    def _all_announced(self) -> bool:
        return self._is_over and not self._groups and not self._open.runs

    @property
    def complaint(self) -> str:
        failed = self._drawn.failure if self._drawn is not None else None
        return (self.rounds.failure if failed is None else failed.failure) if self._all_announced else ""

    @property
    def cause(self) -> tuple[int, str]:
        failed = self._drawn.failure if self._drawn is not None else None
        return (0, "") if failed is None else (failed.cause, failed.traceback)

    @property
    def finished(self) -> bool:
        """A trainer that knows the number of batches needs no message."""
        return self._drawn is not None and self._all_announced and not self.complaint
