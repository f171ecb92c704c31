"""How large tasks and units are: they follow the time that rows take, within what a slot holds."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from blobfeed.workers.base.hooks import Hooks
from blobfeed.workers.base.specs import IndexArray, NamedRows
from blobfeed.workers.pipeline.indexed_plan import make_plan
from blobfeed.workers.processes.dispatch import TaskSize, batches_per_unit
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.pipelines import Numbered, parameters

pytestmark = pytest.mark.pure

SECONDS = st.floats(0, 100, allow_nan=False)


@settings(deadline=None, max_examples=200)
@given(batch_bytes=st.integers(0, 1 << 40), batch_size=st.integers(1, 10_000), seconds=SECONDS)
def test_batches_share_a_slot_only_where_they_are_small_and_quick(
    batch_bytes: int, batch_size: int, seconds: float
) -> None:
    batches = batches_per_unit(batch_bytes, batch_size, seconds)
    assert 1 <= batches <= 16
    if batches > 1:
        assert batches * batch_bytes <= 4 << 20
        assert batches * batch_size * seconds <= 0.0021


@settings(deadline=None, max_examples=100)
@given(batch_bytes=st.integers(1, 1 << 24), batch_size=st.integers(1, 1000), seconds=SECONDS, factor=st.floats(1, 1000))
def test_larger_or_slower_batches_never_share_more(
    batch_bytes: int, batch_size: int, seconds: float, factor: float
) -> None:
    batches = batches_per_unit(batch_bytes, batch_size, seconds)
    assert batches_per_unit(int(batch_bytes * factor), batch_size, seconds) <= batches
    assert batches_per_unit(batch_bytes, batch_size, seconds * factor) <= batches


@pytest.mark.parametrize(
    ("batch_bytes", "seconds_per_row", "batches"),
    [(64 * 784, 1e-7, 16), (1 << 20, 1e-7, 4), (64 * 784, 1e-5, 3), (64 * 784, 1e-3, 1), (64 * 150_528, 1e-7, 1)],
)
def test_of_batches_of_64_rows_as_many_share_a_slot_as_are_worth_a_message(
    batch_bytes: int, seconds_per_row: float, batches: int
) -> None:
    assert batches_per_unit(batch_bytes, 64, seconds_per_row) == batches


@settings(deadline=None, max_examples=200)
@given(
    first=SECONDS,
    unit_rows=st.integers(1, 5000),
    observed=st.lists(st.tuples(st.integers(0, 5000), SECONDS), max_size=20),
)
def test_a_task_is_at_least_a_row_and_at_most_a_unit(
    first: float, unit_rows: int, observed: list[tuple[int, float]]
) -> None:
    size = TaskSize(first, unit_rows)
    assert 1 <= size.rows <= unit_rows
    for rows, seconds in observed:
        size.observe(rows, seconds)
        assert 1 <= size.rows <= unit_rows


@settings(deadline=None, max_examples=100)
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
    size.observe(0, 5.0)  # a postprocess hook ran over the whole unit
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
    assert plan.batches_per_unit > 1
