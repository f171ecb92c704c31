"""Files that are damaged between setup and reading, or while they are read: errors that name file and sample, or
replacements; and every batch before them is delivered.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.readers.opening import open_pipeline
from blobfeed.workers.pipeline import Pipeline
from numpy.typing import NDArray

from blobfeed import SampleError, SourceError, TooManyBadSamples
from tests.support.pipelines import parameters, take_for_ever

SAMPLES = 48
BATCH = 4
ROW = (3, 4, 5)
CHUNK = 8
"""Samples in a stored chunk."""

LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks": {"chunks": (CHUNK, *ROW)},
    "gzip": {"chunks": (CHUNK, *ROW), "compression": "gzip", "fletcher32": True},
    "lzf, by the library": {"chunks": (CHUNK, *ROW), "compression": "lzf", "fletcher32": True},
}

Values = NDArray[np.float32]


def some_values(row: tuple[int, ...] = ROW) -> Values:
    return np.random.default_rng(8).random((SAMPLES, *row), np.float32)


def write(path: Path, layout: str, given: Values | None = None) -> Values:
    values = some_values() if given is None else given
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=values, **LAYOUTS[layout])
    return values


def open_file(path: Path, **values: Any) -> Pipeline:
    source = {"hdf5": {"path": str(path), "chunk_cache_bytes": 0}}
    given = {"source": source, "tops": ("data",), "batch_size": BATCH, "shuffle": False, "epochs": 1} | values
    return open_pipeline(parameters(**given))


def rows(pipeline: Pipeline) -> Iterator[Values]:
    for _ in range(pipeline.total_batches or 0):
        batch = pipeline.take()
        yield np.array(batch.tops["data"])
        pipeline.release(batch)


def test_a_file_that_has_vanished_cannot_be_replaced_by_its_own_samples(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write(path, "contiguous")
    with open_file(path, on_error="replace") as pipeline:
        path.unlink()
        with pytest.raises((SampleError, TooManyBadSamples), match=r"a\.h5"):
            pipeline.peek()


@pytest.mark.parametrize(
    ("layout", "row"),
    [("contiguous", ROW), ("contiguous", (1 << 17,)), ("gzip", ROW)],
    ids=["by map", "large rows by preadv", "gzip"],
)
def test_a_file_cut_off_while_it_is_read_is_an_error_that_names_it(
    layout: str, row: tuple[int, ...], tmp_path: Path
) -> None:
    path = tmp_path / "a.h5"
    values = write(path, layout, some_values(row))
    with open_file(path, epochs=None, prefetch_batches=2, num_loaders=1) as pipeline:
        held = pipeline.take()
        np.testing.assert_array_equal(np.array(held.tops["data"]), values[:BATCH])
        os.truncate(path, 2048)
        with pytest.raises(SampleError, match=r"a\.h5|SIGBUS") as caught:
            take_for_ever(pipeline)
    assert str(path) in caught.value.path


def corrupt(path: Path, chunk: int) -> None:
    with h5py.File(path) as file:
        offset = file["data"].id.get_chunk_info(chunk).byte_offset
    with path.open("r+b") as stream:
        stream.seek(offset + 20)
        stream.write(b"\xff\x00\xff\x00")


def test_the_sample_that_setup_tries_may_be_bad_too(tmp_path: Path) -> None:
    values = write(tmp_path / "a.h5", "gzip")
    corrupt(tmp_path / "a.h5", 0)
    for mapped in ({}, {"shuffle": "chunk", "seed": 3}):
        with open_file(tmp_path / "a.h5", on_error="replace", **mapped) as pipeline:
            got = np.concatenate(list(rows(pipeline)))
            assert pipeline.statistics().replaced == CHUNK
    assert not np.isin(got, values[:CHUNK]).any()
    with pytest.raises(SourceError, match=r"sample 0 \(.*a\.h5:data\[0\]\)"):
        open_file(tmp_path / "a.h5")
    corrupt(tmp_path / "a.h5", SAMPLES // 2 // CHUNK)
    corrupt(tmp_path / "a.h5", SAMPLES // CHUNK - 1)
    with pytest.raises(SourceError, match=rf"sample {SAMPLES - 1} "):
        open_file(tmp_path / "a.h5", on_error="replace")
