"""The index of an HDF5 archive: kept from run to run, made anew if a file changes, enough to read without h5py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.sources.hdf5_samples import scan as hdf5_samples_scan

from blobfeed import SourceError
from tests.sources.hdf5_samples.archives import KIND, SAMPLES, archive, assert_ragged, labels
from tests.support.stored import in_loader, opened, patterns, rows_of, some_array


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are gone through."""
    found: list[str] = []
    scan = hdf5_samples_scan.Scan.add_file

    def counting(self: Any, stamp: Any, *given: Any, **named: Any) -> None:
        found.append(Path(stamp.path).name)
        scan(self, stamp, *given, **named)

    monkeypatch.setattr(hdf5_samples_scan.Scan, "add_file", counting)
    return found


def test_a_kept_index_gives_the_same_samples_without_going_through_the_files(tmp_path: Path, scans: list[str]) -> None:
    samples = [some_array((1 + n % 3, 2), "f4", n) for n in range(SAMPLES)]
    archive(tmp_path / "a.h5", samples)
    options: dict[str, Any] = {"path": "a.h5", "labels": ["label", "pose", "name"]}
    first = opened(KIND, tmp_path, **options)
    again = in_loader(opened(KIND, tmp_path, **options))
    assert scans == ["a.h5"]
    assert again.specs == first.specs
    assert again.fingerprint() == first.fingerprint()
    assert [again.where(n) for n in range(SAMPLES)] == [first.where(n) for n in range(SAMPLES)]
    assert_ragged(again, patterns(SAMPLES)[2], samples)
    rows, expected = rows_of(again, range(SAMPLES)), labels(SAMPLES)
    assert all(rows[name].tolist() == values.tolist() for name, values in expected.items())
    again.close()


def test_a_kept_index_serves_what_it_was_made_for(tmp_path: Path, scans: list[str]) -> None:
    archive(tmp_path / "a.h5", some_array((3, 2), "f4"))

    def samples(**options: Any) -> int:
        return len(opened(KIND, tmp_path, path="a.h5", **options))

    assert [samples(), samples(), samples(limit=2), samples(), samples(limit=2)] == [3, 3, 2, 3, 2]
    assert len(scans) == 2
    archive(tmp_path / "a.h5", some_array((5, 2), "f4"))
    assert [samples(), samples()] == [5, 5]
    assert len(scans) == 3


@pytest.mark.parametrize("changed", [np.arange(3) + 0.75, np.array([9])])
def test_a_kept_index_is_made_anew_when_a_file_behind_a_link_changes(changed: Any, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file["0"] = h5py.ExternalLink("e.h5", "s")
    for values in (np.arange(3), changed, changed):
        with h5py.File(tmp_path / "e.h5", "w") as file:
            file["s"] = values
        source = opened(KIND, tmp_path, path="m.h5")
        assert rows_of(source, [0])["data"][0].tolist() == values.tolist()
        fingerprint = source.fingerprint()
        source.close()
        again = opened(KIND, tmp_path, path="m.h5")
        assert again.fingerprint() == fingerprint
        (tmp_path / "e.h5").unlink()
    with pytest.raises(SourceError, match=r"m\.h5:0"):
        opened(KIND, tmp_path, path="m.h5")
