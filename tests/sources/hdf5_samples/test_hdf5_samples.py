"""HDF5 with a data set or a group per sample: found in natural order, read at its place, labels from attributes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.sources.hdf5_samples import scan as hdf5_samples_scan
from blobfeed.workers.api import AnyArray

from blobfeed import RaggedRows, Source, SourceError
from tests.support.stored import assert_delivers, in_loader, opened, patterns, rows_of, some_array

KIND = "hdf5_samples"
SAMPLES = 23


def archive(path: Path, samples: Sequence[AnyArray] | AnyArray, first: int = 0, **options: Any) -> None:
    """`samples` as trajectory_<number>, with attributes: a number, an array and a name for each."""
    with h5py.File(path, "w") as file:
        for number, sample in enumerate(samples, first):
            dataset = file.create_dataset(f"trajectory_{number}", data=sample, **options)
            dataset.attrs.update({"label": number % 7, "pose": np.arange(3.0) + number, "name": f"no. {number}"})


def labels(samples: int) -> dict[str, AnyArray]:
    return {
        "label": np.arange(samples) % 7,
        "pose": np.arange(3.0) + np.arange(samples)[:, None],
        "name": np.array([f"no. {number}".encode() for number in range(samples)]),
    }


def assert_ragged(source: Source, indices: Sequence[int], samples: Sequence[AnyArray]) -> None:
    rows = rows_of(source, indices)["data"]
    assert isinstance(rows, RaggedRows)
    for row, index in enumerate(indices):
        found = rows.get(row)
        assert found.shape == samples[index].shape
        assert found.tolist() == samples[index].tolist()


def test_an_empty_attribute_is_an_empty_label(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(3):
            file.create_dataset(f"s{number}", data=np.full(3, number)).attrs["none"] = np.zeros((0, 2), "f4")
    source = opened(KIND, tmp_path, path="a.h5", labels=["none"])
    assert rows_of(source, [0, 2])["none"].shape == (2, 0, 2)
    windows = opened(KIND, tmp_path, path="a.h5", labels=["none"], window={"length": 2})
    assert rows_of(windows, [1])["none"].shape == (1, 2, 0, 2)


def test_a_text_is_a_sample_of_its_type_though_it_is_shorter(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        file["s0"], file["s1"] = np.bytes_(b"longest"), np.array(b"tea", "S7")
    source = opened(KIND, tmp_path, path="a.h5")
    assert source.specs["data"].dtype == "S7"
    assert rows_of(source, [1, 0])["data"].tolist() == [b"tea", b"longest"]


def test_a_text_that_is_no_utf_8_is_a_label_as_it_is(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, text in enumerate((b"caf\xe9", b"tea")):
            attributes = file.create_dataset(f"s{number}", data=number).attrs
            attributes.create("name", np.array(text, object), dtype=h5py.string_dtype("ascii"))
    source = opened(KIND, tmp_path, path="a.h5", labels=["name"])
    assert rows_of(source, [0, 1])["name"].tolist() == [b"caf\xe9", b"tea"]


def test_groups_and_limits_choose_among_the_samples(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, name in enumerate(["train/cat/2", "train/cat/10", "train/dog/1", "test/cat/1", "loose"]):
            file[name] = np.full(3, number)
        file["train/again"] = file["train/cat"]

    def numbers(**options: Any) -> list[int]:
        source = opened(KIND, tmp_path, **{"path": "a.h5", **options})
        found = rows_of(source, range(len(source)))["data"][:, 0].tolist()
        source.close()
        return [int(number) for number in found]

    assert numbers() == [4, 3, 0, 1, 2]
    assert numbers(groups=["train"]) == [0, 1, 2]
    assert numbers(groups=["train/dog", "/test"]) == [2, 3]
    assert numbers(groups=["train/dog", "train", "train/cat"]) == [2, 0, 1]
    assert numbers(limit=2) == [4, 3]
    for limit in (1, 5, 7):
        assert numbers(path=["a.h5", "a.h5", "a.h5"], limit=limit) == [4, 3, 0, 1, 2, 4, 3][:limit]


def demonstrations(path: Path, count: int) -> dict[str, AnyArray]:
    stored = {
        "obs/rgb": some_array((count, 4, 4, 3), "u1"),
        "actions": some_array((count, 6), "f4"),
        "success": np.arange(count) % 2 == 0,
        "task": np.arange(count),
    }
    with h5py.File(path, "w") as file:
        for number in range(count):
            group = file.create_group(f"data/demo_{number}")
            group["obs/rgb"] = stored["obs/rgb"][number]
            group["actions"] = stored["actions"][number]
            group["actions"].attrs["success"] = stored["success"][number]
            group.attrs["task"] = number
        file["data/unrelated"] = np.zeros(3)
    return stored


def test_a_group_can_be_a_sample_with_a_top_for_each_of_its_data_sets(tmp_path: Path) -> None:
    stored = demonstrations(tmp_path / "a.h5", SAMPLES)
    options = {"path": "a.h5", "datasets": ["obs/rgb", "actions"], "labels": ["success", "task"]}
    source = opened(KIND, tmp_path, **options)
    assert source.where(10) == f"{tmp_path}/a.h5:data/demo_10"
    assert_delivers(source, stored, patterns(SAMPLES))
    slashed = opened(KIND, tmp_path, path="a.h5", datasets=["/actions"])
    assert_delivers(slashed, {"/actions": stored["actions"]}, patterns(SAMPLES)[:1])
    some = opened(KIND, tmp_path, ["task", "actions"], **options)
    assert_delivers(some, {top: stored[top] for top in ("task", "actions")}, patterns(SAMPLES)[:3])


def test_numbers_of_several_types_become_the_type_that_holds_all(tmp_path: Path) -> None:
    values: list[Any] = [1, 2.5, np.float32(3), True]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, value in enumerate(values):
            file[str(number)] = np.zeros(2)
            file[str(number)].attrs.update({"label": value, "name": "x" * (number + 1)})
    source = opened(KIND, tmp_path, path="a.h5", labels=["label", "name"])
    assert source.specs["label"].dtype == np.float64
    rows = rows_of(source, range(4))
    assert rows["label"].tolist() == [1.0, 2.5, 3.0, 1.0]
    assert rows["name"].tolist() == [b"x", b"xx", b"xxx", b"xxxx"]
    source.close()


# ---- the index, kept from run to run


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
