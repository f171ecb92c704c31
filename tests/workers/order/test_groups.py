"""Groups against the plainest reading of what they are: one row after the other."""

from __future__ import annotations

import itertools

import pytest
from blobfeed.workers.base.errors import ParameterError
from blobfeed.workers.base.parameters import LastBatch
from blobfeed.workers.order.batches import Batches, BatchRange, Groups, Segment, batches_per_slot
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ...support.batches import batches


@st.composite
def grouped(draw: st.DrawFn) -> Groups:
    world_size = draw(st.integers(1, 3))
    last_batch: LastBatch = draw(st.sampled_from(("wrap", "drop", "partial")))
    samples, batch_size = draw(st.integers(1, 60)), draw(st.integers(1, 9))
    epochs, start = draw(st.none() | st.integers(1, 3)), draw(st.integers(0, 70))
    rank = draw(st.integers(0, world_size - 1))
    try:
        groups = batches(samples, batch_size, last_batch, epochs, rank, world_size, start)
    except ParameterError:
        assume(False)  # too few samples for every rank: test_batch_plan has these
        raise
    assume(groups.total is None or groups.total > 0)
    return Groups(groups, draw(st.integers(1, 5)), draw(st.booleans()))


@st.composite
def some_group(draw: st.DrawFn) -> tuple[Groups, int]:
    groups = draw(grouped())
    return groups, draw(st.integers(0, 20 if groups.total is None else groups.total - 1))


def naive_rows(groups: Groups, group: int) -> dict[int, int]:
    """Row → global position, for every row of the group that holds a sample."""
    found, each = {}, groups.batches_per_slot
    sizes = [1 if groups.starts_small else each, *[each] * group]
    for number in range(sizes[group]):
        k = sum(sizes[:group]) + number
        if groups.batches.total is not None and k >= groups.batches.total:
            break
        batch = groups.batches.batch(k)
        for place in range(batch.rows):
            found[number * groups.batches.parameters.batch_size + place] = batch.start + place
    return found


@settings(max_examples=300)
@given(which=some_group(), data=st.data())
def test_segments_are_the_rows_that_hold_samples(which: tuple[Groups, int], data: st.DataObject) -> None:
    groups, group = which
    first = data.draw(st.integers(0, groups.rows_of(group)), "first row")
    rows = data.draw(st.integers(0, groups.rows_of(group) - first), "rows")
    segments = list(groups.segments(group, first, rows))
    assert all(segment.rows > 0 for segment in segments), "a read of no rows costs as much as one of many"
    listed = [(segment.row + i, segment.position + i) for segment in segments for i in range(segment.rows)]
    wanted = {row: position for row, position in naive_rows(groups, group).items() if first <= row < first + rows}
    assert listed == sorted(wanted.items())


@settings(max_examples=100)
@given(which=some_group())
def test_segments_are_as_long_as_can_be(which: tuple[Groups, int]) -> None:
    groups, group = which
    segments = list(groups.segments(group, 0, groups.rows_of(group)))
    assert all(segment.rows > 0 for segment in segments)
    for one, next_one in itertools.pairwise(segments):
        adjoins = (one.row + one.rows, one.position + one.rows) == (next_one.row, next_one.position)
        assert not adjoins


@settings(max_examples=100)
@given(which=some_group(), sizes=st.integers(1, 7))
def test_tasks_of_any_size_make_the_same_rows(which: tuple[Groups, int], sizes: int) -> None:
    groups, group = which
    end = groups.rows_of(group)
    made: list[int] = []
    for first in range(0, end, sizes):
        for segment in groups.segments(group, first, min(sizes, end - first)):
            made += range(segment.row, segment.row + segment.rows)
    assert made == sorted(naive_rows(groups, group))


@settings(max_examples=100)
@given(which=some_group())
def test_a_row_knows_its_position(which: tuple[Groups, int]) -> None:
    groups, group = which
    for row, position in naive_rows(groups, group).items():
        assert groups.position_of(group, row) == position


@settings(max_examples=100)
@given(groups=grouped())
def test_the_groups_together_are_all_batches_in_order(groups: Groups) -> None:
    total, count = groups.batches.total, groups.total
    if total is None or count is None:
        assert (total, count) == (None, None)
        return
    assert [k for group in range(count) for k in groups.numbers(group)] == list(range(total))
    assert all(1 <= len(groups.numbers(group)) <= groups.batches_per_slot for group in range(count))


@settings(max_examples=100)
@given(which=some_group())
def test_a_group_has_room_in_a_slot(which: tuple[Groups, int]) -> None:
    groups, group = which
    assert groups.rows_of(group) <= groups.batches_per_slot * groups.batches.parameters.batch_size
    assert max(naive_rows(groups, group)) < groups.rows_of(group)


@pytest.mark.parametrize("group", [10**9, 10**12])
def test_a_group_far_away_costs_what_the_first_does(group: int) -> None:
    groups = Groups(batches(1000, 7, "partial"), 3)  # an epoch is 143 batches, the last one of six
    segments = list(groups.segments(group, 0, groups.rows_of(group)))
    assert sum(segment.rows for segment in segments) in (20, 21)


def test_rows_of_many_batches_are_found_from_the_first_and_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    right = Batches.batch

    def counted(its: Batches, k: int) -> BatchRange:
        asked.append(k)
        return right(its, k)

    monkeypatch.setattr(Batches, "batch", counted)
    groups = Groups(batches(1000, 4), 32)
    assert list(groups.segments(1, 0, 128)) == [Segment(128, 0, 128)]
    assert asked == [32, 63]


# ---- how many batches share a slot

SECONDS = st.floats(0, 100, allow_nan=False)


@settings(max_examples=200)
@given(batch_bytes=st.integers(0, 1 << 40), batch_size=st.integers(1, 10_000), seconds=SECONDS)
def test_batches_share_a_slot_only_where_they_are_small_and_quick(
    batch_bytes: int, batch_size: int, seconds: float
) -> None:
    batches = batches_per_slot(batch_bytes, batch_size, seconds)
    assert 1 <= batches <= 64
    if batches > 1:
        assert batches * batch_bytes <= 4 << 20
        assert batches * batch_size * seconds <= 0.0041


@settings(max_examples=100)
@given(batch_bytes=st.integers(1, 1 << 24), batch_size=st.integers(1, 1000), seconds=SECONDS, factor=st.floats(1, 1000))
def test_larger_or_slower_batches_never_share_more(
    batch_bytes: int, batch_size: int, seconds: float, factor: float
) -> None:
    batches = batches_per_slot(batch_bytes, batch_size, seconds)
    assert batches_per_slot(int(batch_bytes * factor), batch_size, seconds) <= batches
    assert batches_per_slot(batch_bytes, batch_size, seconds * factor) <= batches


@pytest.mark.parametrize(
    ("batch_bytes", "seconds_per_row", "batches"),
    [(64 * 784, 1e-7, 64), (1 << 20, 1e-7, 4), (64 * 784, 1e-5, 6), (64 * 784, 1e-3, 1), (64 * 150_528, 1e-7, 1)],
)
def test_of_batches_of_64_rows_as_many_share_a_slot_as_are_worth_a_message(
    batch_bytes: int, seconds_per_row: float, batches: int
) -> None:
    assert batches_per_slot(batch_bytes, 64, seconds_per_row) == batches
