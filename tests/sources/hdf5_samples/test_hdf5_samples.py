"""HDF5 with a data set or a group per sample: found in natural order, read at its place, labels from attributes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
from blobfeed.workers.api import AnyArray

from tests.sources.hdf5_samples.archives import KIND, SAMPLES
from tests.support.stored import assert_delivers, opened, patterns, rows_of, some_array


def test_an_empty_attribute_is_an_empty_label(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(3):
            file.create_dataset(f"s{number}", data=number).attrs["none"] = np.zeros((0, 2), "f4")
    source = opened(KIND, tmp_path, path="a.h5", labels=["none"])
    assert rows_of(source, [0, 2])["none"].shape == (2, 0, 2)


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
