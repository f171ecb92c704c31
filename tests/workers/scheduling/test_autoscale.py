"""`num_loaders: auto` against simulated trainers and loaders: it ends with the fewest loaders that suffice."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
from blobfeed.workers.scheduling import AutoScale
from hypothesis import assume, given, settings
from hypothesis import strategies as st

UNNOTICED = 0.03
"""Part of the time that the trainer may wait for data and still count as not waiting."""


@dataclass
class Run:
    """A trainer that computes for `compute_s` a group, and loaders of which each makes one in `make_s`.

    No more than `cores` loaders ever make progress together.
    """

    compute_s: float
    make_s: float
    cores: float = math.inf

    def unit_s(self, loaders: int) -> float:
        """Time from one group to the next once everything is in its stride."""
        return max(self.compute_s, self.make_s / min(loaders, self.cores))

    def waits(self, loaders: int) -> float:
        """Part of the time that the trainer waits."""
        return 1 - self.compute_s / self.unit_s(loaders)

    def simulate(self, most: int, groups: int = 3000) -> list[int]:
        """The number of loaders wanted after each group."""
        now, wanted = 100.0, []
        auto = AutoScale(most, now)
        for _ in range(groups):
            unit_s = self.unit_s(auto.wanted)
            now += unit_s
            auto.observe(unit_s - self.compute_s, now)
            wanted.append(auto.wanted)
        return wanted


def enough(run: Run, most: int) -> int:
    return next((n for n in range(1, most) if run.waits(n) <= UNNOTICED), most)


RUNS = st.builds(Run, compute_s=st.floats(0.001, 1.0), make_s=st.floats(0.001, 5.0))


@settings(max_examples=200)
@given(run=RUNS, most=st.integers(1, 16))
def test_it_settles_on_the_fewest_loaders_that_suffice_one_at_a_time_and_never_more(run: Run, most: int) -> None:
    assume(all(abs(run.waits(n) - UNNOTICED) > 1e-6 for n in range(1, most + 1)))
    wanted = [1, *run.simulate(most)]
    assert wanted[-1] == max(wanted) == enough(run, most)
    assert all(step in (0, 1) for step in (b - a for a, b in itertools.pairwise(wanted)))


@pytest.mark.parametrize("cores", [1, 2, 3, 5])
def test_a_loader_that_does_not_help_is_taken_back(cores: int) -> None:
    # The trainer waits all the time; from some number on another loader only takes turns with the others.
    wanted = Run(compute_s=0.001, make_s=0.1, cores=cores).simulate(most=16)
    assert max(wanted) == cores + 1
    assert wanted[-1] == cores


def test_a_loader_that_is_in_the_way_of_the_others_is_taken_back() -> None:
    auto = AutoScale(8, 0.0)
    now = 0.0
    for _ in range(500):
        now += 0.02 if auto.wanted == 1 else 0.03
        auto.observe(0.01, now)
    assert (auto.wanted, auto.settled) == (1, True)


def test_each_window_has_all_its_groups() -> None:
    auto = AutoScale(8, 0.0)
    changed = [number for number in range(1, 17) if auto.observe(60.0, 60.0 * number)]
    assert changed == [16]  # two windows of eight: in the first window the loaders were still starting


def test_one_that_helps_a_little_is_kept() -> None:
    assert Run(compute_s=0.001, make_s=0.1, cores=1.2).simulate(most=2)[-1] == 2


@settings(max_examples=100)
@given(
    most=st.integers(1, 12),
    observed=st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), max_size=300),
)
def test_whatever_is_observed_there_is_at_least_one_and_never_more_than_the_most(
    most: int, observed: list[tuple[float, float]]
) -> None:
    auto, now = AutoScale(most, 0.0), 0.0
    settled_on = None
    for waited_s, elapsed_s in observed:
        now += elapsed_s
        before = auto.wanted, auto.settled
        changed = auto.observe(waited_s, now)
        assert changed or before == (auto.wanted, auto.settled)
        assert 1 <= auto.wanted <= most
        settled_on = settled_on or (auto.wanted if auto.settled else None)
        assert settled_on in (None, auto.wanted)


def test_nothing_is_decided_while_the_first_loader_starts() -> None:
    auto = AutoScale(8, 0.0)
    for number in range(1, 8):
        assert not auto.observe(0.3, 0.3 * number)
    assert not auto.observe(0.3, 3.0)
    assert (auto.wanted, auto.settled) == (1, False)


def test_a_trainer_that_does_not_wait_keeps_one_loader() -> None:
    auto, now = AutoScale(8, 0.0), 0.0
    while not auto.settled:
        now += 0.1
        auto.observe(0.0, now)
    assert auto.wanted == 1
    assert now < 5


def test_a_trainer_that_waits_for_the_unnoticed_part_and_no_longer_keeps_one_loader() -> None:
    auto = AutoScale(8, 0.0)
    for number in range(1, 17):
        auto.observe(8 * UNNOTICED if number % 8 == 0 else 0.0, float(number))
    assert (auto.wanted, auto.settled) == (1, True)
