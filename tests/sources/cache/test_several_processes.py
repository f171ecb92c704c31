"""The decoded cache: whoever fills it, and whoever dies or stops while doing so."""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from blobfeed.sources import open_source
from blobfeed.sources.cache import CachedSource
from blobfeed.workers.api import AnyArray

from blobfeed import BatchReader
from tests.sources.cache.numbers import LIMIT, Numbers, check, database, everything
from tests.support.forked import exit_code, fork
from tests.support.pictures import encoded, picture, write_list
from tests.support.waiting import DEADLINE_S

WORDS = ("data", "words")


def reading(made: bytes, inner: Numbers, seed: int) -> Callable[[], None]:
    """A process that has the cache `made` reads all samples one by one, in an order of its own."""

    def work() -> None:
        with closing(pickle.loads(made)) as source:
            for index in np.random.default_rng(seed).permutation(len(inner)).tolist():
                check(source, inner, [index])

    return work


def test_processes_fill_one_cache_at_the_same_time(tmp_path: Path) -> None:
    inner, path = Numbers(WORDS), tmp_path / "cache"
    made = pickle.dumps(CachedSource(inner, path, LIMIT))

    def run() -> None:
        with closing(CachedSource(inner, path, LIMIT)) as source:
            check(source, inner, everything)

    works = [reading(made, inner, 1), reading(made, inner, 1), reading(made, inner, 2), run, run]
    assert [exit_code(child) for child in [fork(work) for work in works]] == [0] * 5
    with closing(pickle.loads(made)) as source:
        assert source.cached_samples == len(inner)
        check(source, inner, everything)
        assert source.cache_counts == (len(inner), 0, 0)


def test_of_900_samples_all_are_whole_after_writers_were_killed(tmp_path: Path) -> None:
    inner = Numbers(WORDS, samples=900)
    made = pickle.dumps(CachedSource(inner, tmp_path / "cache", LIMIT))

    def killed(seed: int) -> None:
        kernel, random = fcntl.flock, np.random.default_rng(seed)

        def flock(lock: Any, operation: int) -> None:
            kernel(lock, operation)
            if operation & fcntl.LOCK_EX and seed < 60:  # a commit begins, which takes some milliseconds
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 20e-3))

        fcntl.flock = flock
        reading(made, inner, seed)()

    ended: list[int] = []
    stored = 0
    while stored < 900:
        writers = [fork(partial(killed, len(ended) + number)) for number in range(3)]
        ended += map(exit_code, writers)
        assert len(ended) < 3000
        with closing(pickle.loads(made)) as source:
            stored = source.cached_samples
    assert set(ended) <= {0, -signal.SIGALRM}
    assert ended.count(-signal.SIGALRM) > 20
    with closing(pickle.loads(made)) as source:
        check(source, inner, [*range(900)])
        assert source.cache_counts == (900, 0, 0)


def test_nobody_waits_for_a_writer_that_stopped(tmp_path: Path) -> None:
    inner, path = Numbers(), tmp_path / "cache"
    with closing(CachedSource(inner, path, LIMIT)) as source:
        folder = os.open(database(path).parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # as a writer does
            for _ in range(2):
                check(source, inner, everything)
            assert (set(inner.reads), source.cached_samples) == ({1}, 0)
            begun = time.monotonic()
            source.close()
            assert time.monotonic() - begun < DEADLINE_S
        finally:
            os.close(folder)
        check(source, inner, everything)
        assert (set(inner.reads), source.cached_samples) == ({2}, len(inner))


def test_a_fork_reads_on_and_leaves_the_cache_to_its_parent(tmp_path: Path) -> None:
    inner = Numbers(samples=120)
    with closing(CachedSource(inner, tmp_path / "cache", LIMIT)) as source:
        check(source, inner, everything)

        def read() -> None:
            check(source, inner, [*range(30, 90)])
            source.close()

        assert exit_code(fork(read)) == 0
        check(source, inner, [*range(120)])
        source.close()
        assert source.cached_samples == 120


def test_a_run_reads_what_another_with_a_larger_limit_has_stored(tmp_path: Path) -> None:
    inner, path = Numbers(samples=1_000), tmp_path / "cache"
    CachedSource(inner, path, LIMIT).close()
    small = pickle.dumps(CachedSource(inner, path, 100_000))
    begun, go_on = os.pipe(), os.pipe()

    def read() -> None:
        with closing(pickle.loads(small)) as source:
            check(source, inner, [0])
            os.write(begun[1], b".")
            os.read(go_on[0], 1)
            check(source, inner, [*range(1_000)])
            assert source.cache_counts == (1_000, 1, 0)

    child = fork(read)
    os.read(begun[0], 1)
    with closing(CachedSource(inner, path, LIMIT)) as large:
        check(large, inner, [*range(1_000)])
    os.write(go_on[1], b".")
    assert exit_code(child) == 0
    for end in (*begun, *go_on):
        os.close(end)


def batches(folder: Path, loaders: int, cache: dict[str, Any] | None) -> list[AnyArray]:
    """Three epochs of randomly cropped and mirrored images, through real loaders."""
    given: dict[str, Any] = {"batch_size": 20, "shuffle": True, "seed": 5, "epochs": 3, "num_loaders": loaders}
    given |= {"transform": {"crop_size": 24, "mirror": True}, "cache": cache, "base_dir": folder}
    with BatchReader({"image_list": {"path": "list.txt", "shorter_side": 30}}, **given) as reader:
        return [batch["data"] for batch in reader]


def test_loaders_fill_the_cache_and_the_batches_are_those_without_it(tmp_path: Path) -> None:
    pictures = {f"{k}.jpg": encoded(picture(60 + k, 80)) for k in range(40)}
    write_list(tmp_path, pictures)
    without = batches(tmp_path, 2, None)
    cache = {"path": "cache", "size_limit": LIMIT}
    source = open_source({"image_list": {"path": "list.txt", "shorter_side": 30}}, tops=None, base_dir=tmp_path)
    made = pickle.dumps(CachedSource(source, tmp_path / "cache", LIMIT))

    def stored() -> int:
        with closing(pickle.loads(made)) as cached:
            samples: int = cached.cached_samples
            return samples

    deadline = time.monotonic() + DEADLINE_S
    while stored() < 40:  # loaders are ended with what is pending
        assert time.monotonic() < deadline
        np.testing.assert_array_equal(batches(tmp_path, 2, cache), without)
    for name in pictures:  # not one is decoded any more
        status = (tmp_path / name).stat()
        (tmp_path / name).write_bytes(bytes(status.st_size))
        os.utime(tmp_path / name, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert len(without) == 6
    np.testing.assert_array_equal(batches(tmp_path, 1, cache), without)
