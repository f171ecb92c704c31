"""Memory that is lent is its holder's own until the last array on it is gone, and is used again then."""

from __future__ import annotations

import gc
import os
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.readers.delivery import Lendable, LentBlocks, SlotLoans
from blobfeed.workers.api import AnyArray
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import BatchReader
from tests.support.part import examples
from tests.support.reader_data import images, write_hdf5

steps = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 6), st.booleans()), max_size=40)

SAMPLES = 26
SETTINGS: dict[str, Any] = {"batch_size": 4, "num_loaders": 2, "shuffle": True, "prefetch_batches": 2}


@examples(60)
@given(steps)
def test_what_anybody_holds_is_never_written_again(steps: list[tuple[int, int, bool]]) -> None:
    blocks = LentBlocks()
    held: dict[int, tuple[AnyArray, int]] = {}
    for number, (place, rows, only_a_slice) in enumerate(steps):
        held.pop(place, None)
        array = blocks.empty((rows, 3), np.int32)
        array[...] = number
        held[place] = (array[1:] if only_a_slice else array, number)
        assert all((kept == value).all() for kept, value in held.values())


def test_a_loop_that_drops_each_array_stays_within_two_blocks() -> None:
    blocks = LentBlocks()
    addresses = set()
    for rows in [4, 4, 2, 3] * 5:
        array = blocks.empty((rows, 1000), np.float32)
        assert array.flags.c_contiguous
        assert array.flags.writeable
        addresses.add(array.ctypes.data)
    assert len(addresses) == 2


def test_lent_arrays_have_the_types_and_the_memory_of_a_slots() -> None:
    memory, loans = np.arange(40, dtype=np.uint8), SlotLoans[str](1)
    slots = [memory[:8].view("M8[s]"), memory[8:24].reshape(4, 4)[1:3], memory[24:40].view("i2,f4,S2")]
    lent = loans.lend("slot", Lendable(slots))
    for array, slot in zip(lent, slots, strict=True):
        assert (array.shape, array.dtype, array.tobytes()) == (slot.shape, slot.dtype, slot.tobytes())
        assert np.shares_memory(array, slot)
    kept = lent[2]["f0"]
    del lent, array
    assert list(loans.returned()) == []
    assert not loans.are_left
    del kept
    assert list(loans.returned()) == ["slot"]


@pytest.fixture
def source(tmp_path: Path) -> dict[str, Any]:
    return write_hdf5(tmp_path / "train.h5", SAMPLES)


def _right(array: Any, indices: Any) -> bool:
    return bool((np.asarray(array) == images(SAMPLES)[indices]).all())


def test_a_fork_keeps_nothing_of_what_was_given_back() -> None:
    loans = SlotLoans[str](1)
    for _ in range(3):
        loans.lend("slot", Lendable([np.zeros(8, np.uint8)]))
        loans.keep_all()
        assert list(loans.returned()) == ["slot"]
        assert loans.are_left


def test_who_keeps_the_last_base_alone_keeps_the_slot() -> None:
    loans = SlotLoans[str](1)
    (last,) = loans.lend("slot", Lendable([np.zeros(8, np.uint8)[:4]]))
    while last.base is not None:
        last = last.base
    gc.collect()
    assert list(loans.returned()) == []
    del last
    assert list(loans.returned()) == ["slot"]


@pytest.mark.parametrize("device", ["", "cpu"])
def test_batches_that_are_kept_at_random_stay_as_they_came(source: dict[str, Any], device: str) -> None:
    """Some for ever; views of views, tensors and DLPack, dropped by another thread; and slots are used again."""
    torch = pytest.importorskip("torch")
    rng, kept, addresses = random.Random(1), list[tuple[Any, Any]](), set[int]()
    forever: list[tuple[Any, Any]] = []
    with BatchReader(source, epochs=60, device=device, **SETTINGS) as reader:
        for batch in reader:
            data, indices = batch["data"], batch.indices
            addresses.add(np.asarray(data).ctypes.data)
            forms = [data, data[1:][:2], torch.from_dlpack(data)[:3], np.asarray(data).data]
            form = rng.choice(forms)
            rows = slice(1, 3) if form is forms[1] else slice(0, len(form))
            del data, batch, forms
            if rng.random() < 0.3:
                kept.append((form, indices[rows]))
            elif rng.random() < 0.01:
                forever.append((form, indices[rows]))
            del form
            while kept and rng.random() < 0.4:
                thread = threading.Thread(target=kept.pop, args=(rng.randrange(len(kept)),))
                thread.start()
                thread.join()
            assert all(_right(*each) for each in kept[-3:])
        assert all(_right(*each) for each in (*kept, *forever))
    assert all(_right(*each) for each in (*kept, *forever)), "also when the reader is closed"
    assert len(addresses) < 60, "memory is used again"


def test_the_user_writes_into_a_batch_and_no_later_one_shows_it(source: dict[str, Any]) -> None:
    with BatchReader(source, epochs=20, **SETTINGS) as reader:
        for batch in reader:
            assert _right(batch["data"], batch.indices)
            batch["data"][...] = 0


def test_a_cycle_gives_its_slot_back_when_it_is_collected(source: dict[str, Any]) -> None:
    addresses = set()
    with BatchReader(source, epochs=20, **SETTINGS) as reader:
        for batch in reader:
            assert _right(batch["data"], batch.indices)
            addresses.add(batch["data"].ctypes.data)
            cycle: list[Any] = [batch["data"]]
            cycle.append(cycle)
            del batch, cycle
            gc.collect(0)
    assert len(addresses) <= 5


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_keeps_the_batches_that_it_saw(source: dict[str, Any]) -> None:
    come, go = os.pipe()
    with BatchReader(source, epochs=20, **SETTINGS) as reader:
        loop = iter(reader)
        batch = next(loop)
        if not (child := os.fork()):
            os.read(come, 1)
            os._exit(0 if _right(batch["data"], batch.indices) else 1)
        del batch
        for _ in range(3):  # forks take one slot each, until batches are copied
            held = next(loop)
            if not (other := os.fork()):
                os._exit(0)
            os.waitpid(other, 0)
            assert _right(held["data"], held.indices)
        assert all(_right(batch["data"], batch.indices) for batch in loop)
        os.write(go, b"x")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(come)
    os.close(go)


def test_an_array_outlives_its_reader(source: dict[str, Any]) -> None:
    reader = BatchReader(source, **SETTINGS)
    batch = next(iter(reader))
    del reader
    gc.collect()
    assert _right(batch["data"], batch.indices)
