"""`num_loaders: 0`: the trainer's process makes the batches itself, the very same ones that loaders would make."""

from __future__ import annotations

import contextlib
import os
import queue
import random
import sys
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
from blobfeed.readers.opening import open_pipeline
from blobfeed.workers.api import AnyArray, Hooks, Parameters
from blobfeed.workers.plan import State

from blobfeed import BatchReader, EndOfData, PipelineStalled, Sample
from blobfeed.monitor import Monitor, as_mapping
from tests.support.leftovers import descriptors
from tests.support.part import some_of
from tests.support.reader_data import labels
from tests.support.waiting import wait_until

from .in_process import (
    ALONE,
    SAMPLES,
    SETTINGS,
    Bytes,
    Counted,
    backwards,
    bytes_of,
    check_labels,
    doubled,
    large,
    noisy,
    read,
    sources,
    uneven,
)

__all__ = ["sources"]


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

    threads, children = me.num_threads(), me.children()
    with BatchReader(sources["hdf5"], decode=decode, **SETTINGS, num_loaders=0) as reader:
        for _ in islice(reader, 5):
            assert (me.num_threads(), me.children()) == (threads, children)
        assert reader.statistics().loaders == 0
        assert reader.statistics().stalls > 0
    assert seen
    assert not [name for name in seen if "blobfeed-ring" in name]
    assert "blobfeed-ring" not in Path("/proc/self/maps").read_text()


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
