"""A shared map: aligned, shared, as long-lived as the arrays on it, and unharmed by becoming huge pages."""

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


def test_two_maps_share_what_is_written_before_during_and_after_collapsing(descriptor: int) -> None:
    size = 3 * HUGE_PAGE + PAGE
    os.ftruncate(descriptor, size)
    os.posix_fallocate(descriptor, 0, size)
    ours, theirs = SharedMap(descriptor, size), SharedMap(descriptor, size)
    writer, reader = ours.array(), theirs.array()
    writer[:] = np.arange(size, dtype=np.uint8)
    ours.populate()
    for step, _ in enumerate(ours.collapse()):
        writer[step * 100] = 200
    writer[-1] = 99
    expected = np.arange(size, dtype=np.uint8)
    expected[[0, 100, 200]] = 200
    expected[-1] = 99
    assert (reader == expected).all()


def test_a_map_smaller_than_a_huge_page_has_nothing_to_collapse(descriptor: int) -> None:
    os.ftruncate(descriptor, PAGE)
    assert list(SharedMap(descriptor, PAGE).collapse()) == []


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
