"""Only regular files are opened: a FIFO would keep whoever opens it waiting for ever."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.readers.delivery.mean_image import load_mean_file
from blobfeed.workers.base.errors import ParameterError, SampleError, SourceError
from blobfeed.workers.base.parameters import check_parameters
from blobfeed.workers.pipeline.pipeline import Pipeline
from blobfeed.workers.sources.images.source import ImageListSource

from tests.support.stored import in_loader, opened, rows_of

pytestmark = pytest.mark.timeout(20)


@pytest.fixture(autouse=True)
def fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jpg")


@pytest.mark.parametrize("check_files", [True, False])
def test_a_fifo_in_an_image_list_is_an_error(check_files: bool, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a.jpg 0\n")
    options = {"path": "list.txt", "new_height": 4, "new_width": 4, "check_files": check_files}
    with pytest.raises((SourceError, SampleError), match=r"list\.txt line 1: .*a\.jpg .*not a (regular )?file"):
        rows_of(ImageListSource(options, base_dir=tmp_path), [0])


def test_samples_that_are_fifos_are_not_announced(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a.jpg 0\n" * 8)
    options = {"path": "list.txt", "new_height": 4, "new_width": 4, "check_files": False}
    with pytest.raises(OSError, match="Illegal seek"):  # which is logged; the read that follows says what it is
        ImageListSource(options, base_dir=tmp_path).will_need(np.arange(8))


def test_a_list_that_is_a_fifo_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"image list .*a\.jpg cannot be read: it is not a regular file"):
        ImageListSource({"path": "a.jpg", "shorter_side": 4}, base_dir=tmp_path)


def test_an_array_that_is_a_fifo_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"source npy: .*a\.jpg' is not a regular file"):
        opened("npy", tmp_path, data="a.jpg")


def test_a_virtual_data_set_over_a_fifo_is_an_error(tmp_path: Path) -> None:
    layout = h5py.VirtualLayout((4, 3), np.float32)
    layout[:] = h5py.VirtualSource("a.jpg", "data", (4, 3))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_virtual_dataset("data", layout)
    with pytest.raises(SourceError, match=r"a\.h5:data is partly stored in '.*a\.jpg', which is no regular file"):
        opened("hdf5", tmp_path, path="a.h5", tops=("data",))


@pytest.mark.parametrize(
    "given",
    [
        {"cache": {"path": "a.jpg", "size_limit": 1 << 20}},
        {"sampler": {"weights": "a.jpg"}},
        {"source": {"hdf5_samples": {"path": "a.h5", "index_cache": "a.jpg"}}},
        {"source": {"npz": {"path": "a.jpg"}}},
        {"source": {"idx": {"data": "a.jpg"}}},
    ],
    ids=["cache", "weights", "index", "npz", "idx"],
)
def test_a_fifo_in_place_of_another_file_of_setup_is_an_error(given: dict[str, Any], tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 3)))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["sample_0"] = np.zeros(3)
    parameters = check_parameters({"source": {"npy": {"data": "a.npy"}}, "batch_size": 2} | given)
    with pytest.raises((ParameterError, SourceError), match=r"a\.jpg.* (is not a regular file|is no \.npz file)"):
        Pipeline(parameters, base_dir=tmp_path)


def test_a_mean_file_that_is_a_fifo_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"mean_file .*a\.jpg cannot be read: it is not a regular file"):
        load_mean_file(tmp_path / "a.jpg")


def test_a_file_that_became_a_fifo_is_an_error(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 3)))
    loader = in_loader(opened("npy", tmp_path, data="a.npy"))
    (tmp_path / "a.npy").unlink()
    os.mkfifo(tmp_path / "a.npy")
    with pytest.raises(SourceError, match=r"a\.npy: it was changed"):
        rows_of(loader, [0])
