"""The table of crashes: no sample is lost, repeated or out of order, whatever happens to it or to its loader.

A part of the table with every fault in it runs always; the rest is `slow`, and all of it runs in `make faults`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.support.crash_table import Case, accidents, check_accident, check_poison, check_start_up, poisons, start_ups
from tests.support.pipelines import DEADLY, Fault


def _rotated(cases: Iterable[Case], each: int) -> list[ParameterSet]:
    """Mark all cases of each fault but one as slow; which one is left changes from fault to fault.

    `each`: the number of cases of a fault.
    """
    marks = ((), pytest.mark.slow)
    return [pytest.param(case, id=str(case), marks=marks[(n - n // each) % each > 0]) for n, case in enumerate(cases)]


@pytest.mark.parametrize("case", _rotated(accidents(), 4))
def test_what_happens_once_leaves_no_trace(case: Case, tmp_path: Path) -> None:
    check_accident(case, tmp_path)


@pytest.mark.parametrize("case", _rotated(poisons(), 8))
def test_a_bad_sample_is_named_or_replaced(case: Case, tmp_path: Path) -> None:
    check_poison(case, tmp_path)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=str(fault), marks=pytest.mark.slow if fault in DEADLY[1:] else ())
        for fault in start_ups()
    ],
)
def test_loaders_that_cannot_start_are_an_error_that_says_how_they_ended(fault: Fault) -> None:
    check_start_up(fault)
