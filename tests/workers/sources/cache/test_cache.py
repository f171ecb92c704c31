"""The decoded cache: right whatever its file held before, whoever fills it, and whoever dies while doing so."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.workers.base.errors import ParameterError, SourceError
from blobfeed.workers.base.parameters import check_parameters
from blobfeed.workers.base.specs import AnyArray, ArraySpec, IndexArray, NamedRows, RaggedRows, allocate_rows
from blobfeed.workers.pipeline.pipeline import Pipeline
from blobfeed.workers.sources import Source, open_source
from blobfeed.workers.sources.cache import file as sample_cache_file
from blobfeed.workers.sources.cache.layout import BOOT_AT, PAGE_BYTES, STATES_AT, lay_out
from blobfeed.workers.sources.cache.source import CachedSource
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.pictures import encoded, noise, picture, write_list

LIMIT = 1 << 30
SAMPLES = 60
_PATIENCE_S = 30.0

SPECS = {
    "data": ArraySpec((2, 3, 5), np.dtype("float32")),
    "label": ArraySpec((), np.dtype("int64")),
    "words": ArraySpec((4, 6), np.dtype("uint16"), varies=True),
}


class Numbers(Source):
    """Samples that follow from their index; counts how often each is read."""

    def __init__(self, names: tuple[str, ...] = ("data", "label"), samples: int = SAMPLES, version: int = 0) -> None:
        self._specs = {name: SPECS[name] for name in names}
        self._version = version
        self.reads = np.zeros(samples, int)
        self.needed: list[int] = []
        self.modules = ("json",)

    def __len__(self) -> int:
        return len(self.reads)

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self._specs

    @property
    def chunk_samples(self) -> int:
        return 7

    def sample(self, name: str, index: int) -> AnyArray:
        spec = self._specs[name]
        shape = (1 + index % 4, 1 + index % 6) if spec.varies else spec.shape
        return np.random.default_rng([index, self._version]).integers(0, 1000, shape).astype(spec.dtype)

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        for row, index in enumerate(indices.tolist()):
            self.reads[index] += 1
            for name, top in out.items():
                if isinstance(top, RaggedRows):
                    top.put(row, self.sample(name, index))
                else:
                    top[row] = self.sample(name, index)

    def will_need(self, indices: IndexArray) -> None:
        self.needed += indices.tolist()

    def fingerprint(self) -> str:
        return f"{super().fingerprint()}:{self._version}"


def check(source: Source, truth: Numbers, indices: list[int]) -> None:
    """Read `indices` and compare each sample with what it must be."""
    rows = allocate_rows(source.specs, len(indices))
    source.read(np.array(indices, np.int64), rows)
    for name, top in rows.items():
        for row, index in enumerate(indices):
            read = top.get(row) if isinstance(top, RaggedRows) else top[row]
            np.testing.assert_array_equal(read, truth.sample(name, index))


def check_lent(source: CachedSource, truth: Numbers, indices: list[int]) -> None:
    """Borrow `indices`, all of them cached, and compare each sample with what it must be."""
    lent = source.lend(np.array(indices, np.int64))
    assert lent is not None
    for sample, index in zip(lent, indices, strict=True):
        assert list(sample) == list(truth.specs)
        for name, array in sample.items():
            np.testing.assert_array_equal(array, truth.sample(name, index))
            assert array.dtype == truth.specs[name].dtype
            assert not array.flags.writeable


def names_in(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


everything = list(range(SAMPLES))


# ---- what is kept


@pytest.mark.parametrize("names", [("data", "label"), ("words",), ("label", "words", "data")])
def test_each_sample_is_read_from_the_source_once_and_from_the_file_ever_after(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    inner = Numbers(names)
    with closing(CachedSource(inner, tmp_path / "cache", LIMIT)) as source:
        assert list(source.specs) == list(names)
        for _ in range(3):
            check(source, inner, everything)
        assert source.cached_samples == SAMPLES
        check_lent(source, inner, everything[::-1])
    assert set(inner.reads) == {1}
    again = Numbers(names)
    with closing(CachedSource(again, tmp_path / "cache", LIMIT)) as source:
        check(source, again, everything[::-1])
    assert not again.reads.any(), "the file is good in the next run, too"


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=12), max_size=12),
    st.sampled_from([("data",), ("words", "label")]),
)
def test_batches_of_hits_and_misses_in_any_order_are_right(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], names: tuple[str, ...]
) -> None:
    path = tmp_path_factory.getbasetemp() / "cache"
    path.unlink(missing_ok=True)
    inner = Numbers(names, samples=20)
    with closing(CachedSource(inner, path, LIMIT)) as source:
        for batch in batches:
            check(source, inner, batch)
        asked = {index for batch in batches for index in batch}
        assert source.lend(np.arange(20)) is None or asked == set(range(20))
        check_lent(source, inner, sorted(asked))
        assert source.cached_samples == len(asked)
        assert set(np.flatnonzero(inner.reads)) == asked


def test_it_stands_for_the_source_behind_it(tmp_path: Path) -> None:
    inner = Numbers()
    with closing(CachedSource(inner, tmp_path / "cache", LIMIT)) as source:
        assert (len(source), source.chunk_samples, source.modules) == (SAMPLES, 7, ("json",))
        assert source.where(3) == inner.where(3)
        assert inner.fingerprint() in source.fingerprint()
        check(source, inner, [1, 2])
        source.will_need(np.array([1, 2, 3, 9]))
    assert inner.needed == [3, 9], "what is cached need not be read again"


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


def test_small_samples_take_no_more_disk_than_they_need(tmp_path: Path) -> None:
    inner = Numbers(("words",), samples=20_000)
    with closing(CachedSource(inner, tmp_path / "cache", LIMIT)) as source:
        check(source, inner, [0, 19_999])
        status = (tmp_path / "cache").stat()
    assert status.st_size > 20_000 * PAGE_BYTES
    assert status.st_blocks * 512 < 1 << 20


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.builds(
            ArraySpec,
            st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple),
            st.sampled_from(["uint8", "float32", "int64"]).map(np.dtype),
            st.booleans(),
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 10_000),
)
def test_nothing_in_the_file_overlaps(specs: dict[str, ArraySpec], samples: int) -> None:
    layout = lay_out(specs, samples, "key")
    spans = [(0, PAGE_BYTES), (STATES_AT, STATES_AT + samples)]
    for region in layout.regions.values():
        assert region.stride >= region.spec.nbytes
        assert region.at % PAGE_BYTES == 0
        assert not region.spec.varies or (region.stride % PAGE_BYTES == 0 and region.at >= layout.sparse_at)
        assert region.spec.varies or region.row_at(samples) <= layout.sparse_at
        spans.append((region.at, region.row_at(samples)))
        if region.spec.varies:
            spans.append((region.shapes_at, region.shape_at(samples)))
    spans = sorted(span for span in spans if span[0] < span[1])
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert spans[-1][1] <= layout.size


# ---- what lay there before


def filled(path: Path, inner: Numbers) -> None:
    with closing(CachedSource(inner, path, LIMIT)) as source:
        check(source, inner, everything)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[:3000],
        lambda content: content + b"\0",
        lambda content: content[:100] + b"?" + content[101:],
        lambda content: content[: STATES_AT + 5] + b"\x07" + content[STATES_AT + 6 :],
    ],
    ids=["empty", "short", "header only", "long", "other identity", "impossible state"],
)
def test_a_damaged_file_is_noticed_and_made_anew(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "cache"
    filled(path, Numbers())
    path.write_bytes(change(path.read_bytes()))
    inner = Numbers()
    filled(path, inner)
    assert set(inner.reads) == {1}


@pytest.mark.parametrize(
    "options",
    [{"version": 1}, {"samples": SAMPLES + 1}, {"names": ("label", "data")}, {"names": ("words",)}],
    ids=["content", "length", "order", "shape"],
)
def test_a_file_of_other_samples_is_replaced_and_whoever_uses_it_keeps_it(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    path = tmp_path / "cache"
    inner, other = Numbers(), Numbers(**options)
    with closing(CachedSource(inner, path, LIMIT)) as first:
        check(first, inner, everything)
        with closing(CachedSource(other, path, LIMIT)) as second:
            check(second, other, everything)
            check(first, inner, everything)
        assert set(other.reads[:SAMPLES]) == {1}
    assert set(inner.reads) == {1}
    assert names_in(tmp_path) == {"cache"}, "nothing lies beside it"


def test_a_loader_that_finds_other_samples_goes_on_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    inner = Numbers()
    made = pickle.dumps(CachedSource(inner, tmp_path / "cache", LIMIT))
    filled(tmp_path / "cache", Numbers(version=1))
    with closing(pickle.loads(made)) as source:
        check(source, inner, everything)
        check(source, inner, everything)
        source.will_need(np.array([1]))
        assert source.cached_samples == 0
    assert caplog.text.count("another run has replaced it") == 1


def test_a_file_that_is_no_cache_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "train.h5"
    path.write_bytes(b"\x89HDF\r\n\x1a\n precious")
    with pytest.raises(ParameterError, match=r"train\.h5 is a file, but no sample cache: it is left alone"):
        CachedSource(Numbers(), path, LIMIT)
    assert path.read_bytes().endswith(b"precious")


def test_after_a_restart_only_what_was_surely_on_the_disk_counts(tmp_path: Path) -> None:
    path = tmp_path / "cache"

    def an_hour_passes() -> None:
        os.utime(path, (time.time() - 3600,) * 2)

    def restart() -> None:
        with path.open("r+b") as file:
            file.seek(BOOT_AT)
            file.write(b"another boot")

    inner = Numbers()
    with closing(CachedSource(inner, path, LIMIT)) as source:
        check(source, inner, everything[:20])
        an_hour_passes()
    with closing(CachedSource(inner, path, LIMIT)) as source:
        check(source, inner, everything[20:30])
    restart()
    with closing(CachedSource(inner, path, LIMIT)) as source:
        assert source.cached_samples == 20, "the ten after them may not have been on the disk yet"
        check(source, inner, everything)
    assert set(inner.reads) == {1, 2}
    an_hour_passes()
    CachedSource(inner, path, LIMIT).close()
    restart()
    with closing(CachedSource(inner, path, LIMIT)) as source:
        assert source.cached_samples == SAMPLES, "a later run has seen to it that they were"


# ---- room


def test_a_limit_that_is_too_small_is_refused_with_the_need(tmp_path: Path) -> None:
    need = lay_out(Numbers().specs, SAMPLES, "").size
    with pytest.raises(ParameterError, match=rf"60 samples need .* MB, more than size_limit .*100 bytes.* to {need}"):
        CachedSource(Numbers(), tmp_path / "cache", 100)
    assert not any(tmp_path.iterdir())
    CachedSource(Numbers(), tmp_path / "cache", need).close()


@pytest.mark.parametrize("names", [("data",), ("words",)])
def test_a_disk_that_is_too_small_is_refused_with_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    class Usage:
        free = 1_000

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    with pytest.raises(SourceError, match=r"60 samples need .* MB \(size_limit .*\), but its disk has 0\.0 MB free"):
        CachedSource(Numbers(names), tmp_path / "cache", LIMIT)
    assert not any(tmp_path.iterdir())


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """The kernel refuses to make a file longer, much as a full disk does: the signal that goes with it is ignored."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_the_disk_is_taken_up_front_where_the_need_is_known(tmp_path: Path) -> None:
    with closing(CachedSource(Numbers(samples=10_000), tmp_path / "cache", LIMIT)):
        status = (tmp_path / "cache").stat()
        assert status.st_blocks * 512 >= status.st_size > 10_000 * 120


