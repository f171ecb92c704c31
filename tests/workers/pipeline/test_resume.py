"""Readers stopped in any way go on with exactly the batch that would have come next."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.workers.api import AnyArray

from blobfeed import BatchReader, ParameterError, PipelineClosed, Sample
from tests.support.part import some_of
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
    assert trainer.wait(timeout=200) == -signal.SIGKILL
    return [json.loads(line) for line in lines if line.endswith("\n")]


@pytest.mark.parametrize(("loaders", "last_batch"), some_of([(2, "partial"), (1, "wrap"), (3, "wrap")], 3))
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
        with pytest.raises(PipelineClosed):
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


# ---- over other data


NOW_NS = 1_700_000_000_000_000_000


def saved(source: Any, **parameters: Any) -> dict[str, Any]:
    with BatchReader(source, batch_size=4, num_loaders=0, **parameters) as reader:
        next(iter(reader))
        return dict(reader.state_dict())


def load(state: dict[str, Any], source: Any, **parameters: Any) -> dict[str, Any]:
    with BatchReader(source, batch_size=4, num_loaders=0, **parameters) as reader:
        reader.load_state_dict(state)
        next(iter(reader))
        return dict(reader.state_dict())


def test_once_accepted_the_next_state_holds_the_new_data(tmp_path: Path) -> None:
    source, path = write_hdf5(tmp_path / "train.h5", 40), tmp_path / "train.h5"
    state = saved(source)
    os.utime(path, ns=(NOW_NS, NOW_NS))
    after = load(state, source, changed_data="accept")
    assert load(after, source)["batches"] == 3


def test_one_changed_source_of_a_mix_is_noticed_and_a_cache_is_no_change(tmp_path: Path) -> None:
    sources = [write_hdf5(tmp_path / f"{name}.h5", 40) for name in "ab"]
    state = saved(None, mix=sources)
    load(state, None, mix=sources, cache={"path": str(tmp_path / "cache"), "size_limit": 10**9})
    os.utime(tmp_path / "b.h5", ns=(NOW_NS, NOW_NS))
    with pytest.raises(ParameterError):
        load(state, None, mix=sources)


class Versioned(Numbered):
    def __init__(self, version: str) -> None:
        super().__init__(items=8)
        self.version = version

    def fingerprint(self) -> str:
        return self.version


def test_a_source_of_ones_own_is_known_by_its_own_fingerprint_alone() -> None:
    state, busy = saved(Numbered(items=8)), Numbered(items=8)
    vars(busy)["calls"] = 99
    load(state, busy)
    state = saved(Versioned("1"))
    load(state, Versioned("1"))
    with pytest.raises(ParameterError):
        load(state, Versioned("2"))
