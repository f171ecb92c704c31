"""`num_loaders: 0`: the trainer's process makes the batches itself, the very same ones that loaders would make.

Errors are those of loaders, too, and Ctrl-C in the midst of a batch loses none.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
from blobfeed.readers.opening import open_pipeline
from blobfeed.workers.api import AnyArray, Hooks, IndexArray, NamedRows, Parameters
from blobfeed.workers.plan import State

from blobfeed import ArraySpec, BatchReader, EndOfData, PipelineStalled, Sample, SampleError, Source, StreamSource
from blobfeed.monitor import Monitor, as_mapping
from tests.support.interrupting import interrupts_in
from tests.support.leftovers import descriptors
from tests.support.part import some_of
from tests.support.reader_data import images, labels, write_hdf5
from tests.support.waiting import wait_until

SAMPLES = 41
SETTINGS: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3, "epochs": 2}
LARGE = (3, 224, 224)
"""Batches of four such rows are made right in the reader's memory, the last ones of a group like the first."""
ALONE: dict[str, Any] = {"prefetch_batches": 2}
"""Then a batch has a group to itself."""

Bytes = tuple[dict[str, bytes], list[int]]


def large(samples: int, shape: tuple[int, ...] = LARGE) -> AnyArray:
    values: AnyArray = np.random.default_rng(0).integers(0, 255, (samples, *shape), np.uint8)
    return values


def noisy(sample: Sample, rng: np.random.Generator) -> dict[str, AnyArray]:
    """Takes its noise from every generator that a hook may know."""
    noise = rng.random() + random.random() + np.random.rand()  # noqa: NPY002
    return {"data": sample["data"] + np.float32(noise), "label": sample["label"]}


def doubled(batch: dict[str, AnyArray], rng: np.random.Generator) -> dict[str, AnyArray]:
    """The same over whole batches."""
    noise = rng.random() + random.random() + np.random.rand()  # noqa: NPY002
    return {"data": batch["data"] * 2.0 + noise, "index": batch.indices}  # type: ignore[attr-defined]


def backwards(epoch: int, samples: int, rng: np.random.Generator) -> AnyArray:
    return rng.permutation(samples)[: samples - epoch][::-1]


def uneven(epoch: int, samples: int, rng: np.random.Generator) -> Iterator[AnyArray]:
    del epoch
    for first in range(0, samples, 3):
        yield rng.integers(0, samples, 1 + first % 4)


def records(shard: int, shards: int, epoch: int) -> Iterator[tuple[AnyArray, int]]:
    for number in range(shard, 60, shards):
        yield np.full(5, number + 100 * epoch, np.float32), number


def read(source: Any, **settings: Any) -> list[Bytes]:
    with BatchReader(source, **settings) as reader:
        return [bytes_of(batch) for batch in islice(reader, 60)]


def bytes_of(batch: Any) -> Bytes:
    return {name: np.asarray(values).tobytes() for name, values in batch.items()}, batch.indices.tolist()


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Any]:
    with h5py.File(tmp_path / "packed.h5", "w") as file:
        file.create_dataset("data", data=images(SAMPLES), chunks=(8, 2, 3, 4), compression="gzip")
        file["label"] = labels(SAMPLES)
    np.save(tmp_path / "data.npy", large(SAMPLES))
    np.save(tmp_path / "label.npy", labels(SAMPLES))
    return {
        "hdf5": write_hdf5(tmp_path / "train.h5", SAMPLES),
        "packed": {"hdf5": {"path": str(tmp_path / "packed.h5")}},
        "npy": {"npy": {"data": str(tmp_path / "data.npy"), "label": str(tmp_path / "label.npy")}},
        "arrays": {"arrays": {"data": large(SAMPLES), "label": labels(SAMPLES)}},
        "stream": StreamSource(records, shards=3, names=("data", "label")),
    }


class Broken(Source):
    """Sample 30 raises; so do all from `bad_from` on."""

    def __init__(self, bad_from: int = SAMPLES) -> None:
        self._bad_from = bad_from

    def __len__(self) -> int:
        return SAMPLES

    @property
    def specs(self) -> dict[str, ArraySpec]:
        return {"data": ArraySpec(LARGE, np.dtype(np.uint8)), "label": ArraySpec((), np.dtype(np.int64))}

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        for row, index in enumerate(indices.tolist()):
            if index == 30 or index >= self._bad_from:
                raise ValueError(f"nothing good in {index}")
            out["data"][row], out["label"][row] = index, index  # type: ignore[index]


class BrokenRows(Broken):
    """Batches that are only copied are announced before they are made."""

    stores_rows = True


class Counted(Broken):
    """Counts the rows that are read."""

    rows = 0

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        self.rows += len(indices)
        out["data"][...], out["label"][...] = indices.reshape(-1, 1, 1, 1), indices  # type: ignore[index]