def test_a_file_that_cannot_be_allocated_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with no_file_larger_than(5_000), pytest.raises(SourceError, match=r"cache .* cannot be made: .*File too large"):
        CachedSource(Numbers(), tmp_path / "cache", LIMIT)
    assert not any(tmp_path.iterdir())


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"the folder of path .*/none/cache does not exist"):
        CachedSource(Numbers(), tmp_path / "none" / "cache", LIMIT)


def test_samples_beyond_the_limit_are_read_each_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    inner = Numbers(("words",))
    limit = lay_out(inner.specs, SAMPLES, "").sparse_at + 10 * PAGE_BYTES
    with closing(CachedSource(inner, tmp_path / "cache", limit)) as source:
        for _ in range(3):
            check(source, inner, everything)
        held = source.cached_samples
        assert 5 <= held <= 11
        assert (inner.reads == 1).sum() == held
        assert (inner.reads == 3).sum() == SAMPLES - held
        assert (tmp_path / "cache").stat().st_blocks * 512 <= limit + 2 * PAGE_BYTES
    assert caplog.text.count("takes no more samples") == 1
    assert f"it holds {held} of 60: size_limit of" in caplog.text


def test_a_disk_that_fills_up_later_costs_no_sample(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    inner = Numbers(("words",))
    with closing(CachedSource(inner, tmp_path / "cache", LIMIT)) as source:
        check(source, inner, everything[:10])
        with no_file_larger_than(lay_out(inner.specs, SAMPLES, "").sparse_at):
            check(source, inner, everything)
        check(source, inner, everything)
        assert source.cached_samples == 10
    assert "takes no more samples, it holds 10 of 60: File too large" in caplog.text


# ---- several processes


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
from blobfeed.workers.base.specs import RaggedRows, allocate_rows
{inspect.getsource(digests)}
{inspect.getsource(_bytes)}
source = pickle.load(sys.stdin.buffer)
"""


def child(code: str, source: Source) -> subprocess.Popen[bytes]:
    """A process that has `source`, and runs `code` when its standard input has ended."""
    process = subprocess.Popen([sys.executable, "-c", _CHILD + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(pickle.dumps(source))
    return process


def finished(process: subprocess.Popen[bytes]) -> bytes:
    output, _ = process.communicate(timeout=_PATIENCE_S)
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
from blobfeed.workers.base.parameters import check_parameters
from blobfeed.workers.pipeline.pipeline import Pipeline
from blobfeed.workers.sources.cache.source import CachedSource
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


def test_what_a_killed_process_has_published_is_whole(tmp_path: Path, images: Source) -> None:
    with closing(CachedSource(images, tmp_path / "cache", LIMIT)) as source:
        process = child("while True:\n    digests(source)", source)
        assert process.stdin is not None
        process.stdin.close()
        deadline = time.monotonic() + _PATIENCE_S
        while source.cached_samples < 10:
            assert time.monotonic() < deadline, "the child never stored ten samples"
            time.sleep(0.001)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        assert digests(source) == digests(images)


def test_a_creator_that_died_leaves_no_litter_and_no_lock(tmp_path: Path) -> None:
    (tmp_path / ".cache.99999.new").write_bytes(b"half made")
    filled(tmp_path / "cache", Numbers())
    assert names_in(tmp_path) == {"cache"}


def test_a_folder_that_stays_locked_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_cache_file, "_LOCK_PATIENCE_S", 0.1)
    with (
        sample_cache_file._locked(tmp_path),
        pytest.raises(SourceError, match=r"has been locked by another process for 0 s"),
    ):
        CachedSource(Numbers(), tmp_path / "cache", LIMIT)


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
