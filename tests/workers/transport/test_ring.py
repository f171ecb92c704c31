"""The ring: where rows lie, that processes share them, and that a shortage of memory is told before use."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest
from blobfeed.workers.api import AnyArray
from blobfeed.workers.transport import Ring, RowsLayout
from blobfeed.workers.transport import ring as ring_module
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from blobfeed import ArraySpec, RaggedRows, RingAllocationError
from tests.support import leftovers
from tests.support.part import examples

DTYPES = ("uint8", "int16", "float32", "int64", "complex128", "S3", "bool")

SPECS = st.dictionaries(
    st.sampled_from(("data", "label", "mask", "text", "box")),
    st.builds(
        ArraySpec,
        st.lists(st.integers(0, 7), max_size=3).map(tuple),
        st.sampled_from(DTYPES).map(np.dtype),
        st.booleans(),
    ),
    min_size=1,
)

SMALL = RowsLayout(
    {"data": ArraySpec((3, 5), np.dtype(np.float32)), "label": ArraySpec((), np.dtype(np.int64))}, rows=4
)


def raw(array: AnyArray) -> NDArray[np.uint8]:
    """All bytes of a C-contiguous array, as a view."""
    return array.reshape(-1).view(np.uint8)


def arrays_of(layout: RowsLayout, memory: NDArray[np.uint8]) -> list[AnyArray]:
    """Everything that lies in the slots: rows, and the shapes of rows that vary."""
    found: list[AnyArray] = []
    for rows in layout.view(memory).values():
        found += [rows.memory, rows.shapes] if isinstance(rows, RaggedRows) else [rows]
    return found


def offset_of(array: AnyArray, memory: NDArray[np.uint8]) -> int:
    return int(array.__array_interface__["data"][0]) - int(memory.__array_interface__["data"][0])


@examples(100)
@given(specs=SPECS, rows=st.integers(1, 9), slots=st.integers(1, 3))
def test_nothing_in_the_slots_overlaps(specs: dict[str, ArraySpec], rows: int, slots: int) -> None:
    layout = RowsLayout(specs, rows).times(slots)
    assert layout.rows == slots * rows
    memory = np.zeros(layout.nbytes, np.uint8)
    arrays = arrays_of(layout, memory)
    for number, array in enumerate(arrays):
        raw(array)[:] = number % 255 + 1
    for number, array in enumerate(arrays):
        assert (raw(array) == number % 255 + 1).all()


@examples(100)
@given(specs=SPECS, rows=st.integers(1, 9))
def test_every_top_has_its_shape_and_begins_at_a_cache_line(specs: dict[str, ArraySpec], rows: int) -> None:
    layout = RowsLayout(specs, rows)
    memory = np.zeros(layout.nbytes, np.uint8)
    views = layout.view(memory)
    assert list(views) == list(specs)
    for name, spec in specs.items():
        view = views[name]
        if isinstance(view, RaggedRows):
            assert (view.memory.shape, view.shapes.shape) == ((rows, spec.items), (rows, len(spec.shape)))
            assert offset_of(view.shapes, memory) % 64 == 0 or not view.shapes.size
            view = view.memory
        else:
            assert view.shape == (rows, *spec.shape)
        assert view.dtype == spec.dtype
        assert view.flags.c_contiguous
        assert offset_of(view, memory) % 64 == 0 or not view.size


@examples(50)
@given(specs=SPECS, rows=st.integers(1, 9))
def test_the_memory_is_whole_pages_and_not_much_larger_than_its_rows(specs: dict[str, ArraySpec], rows: int) -> None:
    layout = RowsLayout(specs, rows)
    assert layout.nbytes % os.sysconf("SC_PAGESIZE") == 0
    content = sum(rows * (spec.nbytes + 4 * len(spec.shape) * spec.varies) + 2 * 64 for spec in specs.values())
    assert layout.nbytes < content + os.sysconf("SC_PAGESIZE")


def test_ragged_rows_in_a_slot_take_samples_of_every_shape() -> None:
    layout = RowsLayout({"image": ArraySpec((2, 6), np.dtype(np.int16), varies=True)}, rows=3)
    memory = np.zeros(layout.nbytes, np.uint8)
    rows = layout.view(memory)["image"]
    assert isinstance(rows, RaggedRows)
    samples = [np.arange(12, dtype=np.int16).reshape(2, 6), np.ones((1, 1), np.int16), np.zeros((2, 0), np.int16)]
    for row, sample in enumerate(samples):
        rows.put(row, sample)
    again = layout.view(memory)["image"]
    assert isinstance(again, RaggedRows)
    assert all(np.array_equal(again.get(row), sample) for row, sample in enumerate(samples))


# ---- the memory itself


def test_two_maps_of_a_ring_are_one_memory() -> None:
    ring = Ring.create(SMALL, slots=3)
    other = Ring(os.dup(ring.descriptor), SMALL, 3)
    ring.rows["label"][8:12] = [7, 8, 9, 10]  # type: ignore[index]
    assert np.asarray(other.rows["label"]).tolist() == [0] * 8 + [7, 8, 9, 10]
    other.close()
    ring.close()


def test_all_pages_are_there_before_the_first_use() -> None:
    layout = RowsLayout({"data": ArraySpec((1000, 1000), np.dtype(np.uint8))}, rows=4)
    ring = Ring.create(layout, slots=2)
    ring.allocate()
    status = os.fstat(ring.descriptor)
    assert status.st_size == layout.times(2).nbytes
    assert status.st_blocks * 512 >= status.st_size
    ring.close()


def test_nobody_can_take_pages_away_from_under_a_mapped_ring() -> None:
    # A file that shrinks would mean SIGBUS for everybody who has it mapped.
    ring = Ring.create(SMALL, slots=2)
    ring.allocate()
    with pytest.raises(PermissionError):
        os.ftruncate(ring.descriptor, 0)
    ring.close()


def test_closing_leaves_no_descriptor() -> None:
    before = leftovers.descriptors()
    ring = Ring.create(SMALL, slots=2)
    descriptor = ring.descriptor
    ring.close()
    assert not leftovers.opened_since(before)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(descriptor)


def test_a_view_in_use_outlives_the_ring_and_then_gives_the_memory_back() -> None:
    before = leftovers.descriptors()
    ring = Ring.create(SMALL, slots=2)
    view = ring.rows["label"][4:]
    assert isinstance(view, np.ndarray)
    view[...] = 5
    ring.close()
    assert view.tolist() == [5, 5, 5, 5]
    del view, ring
    assert not leftovers.opened_since(before)


# ---- shortage


def test_what_just_fits_is_granted_and_a_shortage_is_told_before_memory_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = leftovers.descriptors()
    monkeypatch.setattr(ring_module, "available_memory", lambda: SMALL.times(300).nbytes)
    Ring.create(SMALL, slots=300).close()
    with pytest.raises(RingAllocationError) as caught:
        Ring.create(SMALL, slots=400)
    assert isinstance(caught.value, MemoryError)
    assert not leftovers.opened_since(before)


def test_a_program_with_a_timer_gets_a_ring_on_linux_before_6_10(monkeypatch: pytest.MonkeyPatch) -> None:
    signals: list[int] = []
    allocate = os.posix_fallocate

    def interrupted(descriptor: int, offset: int, size: int) -> None:
        for _ in range(100):
            before = len(signals)
            allocate(descriptor, offset, size)
            if len(signals) == before:
                return
            os.ftruncate(descriptor, offset)  # as that kernel gives back what the call had got
            os.ftruncate(descriptor, whole)
        raise AssertionError(f"{size:,} bytes at once are never allocated")

    monkeypatch.setattr(os, "posix_fallocate", interrupted)
    layout = RowsLayout({"data": ArraySpec((1 << 20,), np.dtype(np.uint8))}, rows=128)
    whole = layout.nbytes
    handler = signal.signal(signal.SIGALRM, lambda *_: signals.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    try:
        with closing(Ring.create(layout, slots=1)) as ring:
            ring.allocate()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert signals


UNDER_A_LIMIT = """
import os, resource, sys
import numpy as np
from blobfeed.workers.transport import ring
from blobfeed.workers.base import RingAllocationError
from blobfeed.workers.api import ArraySpec
layout = ring.RowsLayout({"data": ArraySpec((1 << 20,), np.dtype("u1"))}, rows=64)
def open_files():
    return sorted(os.listdir("/proc/self/fd"))
before = open_files()
if sys.argv[1] == "address space":
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (128 << 20), resource.RLIM_INFINITY))
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (32 << 20, resource.RLIM_INFINITY))
if sys.argv[2] == "seen only by the kernel":
    ring.available_memory = lambda: 1 << 50
try:
    ring.Ring.create(layout, slots=4)
except RingAllocationError as error:
    assert open_files() == before, open_files()
    print(error)
if sys.argv[1] == "address space":
    small = ring.Ring.create(ring.RowsLayout(layout.specs, rows=4), slots=4)
    small.allocate()
    small.close()
"""


@pytest.mark.parametrize(
    ("limit", "seen"),
    [
        ("address space", "beforehand"),
        ("address space", "seen only by the kernel"),
        ("file size", "seen only by the kernel"),
    ],
)
def test_a_limit_of_the_process_that_the_ring_does_not_fit_is_a_shortage_too(limit: str, seen: str) -> None:
    command = [sys.executable, "-c", UNDER_A_LIMIT, limit, seen]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"the ring of 4 batch slots needs {4 << 26:,} bytes" in done.stdout
    if limit == "file size":
        assert f"{32 << 20:,} (ulimit -f)" in done.stdout
