"""Tests of files of which each is a sample: their labels, their bytes, and the order of their arrays."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobfeed import BatchReader
from tests.support.stored import in_loader, opened, rows_of

LABELS = {"cat/a10.bin": "cat", "cat/a9.bin": "cat", "dog/b_1.bin": "dog"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for length, name in enumerate(LABELS, 1):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(range(length)))
    (tmp_path / "by_path.csv").write_text(
        "path,label\n" + "".join(f"{name},{label}\n" for name, label in LABELS.items())
    )
    (tmp_path / "by_name.tsv").write_text("".join(f"{Path(name).name}\t{label}\n" for name, label in LABELS.items()))
    (tmp_path / "numbers.csv").write_text("a9.bin,0.5\na10.bin,2\nb_1.bin,-1\nno.bin,x\n")
    return tmp_path


@pytest.mark.parametrize(
    ("labels", "classes", "expected"),
    [
        ("folder", (), [0, 0, 1]),
        ("folder", ("dog", "cow", "cat"), [2, 2, 0]),
        ("^(.*)/", (), [0, 0, 1]),
        ("by_path.csv", (), [0, 0, 1]),
        ("by_name.tsv", (), [0, 0, 1]),
        (r"(\d+)\.", (), [9, 10, 1]),
        (r"(\d+)\.", ("1", "9", "10"), [1, 2, 0]),
        ("numbers.csv", (), np.array([0.5, 2, -1], np.float32)),
    ],
)
def test_labels_come_from_folders_names_and_tables(labels: str, classes: Any, expected: Any, folder: Path) -> None:
    with closing(opened("files", folder, path="*/*.bin", labels=labels, classes=classes)) as source:
        rows = rows_of(in_loader(source), range(3))
    np.testing.assert_array_equal(rows["label"], np.array(expected), strict=True)
    assert [each.tolist() for each in rows["data"]] == [[0, 1], [0], [0, 1, 2]], "9 stands before 10"


def test_a_hook_gets_the_bytes_of_each_file(folder: Path) -> None:
    declared = {"files": {"path": "*/*.bin", "labels": "folder", "limit": 2}}
    reader = BatchReader(
        declared,
        decode=lambda sample, _rng: {"sum": sample["data"].sum()},
        base_dir=folder,
        batch_size=2,
        num_loaders=1,
    )
    with reader:
        assert [batch["sum"].tolist() for batch in reader] == [[1, 0]]


def test_arrays_are_renamed_and_chosen_and_their_bytes_put_in_order(tmp_path: Path) -> None:
    big = np.arange(6, dtype=">i4").reshape(2, 3)
    np.savez(tmp_path / "a.npz", y=1, words=np.array("one"), x=np.asfortranarray(big), objects=np.array([{}], object))
    with closing(opened("files", tmp_path, ("x", "y"), path="a.npz")) as source:
        assert rows_of(source, [0])["x"].tolist() == [big.tolist()]
        assert list(source.specs) == ["x", "y"]
    with closing(opened("files", tmp_path, path="a.npz", arrays={"data": "words", "n": "y"})) as source:
        assert {top: rows.tolist() for top, rows in rows_of(source, [0]).items()} == {"data": ["one"], "n": [1]}
