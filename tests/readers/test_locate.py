"""Where the samples of a batch stand, before it is made and after: equal to what is delivered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.readers.opening import Place
from blobfeed.workers.api import AnyArray

from blobfeed import BatchReader, NamedBatch, ParameterError, Sample
from tests.support.commands import run
from tests.support.reader_data import write_hdf5

SAMPLES, BATCHES = 43, 30


def every_second(epoch: int, samples: int, rng: np.random.Generator) -> AnyArray:
    return rng.permutation(samples)[: samples // 2 - epoch % 3]


def small_batches(epoch: int, samples: int, rng: np.random.Generator) -> Iterator[AnyArray]:
    for first in range(0, samples - 2 - epoch % 2 * 7, 3):
        yield rng.integers(samples, size=1 + first % 4)


KINDS: dict[str, dict[str, Any]] = {
    "sequential": {},
    "shuffled": {"shuffle": True},
    "chunk": {"shuffle": "chunk"},
    "rand_skip": {"shuffle": True, "rand_skip": 30},
    "drawn": {"sampler": {"draws": 23}},
    "balanced": {"sampler": {"balance": "label"}},
    "excluded": {"sampler": {"exclude": [0, 7, 40]}, "shuffle": True},
    "function": {"sampler": every_second},
    "batches": {"batch_sampler": small_batches},
}


def epoch_of(sample: Sample, rng: np.random.Generator) -> dict[str, int]:
    return {"epoch": sample.epoch}


def places(batch: NamedBatch) -> list[tuple[int, int]]:
    """(epoch, index) of each row of a reader whose decode hook is `epoch_of`."""
    return list(zip(batch["epoch"].tolist(), batch.indices.tolist(), strict=True))


def located(found: dict[int, list[Place]]) -> dict[int, list[tuple[int, int]]]:
    return {number: [(place.epoch, place.index) for place in rows] for number, rows in found.items()}


@pytest.mark.parametrize("last_batch", ["wrap", "drop", "partial"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_batch_is_located_as_it_is_delivered_past_or_coming_and_from_any_state(
    tmp_path: Path, kind: str, last_batch: str
) -> None:
    given: dict[str, Any] = {"batch_size": 4, "num_loaders": 0, "seed": 5, "last_batch": last_batch, **KINDS[kind]}
    given |= {"epochs": None, "rank": 1, "world_size": 2, "decode": epoch_of}
    source = write_hdf5(tmp_path / "train.h5", SAMPLES)
    with BatchReader(source, **given) as reader:
        ahead = located(reader.locate(range(BATCHES)))
        delivered, state = {}, dict(reader.state_dict())
        for batch in islice(reader, BATCHES):
            delivered[batch.number] = places(batch)
            if batch.number == 11:
                state = dict(reader.state_dict())
        assert ahead == delivered
        assert located(reader.locate(7)) == located(reader.locate(np.int64(7))) == {7: delivered[7]}
    with BatchReader(source, **given) as resumed:
        resumed.load_state_dict(state)
        assert located(resumed.locate(range(5, 20))) == {number: delivered[number] for number in range(5, 20)}


def test_a_mix_is_located_by_the_epochs_and_the_files_of_its_sources(tmp_path: Path) -> None:
    sources = [write_hdf5(tmp_path / "a.h5", 10), write_hdf5(tmp_path / "b.h5", 30)]
    with BatchReader(mix=sources, batch_size=4, shuffle=True, num_loaders=0, epochs=None, decode=epoch_of) as reader:
        found = reader.locate(range(12))
        assert located(found) == {batch.number: places(batch) for batch in islice(reader, 12)}
    assert {place.where.split(".h5")[0][-1] for place in found[0]} == {"a", "b"}


def test_excluded_samples_never_come(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_text("3\n5\n3\n")
    source = write_hdf5(tmp_path / "train.h5", 8)
    given: dict[str, Any] = {"base_dir": tmp_path, "batch_size": 6, "num_loaders": 0, "epochs": 1}
    with BatchReader(source, sampler={"exclude": "bad.txt"}, **given) as reader:
        assert [batch.indices.tolist() for batch in reader] == [[0, 1, 2, 4, 6, 7]]


def test_from_a_state_of_another_batch_size_what_comes_is_located(tmp_path: Path) -> None:
    source = write_hdf5(tmp_path / "train.h5", SAMPLES)
    with BatchReader(source, batch_size=4, num_loaders=0, epochs=None) as reader:
        list(islice(reader, 5))
        state = reader.state_dict()
    with BatchReader(source, batch_size=8, num_loaders=0, epochs=None) as reader:
        reader.load_state_dict(state)
        assert reader.locate(5)[5][0].index == 20


def test_weights_that_were_set_count_in_coming_epochs_and_batches_before_them_are_refused(tmp_path: Path) -> None:
    source = write_hdf5(tmp_path / "train.h5", SAMPLES)
    given: dict[str, Any] = {"batch_size": 4, "num_loaders": 0, "epochs": None, "sampler": {"draws": 8}}
    given["decode"] = epoch_of
    with BatchReader(source, **given) as reader:
        reader.set_weights(np.eye(SAMPLES)[6])
        first = located(reader.locate(range(3)))
        assert first == {batch.number: places(batch) for batch in islice(reader, 3)}
        reader.set_weights(np.eye(SAMPLES)[2])
        coming = located(reader.locate(range(3, 8)))
        assert [{index for _, index in coming[number]} for number in range(3, 8)] == [{6}, {2}, {2}, {2}, {2}]
        assert coming == {batch.number: places(batch) for batch in islice(reader, 5)}
        with pytest.raises(ParameterError):
            reader.locate(1)


def test_the_command_prints_the_last_batch_before_a_state_or_those_asked_for(tmp_path: Path) -> None:
    source = write_hdf5(tmp_path / "train.h5", SAMPLES)
    given: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 2}
    with BatchReader(source, num_loaders=0, epochs=1, **given) as reader:
        numbered = {batch.number: batch.indices.tolist() for batch in islice(reader, 5)}
        (tmp_path / "state.json").write_text(json.dumps(reader.state_dict()))
    text = json.dumps({"source": source, **given})
    last = run("which", text, "--state", str(tmp_path / "state.json")).output.splitlines()
    assert [line.split(" sample ")[1].split()[0] for line in last] == list(map(str, numbered[4]))
    assert last[0].startswith("batch 4 row 0: epoch 0 sample ")
    assert "train.h5" in last[0]
    lines = run("which", text, "--state", str(tmp_path / "state.json"), "--batches", "1..40").output.splitlines()
    assert len(lines) == 40 * 3 - 2 * 2  # 43 samples: the last batch of an epoch has one
    assert [int(line.split(" sample ")[1].split()[0]) for line in lines[:3]] == numbered[1]
    assert "expected a number" in run("which", text, "--batches", "x").output


def test_the_command_ends_each_loop_by_a_short_batch_as_a_reader_does_by_default(tmp_path: Path) -> None:
    given: dict[str, Any] = {"source": write_hdf5(tmp_path / "train.h5", SAMPLES), "batch_size": 4}
    with BatchReader(**given, num_loaders=0) as reader:
        delivered = [(batch.number, index) for _ in range(2) for batch in reader for index in batch.indices.tolist()]
    lines = run("which", json.dumps(given), "--batches", "10..11").output.splitlines()
    printed = [(int(line.split()[1]), int(line.split(" sample ")[1].split()[0])) for line in lines]
    assert printed == [(number, index) for number, index in delivered if number in (10, 11)]
