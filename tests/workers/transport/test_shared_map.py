"""A shared map: aligned, shared, as long-lived as the arrays on it, and in huge pages where there are some."""

from __future__ import annotations

import copy
import gc
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from blobfeed.workers.transport import HUGE_PAGE, SharedMap

PAGE = mmap.PAGESIZE

pytestmark = pytest.mark.pure


@pytest.fixture
def descriptor() -> Iterator[int]:
    number = os.memfd_create("test", os.MFD_CLOEXEC)
    yield number
    os.close(number)


def test_a_map_is_not_copied(descriptor: int) -> None:
    os.ftruncate(descriptor, PAGE)
    whole = SharedMap(descriptor, PAGE)
    for copied in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            copied(whole)
    gc.collect()
    assert not whole.array().any()


def mapped_bytes(address: int) -> int:
    """The size of the mapping that begins at `address`, 0 where there is none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if begin == address:
            return end - begin
    return 0


@pytest.mark.parametrize("size", [1, PAGE, HUGE_PAGE - 1, HUGE_PAGE, 2 * HUGE_PAGE + PAGE + 1])
def test_it_begins_at_a_huge_page_and_reserves_no_more_than_it_needs(descriptor: int, size: int) -> None:
    os.ftruncate(descriptor, size)
    array = SharedMap(descriptor, size).array()
    address = array.ctypes.data
    assert address % HUGE_PAGE == 0
    assert array.shape == (size,)
    assert mapped_bytes(address) == -(-size // PAGE) * PAGE


def test_an_array_keeps_it_mapped_and_the_last_one_takes_it_down(descriptor: int) -> None:
    os.ftruncate(descriptor, 2 * PAGE)
    view = SharedMap(descriptor, 2 * PAGE).array()[PAGE:].view(np.int64)
    address = view.ctypes.data - PAGE
    view[:] = 7
    assert mapped_bytes(address) == 2 * PAGE
    assert (view == 7).all()
    del view
    assert mapped_bytes(address) == 0


def test_two_maps_share_what_was_there_before_and_what_is_written_into_huge_pages(descriptor: int) -> None:
    size = 3 * HUGE_PAGE + PAGE
    os.ftruncate(descriptor, size)
    ours, theirs = SharedMap(descriptor, size), SharedMap(descriptor, size)
    writer, reader = ours.array(), theirs.array()
    writer[HUGE_PAGE + 5], reader[2 * HUGE_PAGE - 1] = 7, 8
    expected = np.zeros(size, np.uint8)
    expected[[HUGE_PAGE + 5, 2 * HUGE_PAGE - 1]] = 7, 8

    ours.allocate_huge()

    assert (reader == expected).all()
    writer[:] = expected[:] = np.arange(size, dtype=np.uint8)
    assert (reader == expected).all()


def test_all_that_fills_huge_pages_lies_in_some(descriptor: int) -> None:
    size = 3 * HUGE_PAGE + PAGE
    os.ftruncate(descriptor, size)
    ours, theirs = SharedMap(descriptor, size), SharedMap(descriptor, size)
    ours.allocate_huge()
    if os.fstat(descriptor).st_blocks < 3 * HUGE_PAGE // 512:
        pytest.skip("this kernel makes no huge pages of a memory file, or has none left")
    array = theirs.array()
    assert not array.any()
    assert huge_bytes(array.ctypes.data) == 3 * HUGE_PAGE


def huge_bytes(address: int) -> int:
    """The bytes of the mapping that begins at `address` that this process sees in huge pages."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith(f"{address:x}-"))
    mapped = next(line for line in lines[begin:] if line.startswith("ShmemPmdMapped:"))
    return int(mapped.split()[1]) << 10


def test_a_map_smaller_than_a_huge_page_is_left_alone(descriptor: int) -> None:
    os.ftruncate(descriptor, PAGE)
    SharedMap(descriptor, PAGE).allocate_huge()
    assert os.fstat(descriptor).st_blocks == 0


def test_what_cannot_be_mapped_says_so_and_leaves_no_address_space_taken(descriptor: int) -> None:
    os.ftruncate(descriptor, PAGE)
    reading_only = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    before = len(Path("/proc/self/maps").read_text().splitlines())
    try:
        with pytest.raises(PermissionError, match="mmap"):
            SharedMap(reading_only, PAGE)
    finally:
        os.close(reading_only)
    assert len(Path("/proc/self/maps").read_text().splitlines()) <= before + 1
