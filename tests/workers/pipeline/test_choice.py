"""Whether the trainer reads itself or has loaders read, against simulated trainers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from blobfeed.workers.pipeline.choice import Choice, LocalOrLoaders
from hypothesis import assume, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.pure

START_S = 0.3


@dataclass
class Run:
    """A trainer that computes for `compute_s` a batch; itself it reads one in `local_s`, loaders bring one in
    `loaders_s` while it computes."""

    compute_s: float
    local_s: float
    loaders_s: float

    def batch_s(self, is_local: bool) -> float:
        return self.compute_s + self.local_s if is_local else max(self.compute_s, self.loaders_s)

    @property
    def waits(self) -> float:
        """The share of its time, if it reads itself."""
        return self.local_s / self.batch_s(True)


class Simulation:
    """Runs one after the other under one choice."""

    def __init__(self, first_loaders_s: float = 0.0) -> None:
        """`first_loaders_s`: what loaders take for a batch in their first 0.9 seconds, while they are few."""
        self.choice = LocalOrLoaders(0.0)
        self._first_loaders_s = first_loaders_s
        self.now = self.waited = 0.0
        self.changes: list[float] = []
        self._batches = 0

    def go_on(self, run: Run, until: float) -> float:
        """The share of the time in which the trainer read itself."""
        begun, local = self.now, 0.0
        while self.now < until:
            is_local, batch_s = self.choice.is_local, run.batch_s(self.choice.is_local)
            if not is_local and self.now < self.changes[-1] + 0.9:
                batch_s = max(batch_s, self._first_loaders_s)
            self.now, self.waited = self.now + batch_s, self.waited + batch_s - run.compute_s
            self._batches += 1
            local += batch_s if is_local else 0
            if self.choice.observe(self._batches, self.waited, self.now) is Choice.CHANGE:
                self.choice.changed(self._batches, self.waited, self.now)
                self.changes.append(self.now)
        return local / (self.now - begun)


RUNS = st.builds(Run, compute_s=st.floats(0.001, 0.5), local_s=st.floats(0.0001, 0.5), loaders_s=st.floats(0.0001, 0.5))


@settings(max_examples=200)
@given(run=RUNS)
def test_the_way_that_brings_more_batches_is_used_nearly_all_the_time(run: Run) -> None:
    ratio = run.batch_s(True) / run.batch_s(False)
    assume(not 0.98 < ratio < 1.02)  # both are as good
    assume(not 0.02 < run.waits < 0.04)
    simulation = Simulation()
    simulation.go_on(run, 30.0)  # so that a long wait has added up to what loaders would cost
    assume(run.waits < 0.03 or run.waits * 30 > 4 * START_S + 1)
    local = simulation.go_on(run, 330.0)
    assert (local if ratio < 1 or run.waits < 0.03 else 1 - local) > 0.92


@settings(max_examples=100)
@given(run=RUNS)
def test_no_process_is_started_before_the_trainer_has_waited_as_long_as_that_takes(run: Run) -> None:
    simulation = Simulation()
    simulation.go_on(run, 30.0)
    if simulation.changes:
        assert simulation.changes[0] * run.waits >= START_S


@settings(max_examples=100)
@given(run=RUNS)
def test_trials_become_rare(run: Run) -> None:
    simulation = Simulation()
    simulation.go_on(run, 1300.0)
    assert len(simulation.changes) <= 2 * 7  # one at the beginning, others 20, 40, 80, 160, 320 and 640 seconds apart


def test_one_lucky_moment_does_not_decide() -> None:
    simulation = Simulation()
    for local_s in (0.002, 0.002, 0.0001, *[0.002] * 9):
        simulation.go_on(Run(0.01, local_s, 0.011), simulation.now + 0.5)
    assert not simulation.choice.is_local
    assert not simulation.choice.on_trial


@pytest.mark.parametrize("noisy", [Run(0, 0.008, 0.004), Run(0, 0.002, 0.001)], ids=["own reading", "all"])
def test_a_choice_that_a_neighbour_has_spoilt_is_put_right(noisy: Run) -> None:
    simulation = Simulation()
    simulation.go_on(noisy, 3.0)
    assert not simulation.choice.is_local
    simulation.go_on(Run(0, 0.002, 0.004), 30.0)
    assert simulation.choice.is_local
    assert simulation.go_on(Run(0, 0.002, 0.004), 330.0) > 0.95


def test_reading_that_gets_slow_later_goes_to_loaders() -> None:
    warm, cold = Run(0.001, 0.001, 0.004), Run(0.001, 0.05, 0.004)
    simulation = Simulation()
    simulation.go_on(warm, 10.0)
    assert simulation.choice.is_local
    simulation.go_on(cold, 13.0)
    assert simulation.go_on(cold, 300.0) < 0.02


def test_loaders_that_come_back_from_a_trial_are_not_judged_while_they_are_few() -> None:
    simulation, run = Simulation(first_loaders_s=0.02), Run(0, 0.008, 0.006)
    simulation.go_on(run, 10.0)
    assert not simulation.choice.is_local
    assert simulation.go_on(run, 100.0) < 0.05
    assert len(simulation.changes) <= 1 + 2 * 3


def test_a_trial_that_brings_next_to_nothing_ends_after_its_first_window() -> None:
    simulation = Simulation()
    simulation.go_on(Run(0.001, 0.5, 0.002), 20.0)
    (begun,) = simulation.changes
    simulation.go_on(Run(0.001, 0.5, 0.002), 60.0)
    there, back, *_ = simulation.changes[1:]
    assert there > begun + 20
    assert back - there < 1.5  # a batch, and another one while loaders start


def test_a_second_in_which_the_trainer_compiles_does_not_speak_against_it() -> None:
    simulation = Simulation()
    simulation.go_on(Run(0.0, local_s=0.004, loaders_s=0.0025), until=0.6)
    simulation.go_on(Run(0.0, local_s=1.0, loaders_s=0.0025), until=1.5)
    simulation.go_on(Run(0.0, local_s=0.0015, loaders_s=0.0025), until=6.0)
    assert simulation.choice.is_local
    assert len(simulation.changes) == 2
