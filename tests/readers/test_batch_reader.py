"""BatchReader: loops over whole batches, on arrays of the user's own or on loan."""

from __future__ import annotations

import copy
import json
import os
import pickle
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from operator import length_hint
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.readers.delivery import NamedBatches
from blobfeed.supplies import ChunkOrder
from blobfeed.workers.api import AnyArray
from hypothesis import assume, given
from hypothesis import strategies as st

from blobfeed import (
    BatchReader,
    ConcurrentUseError,
    NamedBatch,
    PipelineClosed,
    Sample,
    SampleError,
    StreamSource,
)
from tests.support.part import examples, some_of
from tests.support.reader_data import write_hdf5
from tests.support.waiting import DEADLINE_S, wait_until

from .reading import SAMPLES, all_labels, read

# ---- loops


@examples(25)
@given(
    samples=st.integers(3, 20),
    epochs=st.integers(1, 3),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 3),
    last_batch=st.sampled_from(["wrap", "drop", "partial"]),
    sampler=st.sampled_from([None, {"draws": 7}]),
    left_after=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    resumes=st.booleans(),
)
def test_a_loop_has_the_batches_that_begin_in_its_epochs(
    samples: int,
    epochs: int,
    batch_size: int,
    world_size: int,
    last_batch: Any,
    sampler: Any,
    left_after: list[int],
    resumes: bool,
) -> None:
    """For rank 0, whose batch begins where the round does. A loop may be left early, or resumed in another reader."""
    values: dict[str, Any] = {"batch_size": batch_size, "last_batch": last_batch, "sampler": sampler, "seed": 3}
    values |= {"rank": 0, "world_size": world_size}
    source = {"arrays": {"label": np.arange(samples)}}
    items, each = 7 if sampler else samples, batch_size * world_size
    assume(last_batch != "drop" or items >= each)
    assume(last_batch != "partial" or not 0 < items % each < world_size)
    with read(source, **values) as reader:
        endless = [described(batch) for batch in islice(reader, (len(left_after) + 1) * epochs * -(-items // each))]
    assert sampler or all(labels[0] == position for _, _, position, labels in endless)
    reader, done = read(source, epochs=epochs, **values), 0
    for taken in left_after:
        begun = endless[done][1] // epochs * epochs
        expected = [batch for batch in endless[done:] if batch[1] < begun + epochs]
        loop, found = iter(reader), []
        assert len(reader) - 1 <= len(expected) <= len(reader)
        for batch in islice(loop, taken):
            found.append(described(batch))
            assert length_hint(loop) == len(expected) - len(found)
        assert found == expected[:taken]
        done += len(expected)
        if resumes:
            state = json.loads(json.dumps(reader.state_dict()))
            reader.close()
            reader = read(source, epochs=epochs, **values)
            reader.load_state_dict(state)
            if rest := expected[taken:]:
                assert length_hint(iter(reader)) == len(rest)
                assert [described(batch) for batch in reader] == rest
    reader.close()


def described(batch: NamedBatch) -> tuple[int, int, int, list[int]]:
    return batch.number, batch.epoch, batch.position, all_labels([batch])


def test_a_bad_sample_in_what_is_skipped_is_no_error(source: dict[str, Any]) -> None:
    def decode(sample: Sample, rng: np.random.Generator) -> Mapping[str, AnyArray]:
        if (sample.epoch, sample.index) == (0, 9):
            raise ValueError("bad once")
        return dict(sample)

    with read(source, epochs=1, last_batch="partial", decode=decode, num_loaders=1) as reader:
        next(iter(reader))
        assert all_labels(list(reader)) == list(range(SAMPLES))


@pytest.mark.parametrize(("num_loaders", "position"), some_of([(1, 8), ("auto", 0), (1, 0), ("auto", 8)], 4))
def test_after_a_start_the_first_batch_lies_ready_where_a_loaded_state_stands(
    source: dict[str, Any], num_loaders: Any, position: int
) -> None:
    with read(source, batch_size=4, shuffle=True) as reader:
        plain = all_labels(list(islice(reader, 6)))
    with read(source, batch_size=4, shuffle=True, num_loaders=num_loaders) as reader:
        state = {**reader.state_dict(), "position": position, "batches": position // 4}

        def lay_ready() -> bool:
            reader.load_state_dict(state)
            reader.start()
            wait_until(lambda: reader.statistics().tasks, "loaders have made the first batch")
            reader.start()
            assert all_labels([next(iter(reader))]) == plain[position : position + 4]
            return reader.statistics().stalls == 0

        wait_until(lay_ready, "the first batch lay ready")
    with pytest.raises(PipelineClosed):
        reader.start()


def test_threads_may_take_turns_but_not_ask_at_the_same_time(
    source: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    following, begun, goes_on = NamedBatches.next, threading.Event(), threading.Event()

    def slow_at_first(batches: NamedBatches, into: object) -> NamedBatch:
        if not begun.is_set():
            begun.set()
            assert goes_on.wait(DEADLINE_S)
        return following(batches)

    def interrupted(_: NamedBatches, into: object) -> NamedBatch:
        raise KeyboardInterrupt

    with read(source, epochs=1, last_batch="partial") as reader, ThreadPoolExecutor(1) as other:
        batches = iter(reader)
        monkeypatch.setattr(NamedBatches, "next", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        monkeypatch.setattr(NamedBatches, "next", slow_at_first)
        first = other.submit(next, batches)
        assert begun.wait(DEADLINE_S)
        try:
            with pytest.raises(ConcurrentUseError):
                next(batches)
        finally:
            goes_on.set()
        assert all_labels([first.result(), *batches]) == list(range(SAMPLES))


@pytest.mark.parametrize("window", [1, 2, 5])
def test_the_window_of_a_shuffle_by_chunks_is_the_one_that_was_asked_for(tmp_path: Path, window: int) -> None:
    with h5py.File(tmp_path / "chunked.h5", "w") as file:
        file.create_dataset("label", data=np.arange(80), chunks=(4,), compression="gzip")
    given: dict[str, Any] = {"shuffle": "chunk", "shuffle_window": window, "seed": 7, "epochs": 1, "num_loaders": 0}
    with read({"hdf5": {"path": str(tmp_path / "chunked.h5")}}, tops=["label"], **given) as reader:
        found = all_labels(list(reader))
    assert found == ChunkOrder(80, 7, chunk_samples=4, window_chunks=window).indices(0, 80).tolist()


# ---- memory


@pytest.mark.parametrize(
    ("num_loaders", "lengths"), [(0, (5, 6, 7)), (0, (3, 0, 9)), (0, (4,)), (1, (3, 0, 9))], ids=str
)
@pytest.mark.parametrize("last_batch", ["wrap", "partial"])
def test_each_loop_over_a_stream_has_all_of_its_samples(
    lengths: tuple[int, ...], last_batch: str, num_loaders: int
) -> None:
    def numbers(shard: int, num_shards: int) -> Iterator[int]:
        yield from range(100 * shard, 100 * shard + lengths[shard])

    everything = [100 * shard + number for shard, length in enumerate(lengths) for number in range(length)]
    stream = StreamSource(numbers, shards=len(lengths), names=("label",))
    with read(stream, epochs=1, last_batch=last_batch, num_loaders=num_loaders) as reader:
        next(iter(reader))  # a loop that is left: the next one begins anew
        for _ in range(3):
            assert sorted(all_labels(list(reader))) == everything


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("last_batch", ["wrap", "drop", "partial"])
def test_after_a_state_of_a_loops_last_batch_the_first_loop_of_a_stream_is_the_next_one(
    shards: int, last_batch: str
) -> None:
    def numbers(shard: int, num_shards: int, epoch: int) -> Iterator[int]:
        yield from range(10 * epoch + shard, 10 * epoch + 10, num_shards)

    def begin() -> BatchReader:
        return read(StreamSource(numbers, shards=shards, names=("label",)), epochs=1, last_batch=last_batch)

    with begin() as reader:
        for _ in reader:
            state = reader.state_dict()
        following = [all_labels(list(reader)) for _ in range(2)]
    with begin() as reader:
        reader.load_state_dict(json.loads(json.dumps(state)))
        assert [all_labels(list(reader)) for _ in range(2)] == following


@pytest.mark.parametrize("last_batch", ["wrap", "drop", "partial"])
@pytest.mark.parametrize("num_loaders", some_of([0, 1], 2))
def test_a_stream_is_not_asked_for_epochs_behind_its_loop(last_batch: str, num_loaders: int) -> None:
    def numbers(shard: int, num_shards: int, epoch: int) -> Iterator[int]:
        if epoch:
            raise FileNotFoundError(f"epoch {epoch} has not been recorded")
        yield from range(8)

    stream = StreamSource(numbers, shards=1, names=("label",))
    with read(stream, epochs=1, last_batch=last_batch, num_loaders=num_loaders) as reader:
        assert all_labels(list(reader)) == [*range(8)]
        with pytest.raises(SampleError) as caught:
            next(iter(reader))
        assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_batch_can_be_copied_and_pickled(source: dict[str, Any]) -> None:
    with read(source, epochs=1, shuffle=True) as reader:
        batch = next(iter(reader))
    for twin in (copy.copy(batch), pickle.loads(pickle.dumps(batch))):
        assert (twin.epoch, twin.position, twin.rows, twin.number) == (0, 0, 4, 0)
        np.testing.assert_array_equal(twin.indices, batch.indices)
        np.testing.assert_array_equal(twin["data"], batch["data"])


def test_a_reader_is_always_true_and_so_is_its_loop(source: dict[str, Any]) -> None:
    with read(source) as reader:
        assert reader
        assert iter(reader)


# ---- hooks and sources


def test_after_a_bad_sample_the_next_loop_goes_on_with_the_next_epoch(tmp_path: Path) -> None:
    def decode(sample: Sample, _: np.random.Generator) -> tuple[AnyArray, AnyArray]:
        if sample.epoch == 0 and sample.index == 205:
            raise OSError("a scratch on the disk")
        return sample["data"], sample["label"]

    source = write_hdf5(tmp_path / "many.h5", 300)
    with read(source, decode=decode, epochs=1, last_batch="partial", num_loaders=1) as reader:
        with pytest.raises(SampleError) as raised:
            list(reader)
        assert raised.value.index == 205
        assert isinstance(raised.value.__cause__, OSError)
        assert {batch.epoch for batch in reader} == {1}


@pytest.mark.parametrize("streams", [False, True])
def test_behind_a_loop_that_was_left_and_behind_a_streams_others_loaders_make_the_next_one(streams: bool) -> None:
    def pids(shard: int, num_shards: int) -> Iterator[int]:
        yield from [os.getpid()] * 8

    def decode(sample: Sample, _: np.random.Generator) -> dict[str, AnyArray]:
        return {"label": np.array(os.getpid())}

    given: dict[str, Any] = {"source": {"arrays": {"label": np.arange(8)}}, "decode": decode}
    given = {"source": StreamSource(pids, names=("label",))} if streams else given
    with read(**given, epochs=1, num_loaders=1) as reader:
        loops = [
            [(batch.number, batch.epoch, set(batch["label"].tolist())) for batch in islice(reader, most)]
            for most in (1, 9, 1)
        ]
    assert [[batch[:2] for batch in loop] for loop in loops] == [
        [(0, 0)],
        [(1 if streams else 2, 1), (2 if streams else 3, 1)],
        [(3 if streams else 4, 2)],
    ]
    assert len(set.union(*(pids for loop in loops for *_, pids in loop))) == 2 + streams


def test_the_next_loops_first_batch_lies_ready(source: dict[str, Any]) -> None:
    with read(source, epochs=1, num_loaders=1) as reader:

        def lay_ready() -> bool:
            stalls = reader.statistics().stalls
            loop = iter(reader)
            next(loop)
            found = reader.statistics().stalls == stalls
            list(loop)
            return found

        wait_until(lay_ready, "a loop's first batch lay ready")


# ---- what is printed


def test_what_is_printed_is_short_and_says_what_there_is(source: dict[str, Any]) -> None:
    with read(source, epochs=1) as reader:
        assert repr(reader) == (
            "BatchReader(hdf5, 10 samples, batch_size=4, {data: (2, 3, 4) float32, label: () int64})"
        )
        (batch, *_) = reader
        assert repr(batch) == "NamedBatch(number=0, epoch=0, rows=4, {data: (4, 2, 3, 4) float32, label: (4,) int64})"
        again = type(batch)(OrderedDict(batch.items()))  # as Lightning's move_data_to_device does it
        assert repr(again) == "NamedBatch(rows=4, {data: (4, 2, 3, 4) float32, label: (4,) int64})"
        assert (again.number, again.epoch, again.position) == (-1, -1, -1)
        with pytest.raises(AttributeError):
            print(again.indices)
        assert repr(reader.statistics()).startswith("Statistics(batches=3, ")
        counted = reader.statistics()
        assert repr(counted).endswith(f", diagnosis={counted.diagnosis!r})")
    with read(source, sampler=lambda epoch, samples, rng: [1, 2]) as reader:  # whose length nobody knows
        assert repr(reader) == "BatchReader(hdf5, batch_size=4, {data: (2, 3, 4) float32, label: () int64})"


def test_values_that_loaders_convert_are_those_that_numpy_computes() -> None:
    data = np.arange(48, dtype=np.uint8).reshape(8, 2, 3)
    with BatchReader({"arrays": {"data": data}}, batch_size=4, num_loaders=1, transform={"scale": 0.5}) as reader:
        found = [batch["data"] for batch in reader]
    assert found[0].dtype == np.float32
    assert np.concatenate(found).tolist() == (data * np.float32(0.5)).tolist()
