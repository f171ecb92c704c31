"""The chunk cache holds a chunk of each top, however large: else each sample would decode a whole chunk."""

from __future__ import annotations

import logging
import tracemalloc
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.sources.stored import chunk_decode
from blobfeed.sources.stored.library_rows import LibraryRows

from blobfeed import Source
from tests.sources.hdf5.layouts import write
from tests.support.stored import assert_rows, in_loader, opened, rows_of, some_array

SAMPLES = 40
DATA = np.random.default_rng(0).random((SAMPLES, 3, 5), np.float32)
LABEL = np.arange(SAMPLES)
CHUNK_BYTES = 20 * 3 * 6 * 4 + 20 * 8
"""Of data, whose chunks reach beyond its last axis, and of label."""


def _source(folder: Path, compression: str, **options: Any) -> Source:
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("data", data=DATA, chunks=(20, 3, 2), compression=compression)
        file.create_dataset("label", data=LABEL, chunks=(20,), compression=compression)
    return in_loader(opened("hdf5", folder, path="a.h5", **options))


def _decoded_by(source: Source, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many chunks are decoded when the samples of one chunk are read one by one."""
    decoded: list[object] = []
    _note_calls(monkeypatch, chunk_decode, "decode_chunk", decoded)
    _note_calls(monkeypatch, LibraryRows, "_read_run", decoded)
    for index in range(20):
        rows = rows_of(source, [index])
        np.testing.assert_array_equal(rows["data"][0], DATA[index])
        assert rows["label"] == [index]
    return len(decoded)


def _note_calls(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, calls: list[object]) -> None:
    function = getattr(owner, name)

    def noted(*given: Any) -> Any:
        calls.append(given)
        return function(*given)

    monkeypatch.setattr(owner, name, noted)


@pytest.mark.parametrize(("compression", "chunks"), [("gzip", 4), ("lzf", 2)])
@pytest.mark.parametrize("cache_bytes", [1, 200, CHUNK_BYTES])
def test_a_chunk_is_decoded_once_though_it_is_larger_than_the_cache(
    compression: str, chunks: int, cache_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _decoded_by(_source(tmp_path, compression, chunk_cache_bytes=cache_bytes), monkeypatch) == chunks


def test_no_cache_is_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _decoded_by(_source(tmp_path, "gzip", chunk_cache_bytes=0), monkeypatch) == 4 * 20


@pytest.mark.parametrize(("cache_bytes", "said"), [(200, True), (CHUNK_BYTES, False), (0, False)])
def test_it_is_said_once_with_both_numbers(
    cache_bytes: int, said: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "blobfeed"):
        source = _source(tmp_path, "gzip", chunk_cache_bytes=cache_bytes)
        rows_of(source, [0, 30])
    assert len(caplog.records) == said
    if said:
        assert f"takes {CHUNK_BYTES} bytes (data {20 * 3 * 6 * 4}, label 160)" in caplog.text
        assert "chunk_cache_bytes is 200" in caplog.text


@pytest.mark.parametrize(("axis", "dims"), [(0, "nhw"), (1, "hnw"), (2, "hwn")])
def test_memory_for_a_task_does_not_grow_with_the_number_of_chunks(axis: int, dims: str, tmp_path: Path) -> None:
    shape = [4, 3, 5]
    shape[axis] = 200_000
    with h5py.File(tmp_path / "a.h5", "w") as file:
        chunk = [2, 1, 5]
        chunk[axis] = 2
        file.create_dataset("data", shape, "u1", chunks=tuple(chunk), compression="gzip")[0, 0, 0] = 1  # of one chunk
    source = in_loader(opened("hdf5", tmp_path, ["data"], path="a.h5", dims=list(dims)))
    tracemalloc.start()
    try:
        source.will_need(np.array([3, 150]))
        assert tracemalloc.get_traced_memory()[1] < 800_000  # 4 bytes a chunk
    finally:
        tracemalloc.stop()


def test_each_chunk_is_decoded_once_in_a_read_and_kept_as_far_as_it_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = some_array((64, 10), "f4")
    write(tmp_path / "a.h5", {"data": values}, chunks=(8, 10), compression="gzip")
    decoded: list[object] = []
    _note_calls(monkeypatch, chunk_decode, "decode_chunk", decoded)
    shuffled = np.random.default_rng(0).permutation(64).tolist()
    for cache_bytes, in_two_reads in ((0, 16), (8 * 320, 8), (4 * 320, 16)):
        source = opened("hdf5", tmp_path, ["data"], path="a.h5", chunk_cache_bytes=cache_bytes)
        decoded.clear()
        assert_rows(source, shuffled, {"data": values})
        assert len(decoded) == 8
        assert_rows(source, shuffled, {"data": values})
        assert len(decoded) == in_two_reads
        source.close()


def test_chunk_samples_tells_of_the_largest_top_alone(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("data", data=np.zeros((64, 10)), chunks=(8, 5), compression="gzip")
        file.create_dataset("plain", data=np.zeros((64, 10)), chunks=(8, 10))
        file.create_dataset("label", data=np.zeros(64), chunks=(32,), compression="gzip")
    assert opened("hdf5", tmp_path, ["data", "label"], path="a.h5").chunk_samples == 8
    assert opened("hdf5", tmp_path, ["plain", "label"], path="a.h5").chunk_samples is None
    assert opened("hdf5", tmp_path, ["label"], path="a.h5").chunk_samples == 32
