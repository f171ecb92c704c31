"""How large tasks are: they follow the time that rows take, up to a limit."""

from __future__ import annotations

import time
from pathlib import Path

from blobfeed.readers.opening import make_plan
from blobfeed.workers.api import Hooks, IndexArray, NamedRows
from blobfeed.workers.assembly import TaskSize
from hypothesis import given
from hypothesis import strategies as st

from tests.support.part import examples
from tests.support.pipelines import Numbered, parameters

SECONDS = st.floats(0, 100, allow_nan=False)


@examples(200)
@given(
    first=SECONDS,
    most=st.integers(1, 5000),
    observed=st.lists(st.tuples(st.integers(0, 5000), SECONDS), max_size=20),
)
def test_a_task_is_at_least_a_row_and_at_most_as_many_as_may_be(
    first: float, most: int, observed: list[tuple[int, float]]
) -> None:
    size = TaskSize(first, most)
    assert 1 <= size.rows <= most
    for rows, seconds in observed:
        size.observe(rows, seconds)
        assert 1 <= size.rows <= most


@examples(100)
@given(guess=st.floats(1e-6, 1.0), seconds_per_row=st.floats(1e-6, 1.0))
def test_tasks_come_to_last_about_ten_milliseconds_whatever_the_first_guess(
    guess: float, seconds_per_row: float
) -> None:
    size = TaskSize(guess, 1_000_000)
    for _ in range(60):
        size.observe(size.rows, size.rows * seconds_per_row)
    # As many whole rows as go into ten milliseconds; the guess weighs less than a thousandth by now.
    assert size.rows == 1 or 0.99 * 0.01 - seconds_per_row <= size.rows * seconds_per_row <= 1.01 * 0.01


def test_a_single_slow_task_does_not_cut_all_that_follow_into_rows() -> None:
    size = TaskSize(1e-5, 100_000)
    size.observe(1000, 0.02)  # twice as long as it should take
    assert 500 < size.rows < 1000


def test_a_task_without_rows_says_nothing_about_rows() -> None:
    size = TaskSize(1e-4, 1000)
    size.observe(0, 5.0)  # a postprocess hook ran over a whole batch
    assert size.rows == 100


class _OnSlowDisk(Numbered):
    """Its first read takes as long as a disk may, the others find their bytes in memory."""

    first_read_s = 0.1
    cold = True

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        end = time.perf_counter() + (self.first_read_s if self.cold else 0.0)
        self.cold = False
        while time.perf_counter() < end:
            pass
        super().read(indices, out)


def test_what_the_first_read_waited_for_the_disk_does_not_count() -> None:
    plan = make_plan(parameters(), Hooks(), Path(), True, _OnSlowDisk(items=8))
    assert plan.seconds_per_row < _OnSlowDisk.first_read_s / 2
    assert plan.batches_per_task > 1
