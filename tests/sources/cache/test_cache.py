"""The decoded cache: each sample is read from the source once, and from the file ever after."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.sources.cache import CachedSource
from blobfeed.workers.api import IndexArray
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import ArraySpec, Source
from tests.sources.cache.numbers import LIMIT, SAMPLES, Numbers, check, check_lent, database
from tests.support.part import examples


@examples(40)
@given(
    st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=12), max_size=12),
    st.sampled_from([("data",), ("words", "label"), ("label", "words", "data")]),
)
def test_each_sample_is_read_from_the_source_once_and_from_the_file_ever_after(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], names: tuple[str, ...]
) -> None:
    path = tmp_path_factory.getbasetemp() / "cache"
    shutil.rmtree(path, ignore_errors=True)
    inner = Numbers(names, samples=20)
    with closing(CachedSource(inner, path, LIMIT)) as source:
        asked: set[int] = set()
        for batch in batches:
            reads = inner.reads.copy()
            check(source, inner, batch)
            assert all(inner.reads[index] == reads[index] for index in asked)
            asked |= set(batch)
        assert source.lend(np.arange(20)) is None or asked == set(range(20))
        check_lent(source, inner, sorted(asked))
        assert set(np.flatnonzero(inner.reads)) == asked
    assert list(source.specs) == list(names)
    again = Numbers(names, samples=20)
    with closing(CachedSource(again, path, LIMIT)) as source:
        assert source.cached_samples == len(asked)
        check(source, again, sorted(asked, reverse=True))
        assert not again.reads.any(), "the file is good in the next run, too"


def test_it_stands_for_the_source_behind_it(tmp_path: Path) -> None:
    inner = Numbers()
    with closing(CachedSource(inner, tmp_path / "cache", LIMIT)) as source:
        assert (len(source), source.chunk_samples, source.modules) == (SAMPLES, 7, ("json",))
        assert source.where(3) == inner.where(3)
        assert inner.fingerprint() in source.fingerprint()
        assert source.corners(np.array([4]))["step"] == 4
        check(source, inner, [1, 2])
        source.will_need(np.array([1, 2, 3, 9]))
    assert inner.needed == [3, 9], "what is cached need not be read again"


def test_a_fingerprint_tells_plain_attributes_apart_and_no_others() -> None:
    class Split(StrEnum):
        TRAIN = "train"
        TEST = "test"

    @dataclass
    class Some(Source):
        option: Any

        def __len__(self) -> int:
            return 3

        @property
        def specs(self) -> Mapping[str, ArraySpec]:
            return {}

        def read(self, indices: IndexArray, out: Any) -> None:
            raise NotImplementedError

    def said(option: Any) -> str:
        return Some(option).fingerprint()

    kinds: list[Any] = [Split.TRAIN, Split.TEST, 1, 2.5, "a", b"a", None, [None], {"a": [1]}, {"a": [2]}, ("a", 1)]
    assert len({said(option) for option in kinds}) == len(kinds)
    assert said(np.float64(2.5)) == said(2.5)
    assert said(Path("a")) == said("a")
    assert said(None) == said(object()) == said(threading.Lock()) == said([object()]), (
        "an address says nothing in another run"
    )


def test_part_of_a_sample_is_given_and_not_kept(tmp_path: Path) -> None:
    inner = Numbers()
    with closing(CachedSource(inner, tmp_path / "cache", LIMIT)) as source:
        labels = {"label": np.zeros(2, np.int64)}
        source.read(np.array([4, 5]), labels)
        assert labels["label"].tolist() == [inner.sample("label", 4), inner.sample("label", 5)]
        assert source.cached_samples == 0
        check(source, inner, [4, 5])
        source.read(np.array([5, 4]), labels)
    assert labels["label"].tolist() == [inner.sample("label", 5), inner.sample("label", 4)]
    assert inner.reads[4] == 2


# ---- a disk, or a limit, that is too small


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """The kernel refuses to make a file longer, much as a full disk does: the signal that goes with it is ignored."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.parametrize(
    ("size_limit", "largest_file", "reason"),
    [(100_000, -1, "size_limit of 100000 bytes is reached"), (LIMIT, 100_000, "mdb_txn_commit")],
)
def test_samples_beyond_the_limit_or_the_disk_are_read_each_time(
    size_limit: int, largest_file: int, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inner, path = Numbers(samples=1_000), tmp_path / "cache"
    with no_file_larger_than(largest_file), closing(CachedSource(inner, path, size_limit)) as source:
        for _ in range(3):
            for first in range(0, 1_000, 20):
                check(source, inner, [*range(first, first + 20)])
        held = source.cached_samples
    # On busy cores many samples wait to be written, and until that fails they are read from where they wait.
    assert 0 < held < 700
    assert (inner.reads.min(), (inner.reads == 1).sum() >= held, inner.reads.max() <= 3) == (1, True, True)
    assert database(path).stat().st_size <= 100_000
    assert caplog.text.count("takes no more samples") == 1
    assert f"it holds {held} of 1000: {reason}" in caplog.text
    again = Numbers(samples=1_000)
    with closing(CachedSource(again, path, size_limit)) as source:
        held = source.cached_samples
        check(source, again, [*range(1_000)])
    assert again.reads.sum() == 1_000 - held


def test_a_cache_that_is_found_full_at_its_end_leaves_nothing_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inner, path = Numbers(samples=1_000), tmp_path / "cache"
    before = len(list(Path("/proc/self/fd").iterdir()))
    with closing(CachedSource(inner, path, 100_000)) as source:
        folder = os.open(database(path).parent, os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX)  # as a writer does
        check(source, inner, [*range(1_000)])
        os.close(folder)
    assert "size_limit of 100000 bytes is reached" in caplog.text
    assert len(list(Path("/proc/self/fd").iterdir())) == before
