"""Rows of many files in one call: the right bytes, whatever the files look like, and no file that was changed."""

from __future__ import annotations

import itertools
import mmap
import os
import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.sources import open_source
from blobfeed.workers.api import allocate_rows

from blobfeed import Source, SourceError
from tests.sources.contract.kinds import FIRST, write_hdf5, write_npy
from tests.sources.contract.test_contract import overwrite
from tests.support.stored import assert_delivers, in_loader, opened, patterns, rows_of

PAGE = mmap.PAGESIZE
FILES = 40
SIZES = [1 + number % 7 for number in range(FILES)]
SAMPLES = sum(SIZES)
STORED = {
    "data": np.random.default_rng(0).integers(0, 256, (SAMPLES, 4, 20), np.uint8),
    "label": np.arange(SAMPLES),
}


def _write(folder: Path, kind: str) -> Source:
    edges = np.cumsum([0, *SIZES]).tolist()
    parts = [{top: values[slice(*edge)] for top, values in STORED.items()} for edge in itertools.pairwise(edges)]
    write = write_hdf5 if kind == "hdf5" else write_npy
    return open_source(write(folder, parts), tops=["data", "label"], base_dir=folder)


@contextmanager
def few_descriptors(most: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_an_empty_file_among_others_moves_no_row(tmp_path: Path) -> None:
    for top, values in STORED.items():
        np.save(tmp_path / f"{top}_12b.npy", values[:0])
    assert_delivers(_write(tmp_path, "npy"), STORED, patterns(SAMPLES))


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a Path for each is slower


@pytest.mark.parametrize("open_files", [None, 5, FILES])
def test_as_many_files_stay_open_as_may(open_files: int | None, tmp_path: Path) -> None:
    before = _open_files()
    source = _write(tmp_path, "hdf5")
    source.close()
    source = opened("hdf5", tmp_path, ["data", "label"], path="*.h5", open_files=open_files)
    with few_descriptors(before + 60), closing(in_loader(source)) as loader:
        for _ in range(3):
            np.testing.assert_array_equal(rows_of(loader, list(range(SAMPLES)))["data"], STORED["data"])
            assert _open_files() - before == (open_files or max(16, (before + 60) // 4))
    assert _open_files() == before


def test_rows_of_more_files_than_may_be_open_are_announced(tmp_path: Path) -> None:
    _write(tmp_path, "npy").close()
    before = _open_files()
    given = {"data": "data_*.npy", "label": "label_*.npy"}
    with few_descriptors(before + 20), closing(opened("npy", tmp_path, **given, open_files=5)) as source:
        np.testing.assert_array_equal(rows_of(source, list(range(SAMPLES)))["label"], np.arange(SAMPLES))


@pytest.mark.parametrize("open_files", [5, 1000])
@pytest.mark.parametrize("top", ["data", "label"])
def test_files_before_one_that_is_changed_are_read_on(top: str, open_files: int, tmp_path: Path) -> None:
    _write(tmp_path, "npy").close()
    given = {"data": "data_*.npy", "label": "label_*.npy"}
    source = in_loader(opened("npy", tmp_path, **given, open_files=open_files))
    overwrite(tmp_path / f"{top}_11.npy")
    with pytest.raises(SourceError, match=rf"{top}_11\.npy"):
        rows_of(source, list(range(SAMPLES)))
    untouched = list(range(sum(SIZES[: 11 - FIRST])))
    np.testing.assert_array_equal(rows_of(source, untouched)["label"], untouched)
    source.close()


@pytest.mark.parametrize("open_files", [5, 1000])
def test_a_change_while_rows_are_taken_is_noticed(open_files: int, tmp_path: Path) -> None:
    _write(tmp_path, "npy").close()
    given = {"data": "data_*.npy", "label": "label_*.npy"}
    source = in_loader(opened("npy", tmp_path, **given, open_files=open_files))

    class Overwriting(dict[str, Any]):
        """Rows that are asked for when the files have been looked at."""

        def __getitem__(self, top: str) -> Any:
            overwrite(tmp_path / "data_12.npy")
            return super().__getitem__(top)

    everything = np.arange(SAMPLES)
    out = allocate_rows(source.specs, SAMPLES)
    source.read(everything, out)
    with pytest.raises(SourceError, match=r"data_12\.npy"):
        source.read(everything, Overwriting(out))
    source.close()


def test_a_limit_to_the_address_space_leaves_the_way_through_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("blobfeed.sources.stored.store.AddressRange", refused)
    assert_delivers(_write(tmp_path, "hdf5"), STORED, patterns(SAMPLES))
