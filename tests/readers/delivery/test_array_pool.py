"""Arrays handed out to keep are their holder's own; memory that was let go is used again."""

from __future__ import annotations

import numpy as np
import pytest
from blobfeed.readers.delivery import ArrayPool
from blobfeed.workers.api import AnyArray
from hypothesis import given, settings
from hypothesis import strategies as st

steps = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 6), st.booleans()), max_size=40)


@settings(max_examples=60)
@given(steps, st.integers(0, 3))
def test_what_anybody_holds_is_never_written_again(steps: list[tuple[int, int, bool]], blocks: int) -> None:
    pool = ArrayPool(blocks)
    held: dict[int, tuple[AnyArray, int]] = {}
    for number, (place, rows, only_a_slice) in enumerate(steps):
        held.pop(place, None)
        array = pool.empty((rows, 3), np.int32)
        array[...] = number
        held[place] = (array[1:] if only_a_slice else array, number)
        assert all((kept == value).all() for kept, value in held.values())


def test_a_loop_that_drops_each_array_stays_within_two_blocks() -> None:
    pool = ArrayPool()
    addresses = set()
    for _ in range(20):
        array = pool.empty((4, 1000), np.float32)
        addresses.add(array.ctypes.data)
    assert len(addresses) == 2


def test_a_smaller_array_lies_in_the_block_of_a_larger_one() -> None:
    pool = ArrayPool()
    address = pool.empty((8, 10), np.float64).ctypes.data
    small = pool.empty((3, 10), np.uint8)
    assert small.ctypes.data == address
    assert small.flags.c_contiguous
    assert small.flags.writeable


def test_a_larger_array_takes_the_place_of_a_block_that_has_become_too_small() -> None:
    pool = ArrayPool(blocks=1)
    pool.empty((1,), np.uint8)
    address = pool.empty((1000,), np.float64).ctypes.data
    assert pool.empty((1000,), np.float64).ctypes.data == address


def test_a_torch_tensor_made_from_an_array_keeps_its_memory() -> None:
    torch = pytest.importorskip("torch")
    pool = ArrayPool()
    first = pool.empty((2, 3), np.float32)
    first[...] = 1
    tensor = torch.from_numpy(first)[0]
    del first
    pool.empty((2, 3), np.float32)[...] = 2
    assert tensor.tolist() == [1, 1, 1]
