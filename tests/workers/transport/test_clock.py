"""The clock of deadlines: no step is longer than a second, and a suspension does not count."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
from blobfeed.workers.transport import links as module
from blobfeed.workers.transport.links import LONGEST_WAIT_S, AwakeClock
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.pure

BEGIN = 1000.0


def looks_after(gaps: list[float]) -> tuple[AwakeClock, list[float], float]:
    """A clock, what it said at the begin and after each gap, and what the machine's clock says then."""
    now = [BEGIN]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
        clock = AwakeClock()
        said = [clock.now]
        for gap in gaps:
            now[0] += gap
            assert clock.now == said[-1], "it stands still between two looks"
            said.append(clock.look())
    return clock, said, now[0]


@given(st.lists(st.floats(0.0, LONGEST_WAIT_S) | st.floats(1.1, 1e5), max_size=30))
def test_it_advances_by_what_lies_between_looks_and_by_nothing_over_a_suspension(gaps: list[float]) -> None:
    _, said, _ = looks_after(gaps)
    steps = [later - earlier for earlier, later in pairwise(said)]
    assert steps == pytest.approx([gap if gap <= 1.0 else 0.0 for gap in gaps], abs=1e-6)


def test_a_moment_of_the_machines_clock_has_a_time_and_one_before_a_suspension_that_of_its_end() -> None:
    clock, said, now = looks_after([0.5, 10_000.0, 0.25])
    assert clock.time_of(now) == pytest.approx(clock.now)
    assert clock.time_of(now - 0.1) == pytest.approx(clock.now - 0.1)
    assert clock.time_of(BEGIN) == pytest.approx(said[1]), "the whole suspension lies between"
