"""The ready-made layers: their source's options stand at the top level of param_str."""

from __future__ import annotations

import pydoc
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest

import blobfeed
from blobfeed import (
    BatchReader,
    HDF5InputLayer,
    HDF5SamplesInputLayer,
    ImageListInputLayer,
    LayerHarness,
    MultiProcessInputLayer,
    NpyInputLayer,
    StreamInputLayer,
    layers,
)
from tests.support.standin_files import images, write_images


def test_all_public_names_and_no_others_are_in_the_help_and_behind_a_star() -> None:
    of_layers = {name for name in blobfeed.__all__ if getattr(blobfeed, name).__module__.startswith("blobfeed.layers")}
    assert set(layers.__all__) == of_layers
    text = pydoc.plain(pydoc.render_doc(layers))
    assert [name for name in layers.__all__ if f"class {name}(" not in text] == []


def test_hdf5_takes_its_path_among_the_other_parameters(tmp_path: Path) -> None:
    write_images(tmp_path / "train.h5")
    text = "{path: train.h5, limit: 6, batch_size: 4, num_loaders: 0}"
    with LayerHarness(HDF5InputLayer, text, base_dir=tmp_path) as harness:
        np.testing.assert_array_equal(harness.forward()["label"], [0, 1, 2, 3])
        np.testing.assert_array_equal(harness.forward()["label"], [4, 5, 0, 1])


def test_hdf5_samples_takes_its_path_among_the_other_parameters(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "all.h5", "w") as file:
        for index in range(5):
            file.create_dataset(f"sample_{index}", data=np.full((2, 3), index, np.float32))
    text = "{path: all.h5, batch_size: 5, num_loaders: 0}"
    with LayerHarness(HDF5SamplesInputLayer, text, tops=["data"], base_dir=tmp_path) as harness:
        np.testing.assert_array_equal(harness.forward()["data"][:, 1, 2], np.arange(5))


def test_npy_takes_its_tops_names_with_their_paths(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", images())
    np.save(tmp_path / "labels.npy", np.arange(20))
    text = "{data: images.npy, label: [labels.npy], batch_size: 4, num_loaders: 0}"
    with LayerHarness(NpyInputLayer, text, base_dir=tmp_path) as harness:
        tops = harness.forward()
        np.testing.assert_array_equal(tops["data"], images()[:4])
        np.testing.assert_array_equal(tops["label"], np.arange(4))


def test_image_list_takes_its_path_among_the_other_parameters(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    for index in range(3):
        cv2.imwrite(str(tmp_path / f"{index}.png"), np.full((8, 6, 3), (40 * index, 0, 0), np.uint8))
    (tmp_path / "list.txt").write_text("".join(f"{index}.png {index}\n" for index in range(3)))
    text = "{path: list.txt, new_height: 4, new_width: 4, batch_size: 3, num_loaders: 0}"
    with LayerHarness(ImageListInputLayer, text, base_dir=tmp_path) as harness:
        tops = harness.forward()
        assert tops["data"].shape == (3, 3, 4, 4)
        np.testing.assert_array_equal(tops["data"][:, 0, 0, 0], [0, 40, 80])
        np.testing.assert_array_equal(tops["label"], [0, 1, 2])
    source = {"image_list": {"path": "list.txt", "new_height": 4, "new_width": 4}}
    for given in ({"source": source}, {"source": {"concat": [source]}}, {"mix": [source]}):
        parameters: Any = {**given, "batch_size": 3, "num_loaders": 0}
        with BatchReader(base_dir=tmp_path, **parameters) as reader:  # RGB, where Caffe has BGR
            np.testing.assert_array_equal(next(iter(reader))["data"], tops["data"][:, ::-1])
        with LayerHarness(MultiProcessInputLayer, str(parameters), base_dir=tmp_path) as harness:
            np.testing.assert_array_equal(harness.forward()["data"], tops["data"])


def test_stream_takes_its_function_among_the_other_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_stream.py").write_text(
        "def samples(shard, shards):\n    return ({'data': [float(i)], 'label': i} for i in range(shard, 20, shards))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with LayerHarness(StreamInputLayer, "{make: my_stream:samples, shards: 1, batch_size: 4}") as harness:
        np.testing.assert_array_equal(harness.forward()["label"], [0, 1, 2, 3])
        np.testing.assert_array_equal(harness.forward()["data"], [[4], [5], [6], [7]])