def check_labels(batch: Any) -> list[int]:
    np.testing.assert_array_equal(batch["data"][:, 0, 0, 0], batch["label"])
    np.testing.assert_array_equal(batch["data"][:, 2, 15, 15], batch["label"])
    return [int(label) for label in batch["label"]]


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "small rows": ("hdf5", {}),
    "chunked and compressed": ("packed", {"shuffle": "chunk"}),
    "large rows": ("npy", {"last_batch": "partial"}),
    "large rows one by one": ("npy", {"last_batch": "partial", **ALONE}),
    "a scale": ("npy", {"transform": {"scale": 0.5, "mean_value": 3}}),
    "crop and mirror": ("npy", {"transform": {"crop_size": 10, "mirror": True}}),
    "decode": ("hdf5", {"decode": noisy}),
    "postprocess": ("hdf5", {"postprocess": doubled}),
    "sampler": ("hdf5", {"sampler": backwards, "shuffle": False}),
    "batch_sampler": ("hdf5", {"batch_sampler": uneven, "shuffle": False}),
    "stream": ("stream", {"shuffle": False, "last_batch": "partial"}),
    "stream that wraps": ("stream", {"shuffle": False, "last_batch": "wrap"}),
    "rank": ("hdf5", {"rank": 1, "world_size": 3}),
}


@pytest.mark.parametrize("case", some_of(CASES, 4))
def test_the_batches_are_those_that_loaders_make(sources: dict[str, Any], case: str) -> None:
    """And so is the state behind each of them."""
    name, chosen = CASES[case]

    def made_by(num_loaders: int) -> list[tuple[Bytes, State]]:
        with BatchReader(sources[name], **(SETTINGS | chosen), num_loaders=num_loaders) as reader:
            return [(bytes_of(batch), reader.state_dict()) for batch in reader]

    assert made_by(0) == made_by(2)


def test_a_cache_is_filled_and_read_in_process(sources: dict[str, Any], tmp_path: Path) -> None:
    cache = {"path": str(tmp_path / "cache"), "size_limit": 1 << 20}
    uncached = read(sources["hdf5"], **SETTINGS, num_loaders=0)
    for number in (0, 0, 2):  # filled, read in process, read by loaders
        assert read(sources["hdf5"], **SETTINGS, cache=cache, num_loaders=number) == uncached


def test_a_mix_has_the_same_bytes_while_another_thread_asks_for_indices() -> None:
    parts = [{"arrays": {"data": large(count, (3, 16, 16)), "label": labels(count)}} for count in (SAMPLES, 60)]
    settings: dict[str, Any] = {"batch_size": 64, "shuffle": True, "seed": 3, "num_loaders": 0, "epochs": None}
    settings["decode"] = noisy
    count = 120
    with BatchReader(mix=parts, **settings) as reader:
        expected = [bytes_of(batch) for batch in islice(reader, count)]
    batches: queue.SimpleQueue[Any] = queue.SimpleQueue()
    found: list[Bytes] = []

    def ask() -> None:
        for number in range(count):
            found.append(bytes_of(batches.get(timeout=200)))
            if number == 0:
                far_ahead.wait(60)

    far_ahead, other, before = threading.Event(), threading.Thread(target=ask), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        other.start()
        with BatchReader(mix=parts, **settings) as reader:
            for number, batch in enumerate(islice(reader, count)):
                batches.put(batch)
                if number == count // 2:  # in another block of the order than what the thread asks for
                    far_ahead.set()
            other.join(60)
    finally:
        sys.setswitchinterval(before)
    assert found == expected


@pytest.mark.parametrize("number", some_of([0, 1], 2))
@pytest.mark.parametrize("hooks", [Hooks(), Hooks(batch_sampler=uneven)])
def test_batches_that_are_not_full_are_counted_as_they_are(sources: dict[str, Any], hooks: Hooks, number: int) -> None:
    given = Parameters(source=sources["arrays"], batch_size=8, num_loaders=number, epochs=1, last_batch="partial")
    with open_pipeline(given, hooks) as pipeline:
        rows = []
        with contextlib.suppress(EndOfData):
            while True:
                rows.append(pipeline.peek().rows)
                pipeline.release(pipeline.take())

        def counted() -> bool:
            (readings,) = Monitor(os.getpid()).look()
            shown = as_mapping(readings)
            return (shown["batches"], shown["samples"]) == (len(rows), sum(rows))

        wait_until(counted, "all batches and their samples are counted")


# ---- states


