"""What the kernel is told of rows before they are read: no byte too many, nothing on what is in memory, never a lie."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from blobfeed.workers.base.parameters import Parameters
from blobfeed.workers.pipeline.pipeline import Pipeline
from blobfeed.workers.sources import Source
from blobfeed.workers.sources.files.file import FileStamp, RawFile, whole_pages
from blobfeed.workers.sources.table import read_ahead as module
from blobfeed.workers.sources.table.read_ahead import Announcements
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stored import in_loader, opened, rows_of

PAGE = mmap.PAGESIZE
ROW_BYTES = 784
ROWS = 20_000
WANTED = np.random.default_rng(1).permutation(ROWS)[:64]


def _drop(path: Path) -> None:
    """Out of the page cache, where the file system can do without it: one that lives in memory cannot."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def _values() -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 256, (ROWS, ROW_BYTES), np.uint8)


def _source(folder: Path) -> Source:
    np.save(folder / "data.npy", _values())
    np.save(folder / "label.npy", np.arange(ROWS))
    return opened("npy", folder, data="data.npy", label="label.npy")


def _bytes_from_disk() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def test_shuffled_rows_of_a_cold_file_are_read_without_the_rest_of_it(tmp_path: Path) -> None:
    source, values = in_loader(_source(tmp_path)), _values()
    for path in tmp_path.iterdir():
        _drop(path)
    before = _bytes_from_disk()
    rows = rows_of(source, WANTED.tolist())
    assert _bytes_from_disk() - before < 2 * (64 * 2 * PAGE + ROWS * 8)  # 15.7 MB are in the file
    np.testing.assert_array_equal(rows["data"], values[WANTED])
    np.testing.assert_array_equal(rows["label"], WANTED)


@pytest.mark.parametrize("num_loaders", [0, "auto"])
def test_the_first_batch_of_a_cold_file_is_read_without_the_rest_of_it(
    tmp_path: Path, num_loaders: Literal[0, "auto"]
) -> None:
    """Setup reads its trial sample many times, and small batches share slots: neither makes the kernel read more."""
    _source(tmp_path).close()
    for path in tmp_path.iterdir():
        _drop(path)
    parameters = Parameters(
        source={"npy": {name: str(tmp_path / f"{name}.npy") for name in ("data", "label")}},
        batch_size=64,
        shuffle=True,
        num_loaders=num_loaders,
    )
    with Pipeline(parameters) as pipeline:
        pipeline.deliver_into_host(promises=False)
        before = _pages_in_memory(tmp_path / "data.npy")
        batch = pipeline.take()
        assert np.asarray(batch.tops["data"]).tobytes() == _values()[batch.indices].tobytes()
        assert _pages_in_memory(tmp_path / "data.npy") - before <= 2 * 64  # of 3,829


def _pages_in_memory(path: Path) -> int:
    """Counted by the kernel, which tells the owner of a file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    there = (ctypes.c_ubyte * -(-size // PAGE))()
    start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), there) == 0
    return sum(page & 1 for page in there)


def test_cold_and_warm_files_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    source, values = in_loader(_source(tmp_path)), _values()
    for indices in (WANTED, np.arange(500, 800), np.array([7]), np.array([8]), WANTED[::-1], np.array([3, 3, 2])):
        for path in tmp_path.iterdir():
            _drop(path)
        for _ in ("cold", "warm"):
            np.testing.assert_array_equal(rows_of(source, indices.tolist())["data"], values[indices])


def _advice(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    given: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _fd, *what: given.append(what))
    return given


def test_advice_is_given_only_on_what_is_not_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cold.bin"
    path.write_bytes(bytes(1 << 20))
    _drop(path)
    offsets, sizes = np.array([0, PAGE, 500_000]), np.array([PAGE, PAGE, 100])
    given = _advice(monkeypatch)
    file = RawFile(FileStamp.of(str(path)))
    was_there = file.will_need(offsets, sizes)
    cold = [what[:2] for what in given if what[2] == os.POSIX_FADV_WILLNEED]
    file.read(0, 1 << 20)
    given.clear()
    assert file.will_need(offsets, sizes)
    file.close()
    assert given == []
    # A file system that lives in memory cannot be made cold, and then there is nothing to advise on.
    assert was_there or cold == [(0, 2 * PAGE), (500_000 // PAGE * PAGE, PAGE)]


def test_the_kernel_reads_ahead_only_while_rows_follow_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.bin"
    path.write_bytes(bytes(1 << 20))
    given = _advice(monkeypatch)
    file = RawFile(FileStamp.of(str(path)))
    for offsets in ([0, PAGE], [3 * PAGE], [500_000, 90_000], [20_000, 20_000 + PAGE]):
        file.will_need(np.array(offsets), PAGE)
    file.will_need(np.array([160, 80, 240]), 80)  # labels, which share a page
    file.close()
    ways = [advice for _, _, advice in given if advice != os.POSIX_FADV_WILLNEED]
    assert ways == [os.POSIX_FADV_RANDOM, os.POSIX_FADV_NORMAL, os.POSIX_FADV_RANDOM]


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 1 << 20)), min_size=1, max_size=20))
def test_the_pages_announced_hold_the_rows_and_nothing_that_no_row_touches(rows: list[tuple[int, int]]) -> None:
    offsets, sizes = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    starts, lengths = whole_pages(offsets, sizes)
    assert not (starts % PAGE).any()
    assert not (lengths % PAGE).any()
    assert ((starts <= offsets) & (offsets < starts + PAGE)).all()
    ends = starts + lengths
    assert ((offsets + sizes <= ends) & (ends < offsets + sizes + PAGE)).all()


# --------------------------------------------------------------------------------------------- when it is worth it


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the process has waited for the disk."""
    count = [0]
    monkeypatch.setattr(module, "_disk_waits", lambda: count[0])
    return count


def _task(first: int, rows: int = 16) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(first, first + rows)


def test_nothing_is_announced_twice_and_a_task_that_was_not_is_announced_when_it_is_read(waits: list[int]) -> None:
    told = Announcements()
    assert told.are_due(_task(0))
    assert not told.are_due(_task(0))
    assert told.are_due(_task(16))
    assert not told.are_due(np.zeros(0, np.int64))


def test_what_is_in_memory_is_no_longer_looked_at_until_a_read_waits_for_the_disk(waits: list[int]) -> None:
    told = Announcements()
    for first in range(0, 64, 16):
        assert told.are_due(_task(first))
        told.note_announced(16, in_memory=True)
    told.note_read(16)
    assert not told.are_due(_task(64))
    waits[0] += 1
    told.note_read(16)
    assert told.are_due(_task(80))


def test_a_page_that_is_missing_among_many_rows_changes_nothing(waits: list[int]) -> None:
    told = Announcements()
    told.note_announced(64, in_memory=True)
    waits[0] += 2
    told.note_read(1024)
    assert told.warm
    waits[0] += 60
    told.note_read(1024)
    assert not told.warm


def test_rows_that_were_missing_begin_the_count_anew_and_announcing_is_no_wait(waits: list[int]) -> None:
    told = Announcements()
    told.note_announced(63, in_memory=True)
    waits[0] += 1
    told.note_announced(16, in_memory=False)
    told.note_announced(63, in_memory=True)
    assert not told.warm
    told.note_announced(1, in_memory=True)
    told.note_read(16)
    assert told.warm
