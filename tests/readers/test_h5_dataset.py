"""H5Dataset: archives with a data set per sample, read by the workers of torch's DataLoader."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.workers.api import IndexArray, NamedRows

from blobfeed import Table
from tests.support.forked import exit_code, fork
from tests.support.leftovers import descriptors

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402

from blobfeed import H5Dataset  # noqa: E402

PER_FILE = 12


def write(
    path: Path, first: int, *, prefix: str = "", shape: Callable[[int], tuple[int, ...]] = lambda _: (2, 3)
) -> None:
    """Trajectories of which each value is the sample's number; written so that no order of HDF5's own is natural."""
    with h5py.File(path, "w") as file:
        for number in reversed(range(PER_FILE)):
            values = np.full(shape(number), first + number, np.float32)
            dataset = file.create_dataset(f"{prefix}trajectory_{number}", data=values)
            dataset.attrs["number"] = first + number
            dataset.attrs["goal"] = np.array([first + number, 0.5])
            dataset.attrs["name"] = f"run {first + number}"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    write(tmp_path / "part_2.h5", 0)
    write(tmp_path / "part_10.h5", PER_FILE)
    return tmp_path


def numbers(batches: Any) -> list[int]:
    """Of the samples, as their data say it and their labels, too."""
    found = [(batch["data"][:, 0, 0].tolist(), batch["labels"]["number"].tolist()) for batch in batches]
    assert all(data == labels for data, labels in found)
    return [int(number) for data, _ in found for number in data]


def test_a_relative_base_directory_stays_where_it_was(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(archive.parent)
    dataset = H5Dataset("*.h5", base_dir=archive.name)
    monkeypatch.chdir("/")
    assert dataset[1]["data"][0, 0] == 1


def test_samples_of_several_files_come_in_natural_order_with_their_labels(archive: Path) -> None:
    dataset = H5Dataset(archive / "*.h5")
    assert len(dataset) == 2 * PER_FILE
    for number in (0, 2, 10, 2 * PER_FILE - 1, -1):
        item, expected = dataset[number], number % (2 * PER_FILE)
        assert torch.equal(item["data"], torch.full((2, 3), float(expected)))
        assert item["labels"]["number"].item() == expected
        assert item["labels"]["goal"].tolist() == [expected, 0.5]
        assert item["labels"]["name"] == f"run {expected}"
    assert dataset.where(10).endswith("part_2.h5:trajectory_10")
    with pytest.raises(IndexError):
        dataset[2 * PER_FILE]
    assert dataset.where(-1) == dataset.where(2 * PER_FILE - 1)
    with pytest.raises(IndexError, match=r"\b24\b.*\b24\b"):
        dataset.where(2 * PER_FILE)
    dataset.close()


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_read_what_the_parent_would_have_read(archive: Path, start: str) -> None:
    dataset = H5Dataset(archive / "*.h5")
    assert dataset[3]["labels"]["number"] == 3  # opens a file here: the workers must not use this handle
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads, which torch has
        loader = DataLoader(dataset, batch_size=5, num_workers=1 + (start == "fork"), multiprocessing_context=start)
        batches = list(loader)
    assert numbers(batches) == list(range(2 * PER_FILE))
    assert [len(batch["labels"]["name"]) for batch in batches] == [5, 5, 5, 5, 4]
    assert batches[1]["labels"]["goal"].shape == (5, 2)
    assert dataset[4]["labels"]["number"] == 4
    dataset.close()


def test_a_fork_opens_files_of_its_own(archive: Path) -> None:
    dataset = H5Dataset(archive / "part_2.h5")
    dataset[0]
    (number,) = (number for number, target in descriptors().items() if target.startswith(str(archive)))
    mark = os.lseek(number, 0, os.SEEK_SET)

    def read() -> None:
        assert dataset[1]["labels"]["number"] == 1

    assert exit_code(fork(read)) == 0
    # Processes that share an open file share its position, too, and reads move it.
    assert os.lseek(number, 0, os.SEEK_CUR) == mark
    read()
    assert os.lseek(number, 0, os.SEEK_CUR) != mark
    dataset.close()


def test_a_batch_is_read_at_once(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    read = Table.read

    def counted(table: Table, indices: IndexArray, out: NamedRows) -> None:
        reads.append(len(indices))
        read(table, indices, out)

    monkeypatch.setattr(Table, "read", counted)
    dataset = H5Dataset(archive / "*.h5")
    assert numbers(DataLoader(dataset, batch_size=8)) == list(range(2 * PER_FILE))
    assert reads == [8, 8, 8]
    dataset.close()


def test_only_some_groups_and_only_the_first_samples(tmp_path: Path) -> None:
    write(tmp_path / "all.h5", 0, prefix="train/left/")
    with h5py.File(tmp_path / "all.h5", "a") as file:
        file["test/trajectory_0"] = np.zeros((2, 3), np.float32)
        file["test/trajectory_0"].attrs["number"] = -1
    assert len(H5Dataset(tmp_path / "all.h5", 3, groups="train")) == 3
    assert len(H5Dataset([tmp_path / "all.h5"], 3, groups="train")) == 3
    assert len(H5Dataset(tmp_path / "all.h5", groups="train", limit=-1)) == len(
        H5Dataset(tmp_path / "all.h5", groups="train")
    )
    assert set(H5Dataset(tmp_path / "all.h5", groups="test")[0]["labels"]) == {"number"}


def test_labels_are_found_though_the_first_file_has_no_samples(archive: Path) -> None:
    h5py.File(archive / "part_1.h5", "w").close()
    item = H5Dataset(archive / "*.h5")[2]
    assert (item["data"][0, 0], item["labels"]["name"]) == (2, "run 2")


def test_a_sample_may_be_a_group_of_data_sets(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "pairs.h5", "w") as file:
        for number in range(11):
            group = file.create_group(f"pair_{number}")
            group["image"] = np.full((4,), number, np.uint8)
            group["depth/map"] = np.full((2, 2), number, np.float64)
            group.attrs["kind"] = number % 3
    dataset = H5Dataset(tmp_path / "pairs.h5", datasets=["image", "depth/map"])
    assert H5Dataset(tmp_path / "pairs.h5", datasets=["/image"])[10]["labels"] == {"kind": 1}
    item = dataset[10]
    assert item["image"].tolist() == [10] * 4
    assert item["depth/map"].dtype == torch.float64
    assert item["labels"] == {"kind": 1}
    assert set(H5Dataset(tmp_path / "pairs.h5", datasets="image", labels="kind")[0]) == {"image", "labels"}


def test_samples_may_differ_in_shape(tmp_path: Path) -> None:
    write(tmp_path / "ragged.h5", 0, shape=lambda number: (number + 1, 3))
    dataset = H5Dataset(tmp_path / "ragged.h5")
    for number, item in enumerate(dataset.__getitems__(range(PER_FILE))):
        assert torch.equal(item["data"], torch.full((number + 1, 3), float(number)))


def test_a_transform_is_run_where_the_item_is_read(archive: Path) -> None:
    dataset = H5Dataset(archive / "*.h5", transform=lambda item: (item["data"].sum(), int(item["labels"]["number"])))
    assert dataset[5] == (30.0, 5)


def test_chosen_labels_only_and_none_at_all(archive: Path) -> None:
    assert set(H5Dataset(archive / "*.h5", labels=["name"])[0]["labels"]) == {"name"}
    assert H5Dataset(archive / "*.h5", labels=[])[0]["labels"] == {}