def test_a_left_out_rest_of_an_epoch_is_not_read(sources: dict[str, Any]) -> None:
    """A loop that is left early: the next one begins with the next epoch, in the middle of a group."""
    settings = SETTINGS | {"epochs": 1, "last_batch": "partial"}
    with BatchReader(Counted(), **settings, num_loaders=0) as reader:
        expected = [[batch.indices.tolist() for batch in reader] for _ in range(2)]
    with BatchReader(source := Counted(), **settings, num_loaders=0) as reader:
        source.rows = 0
        assert [batch.indices.tolist() for batch in islice(reader, 3)] == expected[0][:3]
        assert source.rows == 3 * 4
        assert [check_labels(batch) for batch in reader] == expected[1]
        assert source.rows == 3 * 4 + SAMPLES


# ---- what there is not


def test_no_process_no_thread_and_no_ring_is_made(sources: dict[str, Any]) -> None:
    me = psutil.Process()
    seen: set[str] = set()

    def decode(sample: Sample, rng: np.random.Generator) -> dict[str, AnyArray]:
        assert os.getpid() == me.pid
        seen.update(descriptors().values())
        return dict(sample)

    def rings() -> set[str]:
        """The mapped ones; batches that a test before has kept may have some."""
        return {line for line in Path("/proc/self/maps").read_text().splitlines() if "blobfeed-ring" in line}

    threads, children, before = me.num_threads(), me.children(), rings()
    with BatchReader(sources["hdf5"], decode=decode, **SETTINGS, num_loaders=0) as reader:
        for _ in islice(reader, 5):
            assert (me.num_threads(), me.children()) == (threads, children)
        assert reader.statistics().loaders == 0
        assert reader.statistics().stalls > 0
        assert rings() <= before
    assert seen
    assert not [name for name in seen if "blobfeed-ring" in name]


def test_the_trainers_own_generators_go_on_as_if_nobody_had_used_them(sources: dict[str, Any]) -> None:
    def drawn() -> tuple[float, float]:
        return random.random(), np.random.rand()  # noqa: NPY002

    for steps in (0, 1):  # the trial in setup alone, and a batch as well
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        expected = drawn()
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        with BatchReader(sources["hdf5"], decode=noisy, postprocess=doubled, **SETTINGS, num_loaders=0) as reader:
            list(islice(reader, steps))
        assert drawn() == expected


def test_all_slots_held_is_told_as_with_loaders(sources: dict[str, Any]) -> None:
    given = Parameters(source=sources["npy"], batch_size=4, num_loaders=0, prefetch_batches=3)
    with open_pipeline(given) as pipeline:
        held = [pipeline.take() for _ in range(3)]
        as_they_were = [np.array(batch.tops["data"]) for batch in held]
        with pytest.raises(PipelineStalled):
            pipeline.take()
        pipeline.release(held[1])
        assert pipeline.take().number == 3
        for batch, was in ((held[0], as_they_were[0]), (held[2], as_they_were[2])):
            np.testing.assert_array_equal(batch.tops["data"], was)


# ---- errors and Ctrl-C


@pytest.mark.parametrize("kind", [Broken, BrokenRows])
def test_bad_samples_are_replaced_by_the_same_ones(kind: type[Broken]) -> None:
    settings = {**SETTINGS, "on_error": "replace", "last_batch": "partial"}
    with BatchReader(kind(), **settings, num_loaders=0) as reader:
        assert [bytes_of(batch) for batch in reader] == read(Broken(), **settings, num_loaders=2)
        assert reader.statistics().replaced == 2


@pytest.mark.parametrize("kind", [Broken, BrokenRows])
def test_an_error_is_the_same_and_its_cause_is_the_exception_itself(kind: type[Broken]) -> None:
    told = []
    for number in (0, 2):
        with BatchReader(kind(), batch_size=4, num_loaders=number, epochs=1) as reader:
            batches = iter(reader)
            good = [next(batches).indices.tolist() for _ in range(7)]
            with pytest.raises(SampleError) as raised:
                next(batches)
            with pytest.raises(SampleError):
                next(batches)
            state = reader.state_dict()
        error = raised.value
        told.append((good, str(error), error.index, error.path, repr(error.__cause__), state))
        if not number:
            assert isinstance(error.__cause__, ValueError)
            frames = traceback.extract_tb(error.__cause__.__traceback__)
            assert frames[-1].name == "read"  # a debugger gets to the user's own frame
    assert told[0] == told[1]


class Picky(Exception):
    """Cannot be made by its `args` alone."""

    def __new__(cls, *args: object, place: int) -> Picky:
        return super().__new__(cls, *args, place)

    def __init__(self, *args: object, place: int) -> None:
        super().__init__(*args, place)


