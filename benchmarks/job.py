"""The parameters of one run, and its figures: plain values, since they travel as JSON between two environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Job:
    """One entrant on one work, in a fresh process. Times in seconds.

    `seconds`: how long to measure, from `warmup_s` after the opening on; at least `batches` batches in any case.
    """

    entrant: str
    work: str
    samples: int
    seconds: float
    warmup_s: float
    batches: int = 8


@dataclass(frozen=True)
class Figures:
    """The figures of a run. A batch is `Work.batch_size` samples, however many an entrant hands over at a time.

    `stall_s`: mean time per batch in which the trainer had no batch, the copy into its own memory included.
    `first_second_per_s`: samples per second from the opening until a second later.
    `longest_wait_s`: the longest wait for one batch, from the opening to the end of the measurement.
    `own_bytes`, `shared_bytes`, `data_bytes`: peak PSS of all processes (see `processes.Memory`).
    """

    samples_per_s: float
    stall_s: float
    trainer_cpu_s: float
    all_cpu_s: float
    first_batch_s: float
    first_second_per_s: float
    longest_wait_s: float
    own_bytes: int
    shared_bytes: int
    data_bytes: int
    processes: int

    @property
    def first_second_part(self) -> float:
        """The rate of the first second, the start included, as a part of the settled one."""
        return self.first_second_per_s / self.samples_per_s

    @property
    def beside_ring_bytes(self) -> int:
        """All but the memory that the processes share on purpose: for blobfeed, all but the ring."""
        return self.own_bytes - self.shared_bytes


@dataclass(frozen=True)
class Outcome:
    """The result of one run: figures, or why there are none ("not installed: grain")."""

    figures: Figures | None = None
    reason: str = ""


@dataclass(frozen=True)
class Result:
    """The results of all rounds of one entrant on one work."""

    rounds: tuple[Figures, ...] = ()
    reason: str = ""

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> Result:
        rounds = tuple(outcome.figures for outcome in outcomes if outcome.figures is not None)
        reasons = [outcome.reason for outcome in outcomes if outcome.reason]
        return cls(rounds, reasons[0] if reasons else "")

    def median(self, metric: str) -> float | None:
        """The median round's figure; None where no round has one."""
        values = [float(getattr(figures, metric)) for figures in self.rounds]
        return median(values) if values else None

    def spread(self, metric: str) -> float:
        """The distance from the least to the greatest round, as a part of the median; 0.0 where there is none."""
        values = [float(getattr(figures, metric)) for figures in self.rounds]
        middle = median(values) if values else 0.0
        return (max(values) - min(values)) / middle if middle else 0.0
