"""Headers that are read without the library say what the library says, whatever an archive holds."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.sources.hdf5_samples import HeaderReader

from tests.support.part import some_of
from tests.support.stored import in_loader, opened, rows_of

SAMPLES = 400
"""More than a piece of the members that are looked at together, and a part of another piece."""


def _add(
    file: h5py.Group, number: int, shape: tuple[int, ...] = (2, 3), label: Any = np.int64, **how: Any
) -> h5py.Dataset:
    dataset = file.create_dataset(f"s{number}", data=np.full(shape, number, np.float32), **how)
    dataset.attrs["label"] = label(number)
    return dataset


def _alike(file: h5py.File) -> None:
    for number in range(SAMPLES):
        _add(file, number)


def _of_many_shapes(file: h5py.File) -> None:
    for number in range(SAMPLES):
        _add(file, number, (1 + number % 5, 3))


def _single_numbers(file: h5py.File) -> None:
    for number in range(SAMPLES):
        _add(file, number, ())


def _with_other_attributes(file: h5py.File) -> None:
    """So many that they do not fit the header's first piece, and names of varying length on some."""
    for number in range(SAMPLES):
        dataset = _add(file, number)
        for other in range(6):
            dataset.attrs[f"other {other}"] = np.arange(other + 1) * number
        dataset.attrs["who"] = f"name {number}"
        if number % 50 == 0:
            dataset.attrs["x" * (1 + number % 7)] = 1


def _labelled_late(file: h5py.File) -> None:
    """An attribute that was deleted leaves a hole in the header."""
    for number in range(SAMPLES):
        dataset = file.create_dataset(f"s{number}", data=np.full((2, 3), number, np.float32))
        dataset.attrs["old"] = 1
        dataset.attrs["label"] = np.int64(-1)
        del dataset.attrs["old"]
        dataset.attrs["label"] = np.int64(number)


_WAYS: list[dict[str, Any]] = [
    {},
    {"chunks": (1, 3)},
    {"compression": "gzip"},
    {},
    {"dtype": ">f4"},
    {"track_times": 1},
]


def _stored_in_many_ways(file: h5py.File) -> None:
    for number in range(SAMPLES):
        _add(file, number, **_WAYS[number % len(_WAYS)])


def _in_groups_and_by_links(file: h5py.File) -> None:
    for group in range(3):
        inside = file.create_group(f"g{group}")
        for number in range(150):
            _add(inside, number)
    file["hard"] = file["g1/s7"]
    file["soft"] = h5py.SoftLink("/g2/s9")
    file["same group"] = file["g0"]


def _with_labels_of_another_type(file: h5py.File) -> None:
    for number in range(SAMPLES):
        dataset = _add(file, number)
        if 300 < number < 350:
            dataset.attrs["label"] = np.float32(number + 0.5)


def _with_labels_that_fill_no_eight_bytes(file: h5py.File) -> None:
    for number in range(SAMPLES):
        _add(file, number, label=lambda label: np.array([label, label + 0.5, -label], np.float32))


def _with_labels_that_become_narrower(file: h5py.File) -> None:
    """In the header a narrow one that is positive looks like a wide one: it is filled up with zeros."""
    for number in range(SAMPLES):
        _add(file, number, label=lambda label: np.int64(label) if label < 5 else np.int32(label * (-1) ** label))


def _with_names_that_are_not_utf8(file: h5py.File) -> None:
    for number in range(SAMPLES):
        dataset = _add(file, number)
        space = h5py.h5s.create(h5py.h5s.SCALAR)
        h5py.h5a.create(dataset.id, b"gr\xf6\xdfe", h5py.h5t.STD_I64LE, space)
    file.id.links.move(b"s300", file.id, b"s\xf6")


MAKERS = [
    _with_labels_that_fill_no_eight_bytes,
    _with_labels_that_become_narrower,
    _with_names_that_are_not_utf8,
    _alike,
    _of_many_shapes,
    _single_numbers,
    _with_other_attributes,
    _labelled_late,
    _stored_in_many_ways,
    _in_groups_and_by_links,
    _with_labels_of_another_type,
]


def _seen(path: Path, **options: Any) -> list[Any]:
    """All that a program sees of the samples."""
    with closing(opened("hdf5_samples", path.parent, path=path.name, labels=["label"], **options)) as source:
        rows = rows_of(source, range(len(source)))
        data = [
            rows["data"].get(row) if source.specs["data"].varies else rows["data"][row] for row in range(len(source))
        ]
        places = [source.where(number) for number in range(len(source))]
        return [source.specs, places, rows["label"].tolist(), [(each.shape, each.tobytes()) for each in data]]


@pytest.mark.parametrize("libver", some_of(["latest", "earliest"], 2))
@pytest.mark.parametrize("make", MAKERS)
def test_an_archive_has_the_same_samples_with_and_without_them(
    make: Callable[[h5py.File], None], libver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=libver) as file:
        make(file)
    found = [_seen(path), _seen(path, limit=300)]
    monkeypatch.setattr(HeaderReader, "read", lambda *_: None)
    assert found == [_seen(path), _seen(path, limit=300)]


@pytest.mark.parametrize("label", [np.int64, np.int32, np.float32, np.uint16])
def test_the_library_opens_only_the_first_ones_of_data_sets_that_are_alike(
    label: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for number in range(SAMPLES):
            _add(file, number, (1 + number % 5, 3), label)
    opening: list[bytes] = []
    open_one = h5py.h5o.open

    def noted(group: Any, name: bytes) -> Any:
        opening.append(name)
        return open_one(group, name)

    monkeypatch.setattr(h5py.h5o, "open", noted)
    source = opened("hdf5_samples", tmp_path, path="a.h5", labels=["label"])
    assert opening == [b"s%d" % number for number in range(256)]
    assert rows_of(in_loader(source), [SAMPLES - 1])["label"].tolist() == [SAMPLES - 1]


def test_bytes_that_make_no_header_are_left_to_the_library(tmp_path: Path) -> None:
    path = tmp_path / "noise"
    noise = np.random.default_rng(3).bytes(1 << 16)
    path.write_bytes(b"\x01" + noise)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        reader = HeaderReader(descriptor, 1 << 16, [])
        for address in range(0, 1 << 16, 7):
            reader.learn(address, 0, (1,), 4, {})
        assert reader.read(np.arange(0, 1 << 16, 7)) is None
    finally:
        os.close(descriptor)
