"""Streams: every sample once an epoch, the same batches whatever the loaders are and whoever dies."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.readers.opening import open_pipeline
from blobfeed.workers.api import AnyArray, Hooks, check_parameters
from blobfeed.workers.order import SampleRng
from blobfeed.workers.pipeline import Pipeline
from blobfeed.workers.plan import Batch, usable_cores

from blobfeed import BatchReader, EndOfData, ParameterError, Sample, SampleError, StreamSource
from tests.support.crash_table import hung_s
from tests.support.part import some_of
from tests.support.waiting import wait_until

SAMPLES = 53

Seen = tuple[int, int, list[int]]
"""epoch, shard, sample numbers of a batch"""


def numbered(shard: int, num_shards: int) -> Iterator[dict[str, object]]:
    """Samples 0 … 52 dealt to the shards."""
    for number in range(shard, SAMPLES, num_shards):
        yield {"data": np.full(3, number, np.float32), "number": number, "name": f"item {number}"}


def shuffled_source(shards: int = 2) -> StreamSource:
    return StreamSource(numbered, shards=shards, capacity=10)


def make_pipeline(source: StreamSource | None = None, hooks: Hooks = Hooks(), **options: Any) -> Pipeline:  # noqa: B008
    values = {"batch_size": 4, "num_loaders": 0, "epochs": 2, "last_batch": "partial", **options}
    parameters = check_parameters({"source": {"stream": {}}, **values})
    return open_pipeline(parameters, hooks, source=source or shuffled_source())


def batches(pipeline: Pipeline, most: int | None = None) -> Iterator[Batch]:
    for number in count():
        if number == most:
            return
        try:
            batch = pipeline.take()
        except EndOfData:
            return
        yield batch
        pipeline.release(batch)


def seen(batch: Batch) -> Seen:
    number = batch.tops["number"]
    assert isinstance(number, np.ndarray)
    return batch.epoch, batch.runs[0].shard, number.tolist()


def read_all(**options: Any) -> list[Seen]:
    with make_pipeline(**options) as pipeline:
        return [seen(batch) for batch in batches(pipeline)]


def samples_of(epoch: int, run: list[Seen]) -> list[int]:
    return [number for batch_epoch, _, numbers in run if batch_epoch == epoch for number in numbers]


@pytest.fixture(scope="module")
def whole() -> list[Seen]:
    """A run that nothing disturbs."""
    return read_all()


def test_each_epoch_has_every_sample_once_and_in_a_new_order(whole: list[Seen]) -> None:
    first, second = samples_of(0, whole), samples_of(1, whole)
    assert sorted(first) == sorted(second) == list(range(SAMPLES))
    assert first != second


def _kill_a_loader(pipeline: Pipeline, number: int) -> None:
    loaders = [state.pid for state in pipeline.activities() if state.pid]
    if loaders:
        os.kill(loaders[number % len(loaders)], signal.SIGKILL)


@pytest.mark.parametrize("taken", some_of([7, 0, 20], 3))
def test_a_run_goes_on_from_its_state(whole: list[Seen], taken: int) -> None:
    with make_pipeline() as pipeline:
        begun = [seen(batch) for batch in batches(pipeline, taken)]
        state = pipeline.state_dict()
    with make_pipeline(num_loaders=3) as pipeline:
        pipeline.load_state_dict(state)
        assert begun + [seen(batch) for batch in batches(pipeline)] == whole


@pytest.mark.parametrize("shards", [None, 3])
def test_a_run_keeps_its_shards_unless_others_were_asked_for(whole: list[Seen], shards: int | None) -> None:
    """Without the option there are as many as loaders: here one, and on another machine two."""
    with make_pipeline() as pipeline:
        begun = [seen(batch) for batch in batches(pipeline, 3)]
        state = pipeline.state_dict()
    source = StreamSource(numbered, shards=shards, capacity=10)
    with make_pipeline(source) as pipeline:
        if shards is None:
            pipeline.load_state_dict(state)
            assert begun + [seen(batch) for batch in batches(pipeline)] == whole
        else:
            with pytest.raises(ParameterError, match=r"shards=2.*shards=3"):
                pipeline.load_state_dict(state)


def test_batches_are_counted_without_the_empty_ones_that_a_shard_gave_at_its_end() -> None:
    with make_pipeline(num_loaders=2) as pipeline:
        assert [batch.number for batch in batches(pipeline, 20)] == [*range(20)]
        state = pipeline.state_dict()
    with make_pipeline() as pipeline:
        pipeline.load_state_dict(state)
        assert next(batches(pipeline)).number == 20


def test_the_ends_of_shards_keep_nobody_waiting() -> None:
    ahead: dict[str, Any] = {"num_loaders": 2, "prefetch_batches": 1}
    with make_pipeline(epochs=41, batch_size=SAMPLES, source=shuffled_source(1), **ahead) as pipeline:
        run = batches(pipeline)
        next(run)
        begun = time.monotonic()
        assert [batch.epoch for batch in run] == [*range(1, 41)]
        assert time.monotonic() - begun < 30, "the assembler waited a second for news at each of 40 ends"


# ---- wrap: each shard's epochs follow each other without a border


def wrapped(shards: int = 5, **options: Any) -> Pipeline:
    return make_pipeline(shuffled_source(shards), **{"batch_size": 8, "last_batch": "wrap", **options})


def seen_rows(pipeline: Pipeline, most: int | None = None) -> list[tuple[Seen, list[int]]]:
    return [(seen(batch), batch.indices.tolist()) for batch in batches(pipeline, most)]


def test_shards_with_ends_survive_their_loaders_and_a_restart() -> None:
    with wrapped() as pipeline:
        whole = seen_rows(pipeline)
    for taken in (9, 12):
        with wrapped() as pipeline:
            begun = seen_rows(pipeline, taken)
            state = pipeline.state_dict()
        with wrapped(num_loaders=3) as pipeline:
            pipeline.load_state_dict(state)
            pipeline.start()
            wait_until(lambda: any(each.pid for each in pipeline.activities()), "a loader is there")
            _kill_a_loader(pipeline, taken)
            wait_until(lambda: pipeline.statistics().loader_deaths, "its death has been seen")
            assert begun + seen_rows(pipeline) == whole


def test_a_shard_may_be_run_again_for_longer_than_a_task(tmp_path: Path) -> None:
    slow, limit = tmp_path / "slow", hung_s()

    def slowly() -> Iterator[dict[str, int]]:
        for number in range(50):
            time.sleep(limit / 25 if slow.exists() else 0)
            yield {"number": number}

    def pipeline(**options: Any) -> Pipeline:
        return make_pipeline(StreamSource(slowly, capacity=40), epochs=1, num_loaders=1, **options)

    with pipeline() as whole:
        wanted = [seen(batch) for batch in batches(whole)]
    with pipeline() as begun:
        list(batches(begun, 12))
        state = begun.state_dict()
    slow.touch()
    with pipeline(task_timeout_s=limit) as resumed:
        resumed.load_state_dict(state)
        found = [seen(batch) for batch in batches(resumed)]
        assert resumed.statistics().loader_deaths == 0
    assert found == wanted[12:]


def test_auto_starts_a_loader_for_each_shard_before_any_batch_is_taken() -> None:
    with make_pipeline(shuffled_source(2), num_loaders="auto", cpu_share=1.0) as pipeline:
        pipeline.start()
        loaders = min(2, usable_cores())
        wait_until(lambda: sum(each.pid > 0 for each in pipeline.activities()) == loaders, "each shard has a loader")


def test_strings_arrive_as_bytes_beside_their_sample() -> None:
    with make_pipeline(epochs=1) as pipeline:
        for batch in batches(pipeline):
            numbers, names = batch.tops["number"], batch.tops["name"]
            assert isinstance(names, np.ndarray)
            assert isinstance(numbers, np.ndarray)
            assert names.tolist() == [f"item {number}".encode() for number in numbers.tolist()]


def into_one_dict() -> Iterator[dict[str, object]]:
    sample: dict[str, object] = {}
    for number in range(SAMPLES):
        sample["number"] = number
        yield sample


def into_one_array() -> Iterator[tuple[AnyArray, int]]:
    data = np.zeros(2, np.int64)
    for number in range(SAMPLES):
        data[:] = number
        yield data, number


def into_one_list() -> Iterator[list[int]]:
    parts = [0]
    for number in range(SAMPLES):
        parts[0] = number
        yield parts


def into_one_bytearray() -> Iterator[tuple[bytearray, int]]:
    data = bytearray(2)
    for number in range(SAMPLES):
        data[0] = number
        yield data, number


@pytest.mark.parametrize("make", some_of([into_one_dict, into_one_array, into_one_list, into_one_bytearray], 2))
def test_what_fills_the_same_memory_for_each_sample_is_shuffled_right(make: Any) -> None:
    source = StreamSource(make, capacity=10)
    with BatchReader(source, batch_size=8, epochs=1, last_batch="partial", num_loaders=0) as reader:
        columns = [np.concatenate(list(column)) for column in zip(*(batch.values() for batch in reader), strict=True)]
    numbers = columns[-1].tolist()
    assert sorted(numbers) == list(range(SAMPLES))
    assert numbers != sorted(numbers)
    assert columns[0].reshape(SAMPLES, -1)[:, 0].tolist() == numbers


@pytest.mark.parametrize(("shards", "world_size"), some_of([(2, 2), (1, 1), (3, 1), (1, 2)], 4))
def test_random_numbers_belong_to_one_sample_of_all_shards_and_ranks(shards: int, world_size: int) -> None:
    def draw(sample: Sample, rng: np.random.Generator) -> dict[str, AnyArray]:
        return {"number": sample["number"], "own": np.array(rng.random()), "global": np.array(random.random())}

    own: dict[int, float] = {}
    drawn: set[float] = set()
    for rank in range(world_size):
        options = {"num_loaders": 0, "epochs": 1, "tops": ["number", "own", "global"]}
        ranks = {"rank": rank, "world_size": world_size}
        with make_pipeline(StreamSource(numbered, shards=shards), Hooks(decode=draw), **options, **ranks) as pipeline:
            for batch in batches(pipeline):
                number, *values = (np.asarray(top).tolist() for top in batch.tops.values())
                own.update(zip(number, values[0], strict=True))
                drawn.update(chain(*values))
    assert len(drawn) == 2 * SAMPLES
    # Sample i of shard i % n is the shard's i // n-th: its key is i again, that of sample i of an indexed source.
    sample_rng = SampleRng(seed=0)
    assert own == {number: sample_rng.generator(0, number).random() for number in range(SAMPLES)}


def raises_at(bad: int) -> Hooks:
    def decode(sample: Sample, _: np.random.Generator) -> dict[str, AnyArray]:
        if sample["number"] == bad:
            raise ValueError(f"number {bad} is bad")
        return dict(sample)

    return Hooks(decode=decode)


@pytest.mark.parametrize("num_loaders", some_of([0, 1], 2))
@pytest.mark.parametrize(("last_batch", "shards", "bad"), [("partial", 1, 52), ("wrap", 3, 51)])
def test_a_batch_without_a_good_sample_ends_the_run_behind_all_before_it(
    last_batch: str, shards: int, bad: int, num_loaders: int
) -> None:
    """Of 53 samples the last batch of 4 has one; of a shard of 18 and a batch of 17 one is left."""
    options: dict[str, Any] = {"tops": ["data", "number", "name"], "epochs": 1, "on_error": "replace"}
    options |= {"last_batch": last_batch, "batch_size": 4 if shards == 1 else 17, "num_loaders": num_loaders}
    whole = read_all(source=StreamSource(numbered, shards=shards), **options)
    (place,) = (number for number, (_, _, numbers) in enumerate(whole) if numbers == [bad])
    found: list[Seen] = []
    with make_pipeline(StreamSource(numbered, shards=shards), raises_at(bad), **options) as pipeline:
        with pytest.raises(SampleError, match=f"number {bad} is bad") as caught:
            found.extend(seen(batch) for batch in batches(pipeline))
        assert isinstance(caught.value.__cause__, ValueError)
    assert found == whole[:place]


@pytest.mark.parametrize("last_batch", ["partial", "wrap"])
def test_the_trainer_and_the_hook_learn_which_sample_replaces_a_bad_one(last_batch: str) -> None:
    def note(batch: Any) -> dict[str, AnyArray]:
        return {**batch, "seen": batch.indices.copy()}

    hooks = Hooks(decode=raises_at(6).decode, postprocess=note)
    options: dict[str, Any] = {"on_error": "replace", "last_batch": last_batch, "num_loaders": 0}
    with make_pipeline(StreamSource(numbered, shards=1), hooks, **options) as pipeline:
        replaced = 0
        for batch in batches(pipeline):
            number, hooked = (np.asarray(batch.tops[name]) for name in ("number", "seen"))
            assert batch.indices.tolist() == hooked.tolist()
            assert (batch.indices % SAMPLES).tolist() == number.tolist()  # with `wrap` it counts on
            replaced += bool(batch.replaced)
        assert replaced == pipeline.statistics().replaced == 2


def ends_its_loader(shard: int, num_shards: int) -> Iterator[dict[str, object]]:
    for number in range(20):
        if number == 9:
            os._exit(3)
        yield {"number": number}


@pytest.mark.parametrize("on_error", some_of(["replace", "raise"], 2))
def test_a_sample_on_which_loaders_die_is_an_error_behind_the_batches_before_it(on_error: str) -> None:
    with make_pipeline(StreamSource(ends_its_loader, shards=1), num_loaders=1, on_error=on_error) as pipeline:
        found: list[list[int]] = []
        with pytest.raises(SampleError, match=r"\b3\b"):
            found.extend(batch.tops["number"].tolist() for batch in batches(pipeline))  # type: ignore[union-attr]
        assert pipeline.statistics().batches == 2
