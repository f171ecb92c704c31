"""A few seconds of `make faults`: chaos over real sources; and that its comparison of two runs can fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults import hostile, recovery
from tests.faults.chaos import disturb
from tests.faults.figures import Figure, spread, table
from tests.faults.record import Difference, Record, compare
from tests.faults.scale import QUICK
from tests.faults.works import SAMPLES, WORKS, Work
from tests.support.part import some_of
from tests.support.waiting import DEADLINE_S

_SHORT = replace(
    QUICK,
    chaos_s=1.0,
    chaos_epochs=3,
    pause_s=0.1,
    kills=3,
    hangs=1,
    assemblers=1,
    hostile_frames=120,
    survival_s=DEADLINE_S,
)


@pytest.mark.parametrize("work", some_of([WORKS[6], WORKS[4]], 2), ids=lambda work: work.name)
def test_chaos_changes_no_byte_of_three_epochs(work: Work, tmp_path: Path) -> None:
    outcome = disturb(work, _SHORT, tmp_path)
    assert outcome.struck.total() > 0
    assert outcome.samples == 3 * SAMPLES
    assert outcome.difference == Difference(0, 0, 0, 0)


@pytest.mark.slow  # tests/workers/transport decodes them, too
def test_hostile_frames_are_dropped_and_counted(tmp_path: Path) -> None:
    figures = list(hostile.study(_SHORT, tmp_path))
    assert [figure for figure in figures if not figure.holds] == []


@pytest.mark.slow  # tests/workers/processes kills loaders, too
def test_deaths_and_hangs_are_recovered_from(tmp_path: Path) -> None:
    figures = list(recovery.study(_SHORT, tmp_path))
    assert [figure for figure in figures if not figure.holds] == []


@pytest.mark.parametrize(
    ("samples", "digests", "expected"),
    [
        ([1, 2, 3, 4], [b"a", b"b"], Difference(0, 0, 0, 0)),
        ([1, 2, 3], [b"a", b"c"], Difference(1, 0, 0, 1)),
        ([1, 2, 3, 4, 4], [b"a", b"b", b"d"], Difference(0, 1, 0, 1)),
        ([2, 1, 3, 4], [b"e", b"b"], Difference(0, 0, 2, 1)),
        ([1, 2, 3, 4], [b"a", b"f"], Difference(0, 0, 0, 1)),
        ([], [], Difference(4, 0, 0, 2)),
    ],
)
def test_each_kind_of_difference_is_seen(samples: list[int], digests: list[bytes], expected: Difference) -> None:
    assert compare(Record([1, 2, 3, 4], [b"a", b"b"]), Record(samples, digests)) == expected


def test_a_figure_that_is_not_what_it_must_be_stands_out() -> None:
    good, bad = Figure("s", "kept", 0, 0), Figure("s", "lost", 3, 0)
    assert (good.holds, bad.holds, Figure("s", "free", "4 ms").holds) == (True, False, True)
    assert table([good, bad]).splitlines()[2:] == ["| s | kept | 0 | 0 |", "|  | lost | 3 | **0** |"]


def test_a_spread_is_median_95th_percentile_and_maximum() -> None:
    assert spread([number / 1000 for number in range(100, 0, -1)]) == "51 ms / 96 ms / 100 ms"
