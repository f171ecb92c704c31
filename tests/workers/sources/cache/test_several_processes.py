"""The decoded cache: whoever fills it, and whoever dies while doing so."""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import json
import os
import pickle
import re
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.workers.api import AnyArray, allocate_rows, check_parameters
from blobfeed.workers.pipeline import Pipeline
from blobfeed.workers.sources import open_source
from blobfeed.workers.sources.cache import CachedSource
from blobfeed.workers.sources.cache import file as sample_cache_file

from blobfeed import RaggedRows, Source, SourceError
from tests.support.pictures import encoded, noise, picture, write_list
from tests.support.waiting import DEADLINE_S
from tests.workers.sources.cache.numbers import LIMIT, Numbers, filled, names_in


def digests(source: Source, seed: int = 0) -> list[str]:
    """A digest of each sample, read one by one in a random order."""
    found: dict[int, str] = {}
    for index in np.random.default_rng(seed).permutation(len(source)).tolist():
        rows = allocate_rows(source.specs, 1)
        source.read(np.array([index]), rows)
        found[index] = hashlib.sha256(b"".join(_bytes(top) for top in rows.values())).hexdigest()
    return [found[index] for index in range(len(source))]


def _bytes(top: Any) -> bytes:
    content: bytes = (top.get(0) if isinstance(top, RaggedRows) else top).tobytes()
    return content


# The child has the two functions above, by their text: it need not know of this module.
_CHILD = f"""
from __future__ import annotations
import hashlib, json, os, pickle, signal, sys
import numpy as np
from blobfeed.workers.api import RaggedRows, allocate_rows
{inspect.getsource(digests)}
{inspect.getsource(_bytes)}
source = pickle.load(sys.stdin.buffer)
"""


def child(code: str, source: Source) -> subprocess.Popen[bytes]:
    """A process that has `source`, and runs `code` when its standard input has ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=source.descriptors,
    )
    assert process.stdin is not None
    process.stdin.write(pickle.dumps(source))
    return process


def finished(process: subprocess.Popen[bytes]) -> bytes:
    output, _ = process.communicate(timeout=DEADLINE_S)
    return output


@pytest.fixture(params=[{"new_height": 40, "new_width": 50}, {"shorter_side": 30}], ids=["fixed", "varying"])
def images(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    folder = tmp_path / "images"
    pictures = {f"{k}.png": encoded(noise(30 + k, 40, seed=k), ".png") for k in range(80)}
    path = write_list(folder, pictures)
    return open_source({"image_list": {"path": str(path), **request.param}}, tops=None, base_dir=folder)


def test_two_processes_fill_one_cache_at_the_same_time(tmp_path: Path, images: Source) -> None:
    with closing(CachedSource(images, tmp_path / "cache", LIMIT)) as source:
        processes = [child(f"print(json.dumps(digests(source, {seed})))", source) for seed in (1, 1, 2)]
        results = [json.loads(finished(process)) for process in processes]
        assert source.cached_samples == len(images)
        assert results == [digests(images)] * 3
        assert digests(source) == results[0]


def test_runs_that_start_together_share_one_file(tmp_path: Path, images: Source) -> None:
    code = f"""
from pathlib import Path
from blobfeed.workers.api import check_parameters
from blobfeed.workers.pipeline import Pipeline
from blobfeed.workers.sources.cache import CachedSource
cached = CachedSource(source, Path({str(tmp_path / "cache")!r}), {LIMIT})
print(json.dumps(digests(cached)))
cached.close()
"""
    expected = digests(images)
    results = [json.loads(finished(process)) for process in [child(code, images) for _ in range(4)]]
    assert results == [expected] * 4
    with closing(CachedSource(images, tmp_path / "cache", LIMIT)) as source:
        assert source.cached_samples == len(images)
    assert names_in(tmp_path) == {"cache", "images"}


def test_a_process_that_dies_in_the_middle_of_a_write_has_published_nothing(tmp_path: Path, images: Source) -> None:
    code = """
write = os.pwrite
def half(descriptor, data, offset):
    write(descriptor, bytes(data)[: len(data) // 2], offset)
    os.kill(os.getpid(), signal.SIGKILL)
os.pwrite = half
digests(source)
"""
    with closing(CachedSource(images, tmp_path / "cache", LIMIT)) as source:
        process = child(code, source)
        finished(process)
        assert process.returncode == -signal.SIGKILL
        assert source.cached_samples == 0
        assert digests(source) == digests(images)


def test_a_creator_that_died_leaves_no_litter_and_no_lock(tmp_path: Path) -> None:
    (tmp_path / ".cache.99999.new").write_bytes(b"half made")
    filled(tmp_path / "cache", Numbers())
    assert names_in(tmp_path) == {"cache"}


def test_a_folder_that_stays_locked_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_cache_file, "_LOCK_PATIENCE_S", 0.1)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with pytest.raises(SourceError, match=re.escape(str(tmp_path))):
            CachedSource(Numbers(), tmp_path / "cache", LIMIT)
    finally:
        os.close(folder)


def batches(folder: Path, loaders: int, cache: dict[str, Any] | None) -> list[AnyArray]:
    """Three epochs of randomly cropped and mirrored images, through real loaders."""
    parameters = check_parameters(
        {
            "source": {"image_list": {"path": "list.txt", "shorter_side": 30}},
            "transform": {"crop_size": 24, "mirror": True},
            "batch_size": 20,
            "num_loaders": loaders,
            "shuffle": True,
            "seed": 5,
            "epochs": 3,
            "cache": cache,
        }
    )
    taken = []
    with Pipeline(parameters, base_dir=folder) as pipeline:
        for _ in range(pipeline.total_batches or 0):
            batch = pipeline.take()
            data = batch.tops["data"]
            assert isinstance(data, np.ndarray)
            taken.append(data.copy())
            pipeline.release(batch)
    return taken


def test_loaders_fill_the_cache_and_the_batches_are_those_without_it(tmp_path: Path) -> None:
    pictures = {f"{k}.jpg": encoded(picture(60 + k, 80)) for k in range(40)}
    write_list(tmp_path, pictures)
    without = batches(tmp_path, 2, None)
    cache = {"path": "cache", "size_limit": LIMIT}
    filling = batches(tmp_path, 2, cache)
    source = open_source({"image_list": {"path": "list.txt", "shorter_side": 30}}, tops=None, base_dir=tmp_path)
    with closing(CachedSource(source, tmp_path / "cache", LIMIT)) as cached:
        assert cached.cached_samples == 40
    for name in pictures:  # not one is decoded any more
        status = (tmp_path / name).stat()
        (tmp_path / name).write_bytes(bytes(status.st_size))
        os.utime(tmp_path / name, ns=(status.st_atime_ns, status.st_mtime_ns))
    filled_before = batches(tmp_path, 1, cache)
    assert len(without) == 6
    np.testing.assert_array_equal(filling, without)
    np.testing.assert_array_equal(filled_before, without)
