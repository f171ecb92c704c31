"""A shared file gives back what was written, in another process too, and takes memory for that alone."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from blobfeed.workers.transport import SharedFile, shared_file


@pytest.fixture
def file() -> Iterator[SharedFile]:
    made = SharedFile.create("test")
    yield made
    made.close()


def memory_of(file: SharedFile) -> int:
    return os.fstat(file.descriptor).st_blocks * 512


def test_numbers_are_read_where_they_were_written(file: SharedFile) -> None:
    numbers = np.arange(5_000_000, dtype=np.int64)
    end = file.write(1 << 40, numbers)
    assert end == (1 << 40) + numbers.nbytes
    assert (file.read(1 << 40, len(numbers), np.int64) == numbers).all()
    assert file.read((1 << 40) + 8 * 77, 3, np.int64).tolist() == [77, 78, 79]
    assert file.write(0, np.array([0.5, 2.0])[::-1]) == 16
    assert file.read(0, 2, np.float64).tolist() == [2.0, 0.5]


def test_another_process_sees_the_same_memory(file: SharedFile) -> None:
    if (pid := os.fork()) == 0:
        file.write(80, np.array([7], np.int64))
        os._exit(0)
    os.waitpid(pid, 0)
    assert file.read(80, 1, np.int64).tolist() == [7]


def test_what_is_given_back_takes_no_memory_and_reads_as_zeros(file: SharedFile) -> None:
    numbers = np.ones(1 << 20, np.int64)
    file.write(0, numbers)
    end = file.write(numbers.nbytes, numbers)
    assert memory_of(file) == 2 * numbers.nbytes
    file.free(0, numbers.nbytes)
    assert memory_of(file) == numbers.nbytes
    assert not file.read(0, 100, np.int64).any()
    assert file.read(end, 2, np.int64).tolist() == [0, 0], "behind the end, too"


def test_a_shortage_is_told_before_memory_is_taken(file: SharedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_file, "available_memory", lambda: 1000)
    with pytest.raises(MemoryError, match=r"200 .*1,600 .*1,000 "):
        file.write(0, np.zeros(200, np.int64))
    assert memory_of(file) == 0
