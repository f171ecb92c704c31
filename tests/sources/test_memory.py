"""Arrays in a memory file: the same in whoever maps them, in one copy."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from blobfeed.sources.table import Memory
from blobfeed.workers.api import AnyArray

from blobfeed import SourceError

ARRAYS: dict[str, AnyArray] = {
    "text": np.frombuffer(b"abc", np.uint8),
    "numbers": np.arange(6).reshape(2, 3),
    "none": np.zeros((4, 0), np.float32),
}


def test_a_pickled_copy_maps_the_same_memory_and_carries_no_bytes_of_it() -> None:
    shared = Memory("test", ARRAYS | {"large": np.zeros(100_000)})
    sent = pickle.dumps(shared)
    assert len(sent) < 1000
    copy = pickle.loads(sent)
    del shared  # its file is closed, and the copy's map stays
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(copy[name], array)
        assert copy[name].dtype == array.dtype
    assert copy["numbers"].ctypes.data % 64 == 0


def test_they_cannot_be_written_to() -> None:
    shared = Memory("test", ARRAYS)
    with pytest.raises(ValueError, match="read-only"):
        shared["numbers"][0, 0] = 7


def test_a_copy_without_the_memory_says_that_it_is_lost() -> None:
    shared = Memory("test", ARRAYS)
    sent = pickle.dumps(shared)
    assert pickle.loads(sent)["text"].tobytes() == b"abc"
    del shared
    with pytest.raises(SourceError):
        pickle.loads(sent)
    other = Memory("test", ARRAYS)  # most likely under the same number
    with pytest.raises(SourceError):
        pickle.loads(sent)
    assert pickle.loads(pickle.dumps(other))["text"].tobytes() == b"abc"
