"""`num_loaders: auto` against simulated trainers with a ring and loaders on shared cores: near the best number."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from blobfeed.workers.assembly import AutoScale, Work, first_loaders
from hypothesis import given
from hypothesis import strategies as st

from tests.support.part import examples, some_of

START_S = 0.03
"""A loader is ready so long after it was wanted."""


def _always(value: float) -> Callable[[float], float]:
    return lambda now: value


@dataclass(eq=False)
class _Loader:
    ready_at: float
    group: int = -1
    begun: float = 0.0
    left_s: float = 0.0
    dismissed: bool = False

    @property
    def is_idle(self) -> bool:
        return self.group < 0


@dataclass
class Run:
    """A trainer that takes a group, releases it and computes for `step`, and loaders that make it in `tasks` tasks.

    One loader takes `make_s` for a group. More loaders than `cores` take turns, and each loses the fraction `harm`.
    """

    make_s: float
    step: Callable[[float], float] = lambda now: 0.0
    cores: Callable[[float], float] = lambda now: 1e9
    tasks: int = 4
    slots: int = 5
    harm: float = 0.0
    most: int = 8
    seconds: float = 20.0
    first: int = 0
    """The number of loaders at the beginning, in place of the usual one."""
    taken: list[float] = field(default_factory=list)
    """The times at which the trainer took a group."""
    wanted: list[int] = field(default_factory=list)
    """The number of loaders at these times."""

    def with_loaders(self, number: int) -> int:
        return self._simulate(number, None)

    def with_auto(self) -> int:
        first = self.first or first_loaders(self.make_s, self.most)
        return self._simulate(first, AutoScale(self.most, first))

    def best(self) -> int:
        return max(self.with_loaders(number) for number in range(1, self.most + 1))

    def _simulate(self, number: int, auto: AutoScale | None) -> int:
        """Return the number of groups that the trainer takes."""
        chance, now, work, assigned, done = random.Random(1), 0.0, Work(), 0, Counter[int]()
        loaders, asked_at, busy_until = [_Loader(START_S) for _ in range(number)], 0.0, 0.0
        taken, wanted = self.taken, self.wanted
        taken.clear()
        wanted.clear()
        while now < self.seconds:
            loaders = [loader for loader in loaders if not (loader.dismissed and loader.is_idle)]
            there = [loader for loader in loaders if loader.ready_at <= now and not loader.dismissed]
            for loader in there:
                if loader.is_idle and assigned // self.tasks < len(taken) + self.slots:
                    loader.group, loader.begun, assigned = assigned // self.tasks, now, assigned + 1
                    loader.left_s = self.make_s / self.tasks * chance.uniform(0.8, 1.2)
            if busy_until <= now and done[len(taken)] == self.tasks:
                waited_s = now - max(asked_at, busy_until)
                taken.append(now)
                wanted.append(len(there))
                busy_until = asked_at = now + self.step(now)
                ready = done[len(taken)] == self.tasks
                if auto and auto.observe(now, waited_s=waited_s, ready=ready, loaders=len(there), work=work):
                    loaders += [_Loader(now + START_S) for _ in range(auto.wanted - len(there))]
                    for loader in there[auto.wanted :]:
                        loader.dismissed = True
            working = [loader for loader in loaders if not loader.is_idle]
            sharing = max(1.0, len(working) / self.cores(now))
            speed = 1 / sharing / (1 + self.harm * max(0.0, len(working) - self.cores(now)))
            events = [now + loader.left_s / speed for loader in working]
            events += [loader.ready_at for loader in loaders if loader.ready_at > now]
            events += [busy_until] if busy_until > now else []
            before, now = now, min(*events, now + 0.05)
            for loader in working:
                loader.left_s -= (now - before) * speed
                if loader.left_s < 1e-9:
                    done[loader.group] += 1
                    work = Work(work.busy_s + now - loader.begun, work.rows + 1)
                    loader.group = -1
        return len(taken)


RUNS = {
    "digits": Run(0.002, tasks=1),
    "digits beside a step": Run(0.002, _always(0.010), tasks=1),
    "pictures": Run(0.008, tasks=1),
    "pictures beside a step": Run(0.008, _always(0.010), tasks=1),
    "JPEG": Run(0.160, tasks=16),
    "JPEG beside a step": Run(0.160, _always(0.030), tasks=16),
    "JPEG beside a long step": Run(0.160, _always(0.100), tasks=16),
    "gzip beside a step": Run(0.050, _always(0.010), tasks=5),
    "floats beside a step": Run(0.020, _always(0.012), tasks=2),
    "batches of a second": Run(1.0, _always(0.300), tasks=1, seconds=60),
    "samples of ten seconds": Run(10.0, _always(1.5), tasks=1, slots=9, seconds=200),
    "a ring that hides the shortage": Run(0.020, lambda now: 1.0 if now < 1 else 0.012, slots=16, tasks=2, first=1),
    "a step that changes its pace": Run(0.040, lambda now: 0.1 if now % 10 < 5 else 0.01, seconds=40),
    "cores that others take for a while": Run(
        0.040, _always(0.01), lambda now: 2.0 if 5 < now < 25 else 8.0, harm=0.05, seconds=40
    ),
    "two cores of eight": Run(0.040, cores=_always(2), harm=0.1),
    "a loader that is in the way": Run(0.020, cores=_always(1), harm=0.5, most=2),
}


@pytest.mark.parametrize("name", some_of(RUNS, 3))
def test_it_is_within_five_per_cent_of_the_best_number(name: str) -> None:
    assert RUNS[name].with_auto() >= 0.95 * RUNS[name].best()


@examples(15)
@given(
    make_s=st.floats(0.02, 0.1),
    need=st.floats(0.3, 7.5),
    tasks=st.integers(1, 8),
    slots=st.integers(3, 9),
    first=st.integers(1, 8),
)
def test_it_finds_the_number_from_wherever_it_begins(
    make_s: float, need: float, tasks: int, slots: int, first: int
) -> None:
    run = Run(make_s, _always(make_s / need), tasks=tasks, slots=slots, first=first)
    run.with_auto()
    mine = sum(now > 10 for now in run.taken)
    run.with_loaders(8)
    assert mine >= 0.95 * sum(now > 10 for now in run.taken)


def test_loaders_that_have_nothing_to_do_end() -> None:
    run = Run(0.010, _always(0.020), first=8)
    run.with_auto()
    assert (run.wanted[0], run.wanted[-1]) == (8, 1)


def test_loaders_that_are_needed_now_and_then_stay() -> None:
    run = replace(RUNS["a step that changes its pace"], seconds=100.0)
    run.with_auto()
    late = [number for now, number in zip(run.taken, run.wanted, strict=True) if now > 60]
    assert min(late) >= 4


@dataclass
class Windows:
    """Half seconds of observations. `auto` has as many loaders as it wants, but for those that are still `starting`."""

    auto: AutoScale
    now: float = 0.0
    work: Work = field(default_factory=Work)
    starting: int = 0

    def next(self, *, waits: bool, busy: float, row_s: float = 0.01) -> int:
        """Return the number that is wanted behind a window in which `busy` loaders were busy, `row_s` with a row."""
        for _ in range(8 if self.now else 9):  # the first observation begins the first window
            self.work = Work(self.work.busy_s + busy * 0.06, self.work.rows + round(busy * 0.06 / row_s))
            self.now += 0.06
            wait_s = 0.03 if waits else 0.0
            there = self.auto.wanted - self.starting
            self.auto.observe(self.now, waited_s=wait_s, ready=not waits, loaders=there, work=self.work)
        return self.auto.wanted


def test_nothing_is_decided_while_a_loader_starts() -> None:
    windows = Windows(AutoScale(8, first=2), starting=1)
    assert [windows.next(waits=True, busy=1.0) for _ in range(5)] == [2] * 5


def test_idle_loaders_end_after_a_calm_time_and_not_before() -> None:
    windows = Windows(AutoScale(8, first=8))
    wanted = [windows.next(waits=False, busy=1.0) for _ in range(6)]
    assert wanted[:3] == [8, 8, 8]
    assert wanted[-1] == 2


def test_a_trial_that_failed_is_repeated_after_a_pause() -> None:
    windows = Windows(AutoScale(2))
    wanted = [windows.next(waits=True, busy=1.0) for _ in range(8)]
    assert wanted[:4] == [2, 1, 1, 1]
    assert 2 in wanted[4:]


@pytest.mark.parametrize(("row_s", "wanted"), [(0.0075, 2), (0.009, 1), (0.011, 1), (0.0135, 2)])
def test_a_trial_that_failed_is_repeated_at_once_where_the_rate_of_rows_is_another(row_s: float, wanted: int) -> None:
    windows = Windows(AutoScale(2))
    assert [windows.next(waits=True, busy=1.0) for _ in range(2)] == [2, 1]
    assert windows.next(waits=True, busy=1.0, row_s=row_s) == wanted


def test_fewer_are_tried_where_rows_take_long_since_cores_are_shared() -> None:
    windows = Windows(AutoScale(4, first=4))
    assert windows.next(waits=False, busy=4.0, row_s=0.01) == 4
    assert windows.next(waits=True, busy=4.0, row_s=0.02) == 3


@examples(100)
@given(
    most=st.integers(1, 12),
    seen=st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10), st.booleans(), st.integers(0, 12)), max_size=300),
)
def test_whatever_is_observed_there_is_at_least_one_and_never_more_than_the_most(
    most: int, seen: list[tuple[float, float, bool, int]]
) -> None:
    auto, now, rows = AutoScale(most), 0.0, 0
    for elapsed_s, waited_s, ready, loaders in seen:
        now, rows, before = now + elapsed_s, rows + loaders, auto.wanted
        changed = auto.observe(now, waited_s=waited_s, ready=ready, loaders=loaders, work=Work(now, rows))
        assert changed == (auto.wanted != before)
        assert 1 <= auto.wanted <= most


@pytest.mark.parametrize(("batch_s", "loaders"), [(0.0, 1), (0.025, 1), (0.026, 2), (0.160, 7), (9.0, 8)])
def test_the_first_number_makes_a_batch_every_25_ms(batch_s: float, loaders: int) -> None:
    assert first_loaders(batch_s, 8) == loaders