@pytest.mark.parametrize(
    ("kind", "args", "given", "text"),
    [
        (Picky, ("odd",), {"place": 1}, "odd"),
        (UnicodeDecodeError, ("ascii", b"a", 0, 1, "odd"), {}, "byte 0x61 in position 0: odd"),
        (FileNotFoundError, (2, "no", "a.npy"), {}, "a.npy"),
    ],
)
def test_an_error_comes_again_with_the_text_of_its_cause(kind: Any, args: Any, given: Any, text: str) -> None:
    def decode(sample: Sample, rng: np.random.Generator) -> Sample:
        if sample.index:
            raise kind(*args, **given)
        return sample

    with BatchReader({"arrays": {"data": np.arange(8.0)}}, batch_size=4, num_loaders=0, decode=decode) as reader:
        batches = iter(reader)
        for _ in range(3):
            with pytest.raises(SampleError, match="sample 1 ") as raised:
                next(batches)
            assert text in str(raised.value.__cause__)


# ---- Ctrl-C


class Interrupted(Broken):
    """Ctrl-C falls into the reading of sample 11, once."""

    def __init__(self) -> None:
        super().__init__()
        self.interrupts = 1

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        for row, index in enumerate(indices.tolist()):
            if index == 11 and self.interrupts:
                self.interrupts = 0
                signal.raise_signal(signal.SIGINT)
            out["data"][row], out["label"][row] = index, index  # type: ignore[index]


def test_a_loop_begun_anew_after_ctrl_c_has_the_next_epoch_alone() -> None:
    settings: dict[str, Any] = {"batch_size": 4, "num_loaders": 0, "epochs": 1, "last_batch": "partial"}
    with BatchReader(Interrupted(), **settings) as reader:
        with pytest.raises(KeyboardInterrupt):
            list(reader)
        again = list(reader)
        assert [label for batch in again for label in check_labels(batch)] == [*range(SAMPLES)]
        assert {batch.epoch for batch in again} == {1}
        assert reader.state_dict()["position"] == 2 * SAMPLES


def twice(batch: Any) -> None:
    batch["data"] *= 2


def test_after_ctrl_c_in_a_hook_that_changes_batches_in_place_none_is_changed_again(sources: dict[str, Any]) -> None:
    interrupts = [1]

    def postprocess(batch: Any) -> None:
        twice(batch)
        if batch["label"][0] == 12 and interrupts:
            interrupts.clear()
            signal.raise_signal(signal.SIGINT)

    with BatchReader(sources["arrays"], postprocess=postprocess, batch_size=4, num_loaders=0, epochs=1) as reader:
        loop, got = iter(reader), list[Any]()
        with pytest.raises(KeyboardInterrupt):
            got.extend(loop)
        got.extend(loop)
    for number, batch in enumerate(got):
        assert batch.number == number
        np.testing.assert_array_equal(batch["data"], 2 * large(SAMPLES)[batch["label"]])
    assert len(got) == 11


@pytest.mark.parametrize(("hooks", "factor"), [(Hooks(), 1), (Hooks(postprocess=twice), 2)])
def test_ctrl_c_at_any_line_loses_no_batch_and_spoils_none(sources: dict[str, Any], hooks: Hooks, factor: int) -> None:
    given = {
        "source": sources["arrays"],
        "batch_size": 4,
        "num_loaders": 0,
        "epochs": 8,
        "last_batch": "partial",
    }
    expected = factor * large(SAMPLES)
    with open_pipeline(Parameters(**given), hooks) as pipeline:
        from blobfeed.readers.delivery import NamedBatches, make_tops

        batches = NamedBatches(pipeline, make_tops(pipeline.specs, pipeline.parameters, Path()))
        assert (pipeline.peek().make is not None) is (factor == 1)
        for number in range(80):
            interrupts_in(number + 1, batches.next, "pipeline", "delivery")
            batch = batches.next()
            batches.delivery.before = None
            assert batch.number == number
            np.testing.assert_array_equal(batch["data"], expected[batch["label"]])


def raises_at_22(sample: Sample, rng: np.random.Generator) -> Any:
    if sample.index == 22:
        raise ValueError("sample 22 is bad")
    return {"data": sample["data"]}


def raises_at_batch_3(batch: Any) -> Any:
    if 12 in batch.indices:
        raise ValueError("batch 3 is bad")
    return batch


@pytest.mark.parametrize("loaders", [0, 1])
def test_the_first_batch_that_fails_ends_the_run_though_a_sample_behind_it_is_bad_too(loaders: int) -> None:
    """All eight batches but the first one are one task: what is known of its samples is told before its batches."""
    source = {"arrays": {"data": np.arange(32, dtype=np.float32)}}
    hooks: dict[str, Any] = {"decode": raises_at_22, "postprocess": raises_at_batch_3}
    with BatchReader(source, batch_size=4, num_loaders=loaders, tops=["data"], **hooks) as reader:
        loop = iter(reader)
        assert [next(loop).number for _ in range(3)] == [0, 1, 2]
        with pytest.raises(SampleError, match="batch 3 is bad"):
            next(loop)
