"""What the kernel is told of rows before they are read: no byte too many, nothing on what is in memory, never a lie."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
from blobfeed.readers.opening import open_pipeline
from blobfeed.workers.api import Parameters

from blobfeed import Source
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


def test_the_first_batch_of_a_cold_file_is_read_without_the_rest_of_it(tmp_path: Path) -> None:
    """Setup reads its trial sample many times, and small batches share slots: neither makes the kernel read more."""
    _source(tmp_path).close()
    for path in tmp_path.iterdir():
        _drop(path)
    parameters = Parameters(
        source={"npy": {name: str(tmp_path / f"{name}.npy") for name in ("data", "label")}},
        batch_size=64,
        shuffle=True,
        num_loaders=0,
    )
    with open_pipeline(parameters) as pipeline:
        pipeline.deliver_into_host(calls_make=False)
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
