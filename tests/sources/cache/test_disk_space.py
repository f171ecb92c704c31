"""The decoded cache and a disk, or a limit, that is too small."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from blobfeed.sources.cache import CachedSource

from tests.sources.cache.numbers import LIMIT, Numbers, check, database


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
    assert 40 < held < 700  # 80 were held once, on busy cores
    assert [(inner.reads == times).sum() for times in (1, 3)] == [held, 1_000 - held]
    assert database(path).stat().st_size <= 100_000
    assert caplog.text.count("takes no more samples") == 1
    assert f"it holds {held} of 1000: {reason}" in caplog.text


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
