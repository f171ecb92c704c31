"""What is wrong with an HDF5 archive, its options or a sample is named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.workers.base.errors import ParameterError, SourceError

from tests.support.stored import assert_rows, in_loader, opened, rows_of, some_array
from tests.workers.sources.hdf5_samples.archives import KIND, archive


def attributes_missing(file: h5py.File) -> None:
    file["0"], file["1"] = np.zeros(2), np.zeros(2)
    file["0"].attrs["label"] = 1
    file["1"].attrs["labels"] = 1


def attributes_unlike(file: h5py.File) -> None:
    for number, value in enumerate([1, [1, 2]]):
        file[str(number)] = np.zeros(2)
        file[str(number)].attrs["label"] = value


def attributes_mixed(file: h5py.File) -> None:
    for number, value in enumerate([1, "one"]):
        file[str(number)] = np.zeros(2)
        file[str(number)].attrs["label"] = value


def attribute_of_references(file: h5py.File) -> None:
    file["0"] = np.zeros(2)
    file["0"].attrs["label"] = file["0"].ref


def types_unlike(file: h5py.File) -> None:
    file["0"], file["1"] = np.zeros(2, "f4"), np.zeros(2, "f8")


def axes_unlike(file: h5py.File) -> None:
    file["0"], file["1"] = np.zeros(2), np.zeros((2, 2))


def text(file: h5py.File) -> None:
    file["0"] = "a string of varying length"


def all_empty(file: h5py.File) -> None:
    file["0"], file["1"] = np.zeros((0, 2)), np.zeros((0, 2))


def dangling(file: h5py.File) -> None:
    file["0"] = h5py.SoftLink("/nowhere")


def empty(file: h5py.File) -> None:
    file.create_group("group")


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (attributes_missing, {"labels": ["label"]}, r"a\.h5:1 has no attribute 'label' \(did you mean 'labels'\?\)"),
        (
            attributes_unlike,
            {"labels": ["label"]},
            r"'label' of .*a\.h5:1 has \(2,\) int64, that of .*:0 has \(\)",
        ),
        (
            attributes_mixed,
            {"labels": ["label"]},
            r"'label' of .*a\.h5:1 has \(\) \|S3, that of .*:0 has \(\) int64",
        ),
        (attribute_of_references, {"labels": ["label"]}, r"'label' of .*a\.h5:0 holds .*: expected numbers or strings"),
        (types_unlike, {}, r"a\.h5:1 holds float64, .*a\.h5:0 float32: all need one type"),
        (axes_unlike, {}, r"a\.h5:1 has shape \(2, 2\), .*a\.h5:0 has 1 axes"),
        (text, {}, r"a\.h5:0 holds object, which is no array of numbers or fixed strings"),
        (all_empty, {}, r"samples of 'data' are empty: their shape is \(0, 2\)"),
        (dangling, {}, r"a\.h5:0 is a link that leads nowhere"),
        (empty, {}, r"no samples: no data set in \('',\) of .*a\.h5"),
        (empty, {"datasets": ["x", "y"]}, r"no samples: no group with x, y in"),
        (empty, {"groups": ["grup"]}, r"a\.h5' has no group 'grup' \(did you mean 'group'\?\); it holds group"),
        (types_unlike, {"groups": ["0"]}, r"a\.h5' has no group '0'"),
        (
            lambda file: file.create_dataset("demo/x", data=1),
            {"datasets": ["x", "y"]},
            r":demo lacks y; it holds x",
        ),
        (lambda file: file.create_group("demo/x"), {"datasets": ["x"]}, r"a\.h5:demo/x is a group, not a data set"),
    ],
)
def test_bad_archives_are_named_before_training_starts(
    make: Callable[[h5py.File], None], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        make(file)
    with pytest.raises(SourceError, match=message):
        opened(KIND, tmp_path, path="a.h5", **options)


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


@pytest.mark.parametrize("values", [[np.int64(2**53 + 1), 0.5], [0.5, np.int64(-(2**53) - 1)], [2**62, np.uint64(7)]])
@pytest.mark.parametrize("alike", [1, 600])
def test_integers_that_the_type_for_all_would_round_are_an_error(values: list[Any], alike: int, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(alike + 1):
            file[str(number)] = np.zeros(2)
            file[str(number)].attrs["label"] = values[number == alike]
    with pytest.raises(
        SourceError,
        match=r"'label' has several types from .*a\.h5:0 to .*: all become float64, which would round -?\d{16,}:",
    ):
        opened(KIND, tmp_path, path="a.h5", labels=["label"])


def test_an_error_about_a_file_whose_name_is_no_utf8_can_be_printed(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.h5")
    with h5py.File(path, "w") as file:
        types_unlike(file)
    with pytest.raises(SourceError) as raised:
        opened(KIND, tmp_path, path=path)
    assert r"/\udcff.h5:1 holds float64" in str(raised.value).encode().decode()


@pytest.mark.parametrize(
    ("tops", "options", "message"),
    [
        (None, {"labels": "label"}, "'labels' is 'label'"),
        (["data", "lable"], {"labels": ["label"]}, r"unknown top 'lable' \(did you mean 'label'\?\)"),
        (None, {"labels": {"data": "label"}}, "'labels' has 'data', which is the name of a data top"),
        (None, {"memory_map": True}, "unknown parameter 'memory_map'"),
        (None, {"group": ["x"]}, r"unknown parameter 'group' \(did you mean 'groups'\?\)"),
    ],
)
def test_bad_options_are_named(tops: list[str] | None, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    archive(tmp_path / "a.h5", some_array((3, 2), "f4"))
    with pytest.raises(ParameterError, match=message):
        opened(KIND, tmp_path, tops, path="a.h5", **options)


def test_a_damaged_sample_is_named_and_spares_the_others(tmp_path: Path) -> None:
    data = some_array((3, 500), "f4")
    archive(tmp_path / "a.h5", data, compression="gzip", chunks=(500,), fletcher32=True)
    with h5py.File(tmp_path / "a.h5") as file:
        chunk = file["trajectory_1"].id.get_chunk_info(0)
    with (tmp_path / "a.h5").open("r+b") as stream:
        stream.seek(chunk.byte_offset + 5)
        stream.write(b"\xff\x00\xff")
    source = in_loader(opened(KIND, tmp_path, path="a.h5"))
    with pytest.raises(SourceError, match=r"a\.h5:trajectory_1: reading the sample failed"):
        rows_of(source, [0, 1, 2])
    assert_rows(source, [2, 0], {"data": data})
    source.close()
