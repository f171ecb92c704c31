"""Readers stopped in any way go on with exactly the batch that would have come next."""

from __future__ import annotations

import hashlib
import json
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.readers.batch_reader import BatchReader
from blobfeed.workers.base.errors import ParameterError
from blobfeed.workers.base.hooks import Sample
from blobfeed.workers.base.specs import AnyArray
from blobfeed.workers.sources.stream import StreamSource

from tests.support.pipelines import Numbered
from tests.support.reader_data import write_hdf5

SAMPLES, BATCH, EPOCHS = 63, 4, 3
SETTINGS: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": 3, "epochs": EPOCHS}

# A trainer that notes of every batch what it was and where to go on after it, until it is killed.
TRAINER = """
import hashlib, json, signal, sys
import numpy as np
from blobfeed.readers.batch_reader import BatchReader
decode = lambda s, rng: (np.add(s["data"], rng.random(), dtype=np.float64), s["label"])
settings = json.loads(sys.argv[1])
with BatchReader(settings.pop("source"), decode=decode, **settings) as r:
    for batch in r:
        digest = hashlib.sha256(batch["data"].tobytes() + batch["label"].tobytes()).hexdigest()
        print(json.dumps([digest, r.state_dict()]), flush=True)
    signal.pause()  # it is killed, though it may have come to its end meanwhile
"""


def decode(sample: Sample, rng: np.random.Generator) -> tuple[AnyArray, AnyArray]:
    return np.add(sample["data"], rng.random(), dtype=np.float64), sample["label"]


def digests(reader: BatchReader) -> list[str]:
    return [hashlib.sha256(batch["data"].tobytes() + batch["label"].tobytes()).hexdigest() for batch in reader]


def lines_until_killed(settings: Mapping[str, Any], batches: int) -> list[Any]:
    """What a trainer wrote down before it was killed, at its batch number `batches` or a little later."""
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER, json.dumps(settings)], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    lines = []
    for line in trainer.stdout:
        lines.append(line)
        if len(lines) == batches:
            trainer.send_signal(signal.SIGKILL)
    trainer.stdout.close()
    assert trainer.wait(timeout=60) == -signal.SIGKILL
    return [json.loads(line) for line in lines if line.endswith("\n")]


@pytest.mark.parametrize(("loaders", "last_batch"), [(1, "wrap"), (2, "partial"), (3, "wrap")])
def test_a_killed_trainer_goes_on_where_it_was(tmp_path: Path, loaders: int, last_batch: str) -> None:
    source = write_hdf5(tmp_path / "train.h5", SAMPLES)
    settings = {**SETTINGS, "last_batch": last_batch, "num_loaders": loaders}
    with BatchReader(source, decode=decode, **{**settings, "num_loaders": 0}) as whole:
        expected = digests(whole)
    moment = random.randrange(1, len(expected) - 12)
    written = lines_until_killed({"source": source, **settings}, moment)
    assert [digest for digest, _ in written] == expected[: len(written)]
    # Another number of loaders, and any of the batches that it had: not only the last.
    taken = random.randrange(1, min(len(written) + 1, len(expected)))  # at its end another loop begins
    with BatchReader(source, decode=decode, **{**settings, "num_loaders": 1 + loaders % 3}) as resumed:
        resumed.load_state_dict(written[taken - 1][1])
        assert digests(resumed) == expected[taken:], f"resumed after {taken} of {len(written)} batches"


def test_a_state_can_be_loaded_in_the_middle_of_a_loop(tmp_path: Path) -> None:
    source = write_hdf5(tmp_path / "train.h5", SAMPLES)
    with BatchReader(source, **SETTINGS, num_loaders=1) as reader:
        start = reader.state_dict()
        expected = digests(reader)
        loop = iter(reader)
        next(loop)
        reader.load_state_dict(start)
        with pytest.raises(Exception, match="a state was loaded"):
            next(loop)
        assert digests(reader) == expected


def test_the_number_of_shards_may_change_where_an_epoch_ends(tmp_path: Path) -> None:
    source = write_hdf5(tmp_path / "train.h5", SAMPLES)
    settings = {**SETTINGS, "epochs": 1, "last_batch": "partial", "num_loaders": 1}

    def read(rank: int, size: int, state: Mapping[str, object] | None) -> tuple[list[int], Mapping[str, object]]:
        with BatchReader(source, rank=rank, world_size=size, **settings) as reader:
            if state is not None:
                reader.load_state_dict(state)
            return [int(label) for batch in reader for label in batch["label"]], reader.state_dict()

    state: Mapping[str, object] | None = None
    for size in (2, 3, 1):
        parts = [read(rank, size, state) for rank in range(size)]
        assert sorted(label for labels, _ in parts for label in labels) == list(range(SAMPLES))
        state = parts[0][1]


# ---- streams


def numbers(shard: int, shards: int) -> Iterator[tuple[AnyArray, int]]:
    for number in range(shard, 37, shards):
        yield np.full(3, number, np.float32), number


@pytest.mark.parametrize("last_batch", ["wrap", "drop", "partial"])
def test_streams_have_loops_and_states_too(last_batch: str) -> None:
    settings: dict[str, Any] = {"batch_size": BATCH, "epochs": 1, "last_batch": last_batch, "seed": 1}

    def reader(num_loaders: int = 2) -> BatchReader:
        stream = StreamSource(numbers, names=("data", "label"), shards=2, capacity=9)
        return BatchReader(stream, num_loaders=num_loaders, **settings)

    with reader(0) as whole:
        first, second = digests(whole), digests(whole)
        after = whole.state_dict()
        third = digests(whole)
        with pytest.raises(TypeError):
            len(whole)
    assert len(first) == {"wrap": 10, "drop": 8, "partial": 10}[last_batch]
    assert len({tuple(first), tuple(second), tuple(third)}) == 3
    with reader() as stopped:
        loop = iter(stopped)
        for _ in range(3):
            next(loop)
        state = stopped.state_dict()
    with reader() as resumed:
        resumed.load_state_dict(state)
        assert [digests(resumed), digests(resumed)] == [first[3:], second]
        resumed.load_state_dict(after)
        assert digests(resumed) == third


# ---- size


def cpu_s() -> float:
    """Seconds that this process and its children that have ended have computed: other work does not add to them."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def test_resuming_far_away_is_no_more_work_than_beginning() -> None:
    def work_for_first_batch(position: int) -> float:
        begun = cpu_s()
        with BatchReader(Numbered(10**9, 1), batch_size=64, shuffle=True, num_loaders=1) as reader:
            reader.load_state_dict({**reader.state_dict(), "position": position})
            batch = next(iter(reader))
        assert (batch["label"] == batch.indices).all()
        assert batch.epoch * 10**9 + batch.position == position
        return cpu_s() - begun

    near, far = (work_for_first_batch(position) for position in (0, 10**12 + 10**9 - 64))
    assert far < near + 2.0, "to go through a thousand million samples would take far longer"


# ---- states that do not fit


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    source = write_hdf5(tmp_path / "train.h5", SAMPLES)
    cases: list[dict[str, object]] = [{"seed": 4}, {"position": -1}, {"position": "0"}, {"version": 99}, {"colour": 1}]
    with BatchReader(source, **SETTINGS, num_loaders=1) as reader:
        loop = iter(reader)
        before = next(loop)
        for number, change in enumerate(cases, before.number + 1):
            with pytest.raises(ParameterError):
                reader.load_state_dict({**reader.state_dict(), **change})
            assert next(loop).number == number
