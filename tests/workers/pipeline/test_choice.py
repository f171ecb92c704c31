"""Whether the trainer reads itself or has loaders read, against simulated trainers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from blobfeed.workers.pipeline.choice import Choice, LocalOrLoaders
from hypothesis import assume, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.pure

START_S = 0.3
SECONDS = 30.0


@dataclass
class Run:
    """A trainer that computes for `compute_s` a batch; itself it reads one in `local_s`, loaders bring one in
    `loaders_s` while it computes."""

    compute_s: float
    local_s: float
    loaders_s: float

    def batch_s(self, is_local: bool) -> float:
        return self.compute_s + self.local_s if is_local else max(self.compute_s, self.loaders_s)

    def simulate(self, seconds: float = SECONDS) -> list[tuple[bool, float]]:
        """(whether it is local, when) at each change and at the end."""
        now = waited = 0.0
        batches, choice, ways = 0, LocalOrLoaders(0.0), [(True, 0.0)]
        while now < seconds:
            batch_s = self.batch_s(choice.is_local)
            now, waited, batches = now + batch_s, waited + batch_s - self.compute_s, batches + 1
            if choice.observe(batches, waited, now) is Choice.CHANGE:
                choice.changed(batches, waited, now)
                ways.append((choice.is_local, now))
        return [*ways, (choice.is_local, now)]


RUNS = st.builds(Run, compute_s=st.floats(0.001, 0.2), local_s=st.floats(0.0001, 0.2), loaders_s=st.floats(0.0001, 0.2))


@settings(max_examples=200)
@given(run=RUNS)
def test_it_ends_with_the_way_that_brings_more_batches(run: Run) -> None:
    ratio = run.batch_s(True) / run.batch_s(False)
    assume(not 0.98 < ratio < 1.02)  # both are as good
    waits = run.local_s / run.batch_s(True)
    assume(not 0.02 < waits < 0.04)
    # In half a minute, so that a long wait has added up to what loaders would cost.
    assume(waits < 0.03 or waits * SECONDS > 4 * START_S + 1)
    assert run.simulate()[-1][0] == (ratio < 1 or waits < 0.03)


@settings(max_examples=100)
@given(run=RUNS)
def test_no_process_is_started_before_the_trainer_has_waited_as_long_as_that_takes(run: Run) -> None:
    ways = run.simulate()
    if len(ways) > 2:
        changed = ways[1][1]
        assert changed * run.local_s / run.batch_s(True) >= START_S


@settings(max_examples=100)
@given(run=RUNS)
def test_it_tries_loaders_once_and_then_leaves_it_at_that(run: Run) -> None:
    assert len(run.simulate()) <= 4


def test_one_lucky_moment_does_not_decide() -> None:
    now = waited = batches = 0.0
    choice = LocalOrLoaders(0.0)
    for local_s in (0.002, 0.002, 0.0001, *[0.002] * 9):
        run, until = Run(0.01, local_s, 0.011), now + 0.5
        while now < until:
            batch_s = run.batch_s(choice.is_local)
            now, waited, batches = now + batch_s, waited + batch_s - run.compute_s, batches + 1
            if choice.observe(int(batches), waited, now) is Choice.CHANGE:
                choice.changed(int(batches), waited, now)
    assert choice.settled
    assert not choice.is_local


def test_reading_that_gets_slow_later_goes_to_loaders_for_good() -> None:
    warm, cold = Run(0.001, 0.001, 0.004), Run(0.001, 0.05, 0.004)
    now = waited = 0.0
    batches, choice = 0, LocalOrLoaders(0.0)
    for run, until in ((warm, 10.0), (cold, 30.0)):
        while now < until:
            batch_s = run.batch_s(choice.is_local)
            now, waited, batches = now + batch_s, waited + batch_s - run.compute_s, batches + 1
            if choice.observe(batches, waited, now) is Choice.CHANGE:
                choice.changed(batches, waited, now)
        assert choice.is_local == (run is warm)
    assert choice.settled
