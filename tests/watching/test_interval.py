"""What loaders write of their time, and what is read from it."""

from __future__ import annotations

import os
import statistics

import pytest
from blobfeed.watching import interval, median_s
from blobfeed.watching.reading import Reading, bucket_ns, read_board
from blobfeed.workers.transport import About, Activity, Count, Line, LoaderStatus, StatusBoard
from hypothesis import given
from hypothesis import strategies as st

MS = 1_000_000
UNIT = 11 * MS
"""Longer than a loader waits until it writes its sums."""


def counted(times: list[int], clock: pytest.MonkeyPatch) -> list[int]:
    """The histogram that a loader writes whose samples take these times, in nanoseconds."""
    now = [0]
    clock.setattr("time.monotonic_ns", lambda: now[0])
    line = Line()
    status = LoaderStatus(line)
    status.begin(1, 77)
    for number, nanoseconds in enumerate(times):
        status.write(Activity.DECODING, number)
        now[0] += nanoseconds
        status.write(Activity.WAITING)
    now[0] += 1000 * MS  # long enough for the sums to be written
    status.write(Activity.WAITING)
    return list(line.times)


@given(st.integers(0, 10**13))
def test_a_time_falls_into_its_bucket(nanoseconds: int) -> None:
    with pytest.MonkeyPatch.context() as clock:
        counts = counted([nanoseconds], clock)
    assert sum(counts) == 1
    low, high = bucket_ns(counts.index(1))
    assert low <= nanoseconds
    assert nanoseconds < high or high > 2**40


@given(st.lists(st.integers(1024, 10**12), min_size=1, max_size=50))
def test_the_median_is_near_the_true_one(times: list[int]) -> None:
    with pytest.MonkeyPatch.context() as clock:
        counts = counted(times, clock)
    assert sum(counts) == len(times)
    low, high = statistics.median_low(times) / 1e9, statistics.median_high(times) / 1e9
    assert low / 1.5 <= median_s([counts]) <= high * 1.5


def test_without_a_time_there_is_no_median() -> None:
    assert median_s([]) == median_s([[0] * 64]) == 0.0


def test_the_time_of_each_activity_is_added_up_and_the_slowest_sample_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr("time.monotonic_ns", lambda: now[0])
    board = StatusBoard.create(2)
    board.describe(About(os.getpid(), 3, 1, "numbers"))
    status = board.line(0)

    def goes_on(units: int) -> None:
        now[0] += units * UNIT

    status.begin(1, 77)
    goes_on(5)
    status.write(Activity.WAITING)
    goes_on(10)
    before = read_board(board)
    for first, decodes in ((0, (90, 1, 50, 1)), (4, (1, 1, 1, 1))):  # at the first one a hook loads what it needs
        status.write(Activity.READING, first, 4)
        goes_on(8)
        for row, took in enumerate(decodes):
            status.write(Activity.DECODING, first + row)
            goes_on(took)
    status.write(Activity.POSTPROCESSING)
    goes_on(7)
    board.lines[0].place_slowest.note(2, "numbers/2")
    seen = interval(read_board(board), before)
    assert [round(1e9 * spent) // UNIT for spent in seen.spent_s] == [0, 0, 0, 16, 146, 7, 0]
    assert seen.slowest is not None
    assert (seen.slowest.index, seen.slowest.where) == (2, "numbers/2")
    assert seen.slowest.seconds == pytest.approx(52 * UNIT / 1e9)
    assert seen.present is not None
    assert seen.present.activity is Activity.POSTPROCESSING
    assert seen.present.seconds == pytest.approx(7 * UNIT / 1e9)
    assert 2 * UNIT < 1e9 * seen.median_s < 4 * UNIT
    later = read_board(board)
    goes_on(1)
    assert interval(read_board(board), later).slowest is None
    status.end()
    assert read_board(board).running == []
    assert interval(read_board(board)).spent_s[Activity.POSTPROCESSING] == pytest.approx(8 * UNIT / 1e9)
    del status
    board.close()


def test_a_task_of_a_remote_loader_is_no_slow_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1]
    monkeypatch.setattr("time.monotonic_ns", lambda: now[0])
    board = StatusBoard.create(2)
    board.line(1).note_node("far-away")
    for number, activity, took in ((0, Activity.DECODING, UNIT), (1, Activity.READING, 200 * UNIT)):
        status = board.line(number)
        status.begin(number + 1, 77)
        for _ in range(2):
            status.write(activity)
            now[0] += took
            status.write(Activity.WAITING)
    seen = interval(read_board(board))
    assert seen.slowest is not None
    assert seen.slowest.seconds == pytest.approx(UNIT / 1e9)
    assert seen.median_s < 2 * UNIT / 1e9
    del status
    board.close()


def test_the_wait_for_the_first_batch_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr("time.monotonic_ns", lambda: now[0])
    board = StatusBoard.create(1)
    board.counts[Count.WAITED_NS] = 3000 * MS
    board.counts[Count.START_NS] = 2000 * MS
    board.counts[Count.FIRST_BATCH_NS] = 2000 * MS
    now[0] = 12_000 * MS
    assert (interval(read_board(board)).stall_s, interval(read_board(board)).seconds) == (1.0, 10.0)
    board.counts[Count.WAITING_SINCE] = 11_000 * MS
    seen = interval(read_board(board))
    assert (seen.stall_s, seen.stall_share, seen.waiting_s) == (2.0, 0.2, 1.0)
    board.close()


@given(st.binary(max_size=3000))
def test_what_is_no_board_is_none(memory: bytes) -> None:
    assert Reading.of(memory, 0) is None


def test_a_board_that_is_cut_short_is_none() -> None:
    board = StatusBoard.create(2)
    memory = board.copy()
    board.close()
    assert Reading.of(memory, 0) is not None
    assert [Reading.of(memory[:size], 0) for size in (0, 8, len(memory) // 2, len(memory) - 1)] == [None] * 4


def test_a_long_text_keeps_its_end_and_a_place_tells_of_its_own_sample_alone() -> None:
    board = StatusBoard.create(1)
    board.describe(About(1, 2, 3, "ä" * 200 + "/train.h5"))
    board.note_death("x" * 256)
    place = board.lines[0].place
    assert (place.lacks(-1), place.lacks(0), place.lacks(7)) == (False, True, True)
    place.note(7, "/data/" * 99 + "7.jpg")
    assert (place.lacks(7), place.lacks(8)) == (False, True)
    assert (place.of(8), place.of(-1)) == ("", "")
    assert place.of(7).startswith("…")
    assert place.of(7).endswith("/data/7.jpg")
    header = read_board(board).header
    assert header.about[:3] == (1, 2, 3)
    assert header.about.source.endswith("ää/train.h5")
    assert header.last_death == "x" * 256
    del place
    board.close()


def test_a_reading_does_not_change_with_the_board() -> None:
    board = StatusBoard.create(1)
    board.line(0).begin(4, 77)
    reading = read_board(board)
    board.line(0).end()
    board.counts[Count.TASKS] += 3
    assert [line.loader for line in reading.running] == [4]
    assert (reading.header.counts[Count.TASKS], read_board(board).header.counts[Count.TASKS]) == (0, 3)
    assert read_board(board).running == []
    board.close()
