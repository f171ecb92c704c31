"""A state that was saved over other data is refused, and the error says what has changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from blobfeed import BatchReader, ParameterError
from tests.support.pipelines import Numbered
from tests.support.reader_data import write_hdf5

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
