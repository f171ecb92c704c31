"""The index of an HDF5 archive: kept in a file, made anew if a file changes, enough to read without h5py."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.workers.base.errors import ParameterError, SourceError
from blobfeed.workers.sources.hdf5_samples import scan as hdf5_samples_scan

from tests.support.stored import assert_needs_no_h5py, assert_rows, in_loader, opened, patterns, rows_of, some_array
from tests.workers.sources.hdf5_samples.archives import KIND, SAMPLES, archive, assert_ragged, labels


def test_a_kept_index_gives_the_same_samples_without_going_through_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [some_array((1 + n % 3, 2), "f4", n) for n in range(SAMPLES)]
    archive(tmp_path / "a.h5", samples)
    options: dict[str, Any] = {"path": "a.h5", "labels": ["label", "pose", "name"], "index_cache": "a.index"}
    first = opened(KIND, tmp_path, **options)
    scans = count_scans(monkeypatch)
    again = in_loader(opened(KIND, tmp_path, **options))
    assert scans == []
    assert again.specs == first.specs
    assert again.fingerprint() == first.fingerprint()
    assert [again.where(n) for n in range(SAMPLES)] == [first.where(n) for n in range(SAMPLES)]
    assert_ragged(again, patterns(SAMPLES)[2], samples)
    rows, expected = rows_of(again, range(SAMPLES)), labels(SAMPLES)
    assert all(rows[name].tolist() == values.tolist() for name, values in expected.items())
    assert [entry.name for entry in tmp_path.iterdir() if "index" in entry.name] == ["a.index"]
    again.close()


def count_scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    scans: list[str] = []
    scan = hdf5_samples_scan.Scan.add_file

    def counting(self: Any, stamp: Any, *given: Any, **named: Any) -> None:
        scans.append(stamp.path)
        scan(self, stamp, *given, **named)

    monkeypatch.setattr(hdf5_samples_scan.Scan, "add_file", counting)
    return scans


def test_a_kept_index_is_made_anew_when_a_file_or_what_is_wanted_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(tmp_path / "a.h5", some_array((3, 2), "f4"))
    scans = count_scans(monkeypatch)

    def samples(**options: Any) -> int:
        return len(opened(KIND, tmp_path, path="a.h5", index_cache="a.index", **options))

    assert [samples(), samples(), samples(limit=2), samples(), samples()] == [3, 3, 2, 3, 3]
    assert len(scans) == 3
    archive(tmp_path / "a.h5", some_array((5, 2), "f4"))
    assert [samples(), samples()] == [5, 5]
    assert len(scans) == 4


@pytest.mark.parametrize("changed", [np.arange(3) + 0.75, np.array([9])])
def test_a_kept_index_is_made_anew_when_a_file_behind_a_link_changes(changed: Any, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file["0"] = h5py.ExternalLink("e.h5", "s")
    for values in (np.arange(3), changed, changed):
        with h5py.File(tmp_path / "e.h5", "w") as file:
            file["s"] = values
        source = opened(KIND, tmp_path, path="m.h5", index_cache="a.index")
        assert rows_of(source, [0])["data"][0].tolist() == values.tolist()
        fingerprint = source.fingerprint()
        source.close()
        again = opened(KIND, tmp_path, path="m.h5", index_cache="a.index")
        assert again.fingerprint() == fingerprint
        (tmp_path / "e.h5").unlink()
    with pytest.raises(SourceError, match=r"m\.h5:0"):
        opened(KIND, tmp_path, path="m.h5", index_cache="a.index")


def test_an_index_of_another_version_is_made_anew(tmp_path: Path) -> None:
    archive(tmp_path / "a.h5", some_array((3, 2), "f4"))
    (tmp_path / "a.index").write_bytes(b"blobfeed hdf5_samples index 1, and what only that version knows")
    made = [opened(KIND, tmp_path, path="a.h5", index_cache="a.index") for _ in range(2)]
    assert [len(source) for source in made] == [3, 3]
    assert (tmp_path / "a.index").read_bytes().startswith(b"blobfeed hdf5_samples index 8 ")


@pytest.mark.parametrize("target", ["nothing", "old.index"])
def test_an_index_that_cannot_be_replaced_is_an_error_before_the_scan(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(tmp_path / "a.h5", some_array((3, 2), "f4"))
    opened(KIND, tmp_path, path="a.h5", limit=2, index_cache="old.index")
    before = (tmp_path / "old.index").read_bytes()
    (tmp_path / "a.index").symlink_to(target)
    scans = count_scans(monkeypatch)
    with pytest.raises(ParameterError):
        opened(KIND, tmp_path, path="a.h5", index_cache="a.index")
    assert scans == []
    assert (tmp_path / "old.index").read_bytes() == before


def test_a_loader_of_samples_in_one_piece_imports_no_h5py(tmp_path: Path) -> None:
    archive(tmp_path / "a.h5", some_array((3, 2), "f4"))
    assert_needs_no_h5py(opened(KIND, tmp_path, path="a.h5", labels=["label"]), "label", [2, 1], tmp_path)


def test_a_kept_index_serves_a_copy_of_the_file_with_the_same_times(tmp_path: Path) -> None:
    values = some_array((3, 2), "f4")
    archive(tmp_path / "a.h5", values)
    opened(KIND, tmp_path, path="a.h5", index_cache="a.index")
    kept = (tmp_path / "a.index").stat().st_ino
    shutil.copy2(tmp_path / "a.h5", tmp_path / "copy.h5")
    (tmp_path / "copy.h5").replace(tmp_path / "a.h5")
    assert_rows(in_loader(opened(KIND, tmp_path, path="a.h5", index_cache="a.index")), [2, 0], {"data": values})
    assert (tmp_path / "a.index").stat().st_ino == kept
