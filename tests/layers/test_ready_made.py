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
from tests.support.pictures import encoded, write_list
from tests.support.standin_files import images, write_images


def test_all_public_names_and_no_others_are_in_the_help_and_behind_a_star() -> None:
    of_layers = {name for name in blobfeed.__all__ if getattr(blobfeed, name).__module__.startswith("blobfeed.layers")}
    assert set(layers.__all__) == of_layers
    text = pydoc.plain(pydoc.render_doc(layers))
    assert [name for name in layers.__all__ if f"class {name}(" not in text] == []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same images in a file of each kind."""
    write_images(tmp_path / "train.h5")
    with h5py.File(tmp_path / "samples.h5", "w") as file:
        for index, image in enumerate(images()):
            file[f"sample_{index}"] = image
            file[f"sample_{index}"].attrs["label"] = index
    np.save(tmp_path / "images.npy", images())
    np.save(tmp_path / "labels.npy", np.arange(20))
    pictures = images().astype(np.uint8).transpose(0, 2, 3, 1)
    write_list(tmp_path, {f"{index}.png": encoded(picture, ".png") for index, picture in enumerate(pictures)})
    (tmp_path / "my_stream.py").write_text(
        "import numpy as np\nsamples = lambda shard, shards: zip(np.load('images.npy'), np.load('labels.npy'))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


READY_MADE: dict[type[MultiProcessInputLayer], str] = {
    HDF5InputLayer: "path: train.h5, limit: 6",
    HDF5SamplesInputLayer: "path: samples.h5, labels: [label]",
    NpyInputLayer: "data: images.npy, label: [labels.npy]",
    ImageListInputLayer: "path: list.txt, new_height: 4, new_width: 5",
    StreamInputLayer: "make: my_stream:samples, shards: 1, tops: [data, label]",
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("layer", READY_MADE, ids=lambda layer: layer.__name__)
def test_a_layer_takes_the_options_of_its_source_among_the_other_parameters(
    layer: type[MultiProcessInputLayer],
) -> None:
    with LayerHarness(layer, f"{{{READY_MADE[layer]}, batch_size: 4, num_loaders: 0}}") as harness:
        tops = harness.forward()
        np.testing.assert_array_equal(tops["data"], images()[:4])
        np.testing.assert_array_equal(tops["label"], [0, 1, 2, 3])


@pytest.mark.parametrize("way", ["source", "concat", "mix"])
def test_pictures_are_bgr_in_a_layer_and_rgb_in_a_reader(folder: Path, way: str) -> None:
    source = {"image_list": {"path": "list.txt", "equal_sizes": True}}
    ways: dict[str, Any] = {
        "source": {"source": source},
        "concat": {"source": {"concat": [source]}},
        "mix": {"mix": [source]},
    }
    parameters = {**ways[way], "batch_size": 4, "num_loaders": 0}
    with BatchReader(base_dir=folder, **parameters) as reader:
        np.testing.assert_array_equal(next(iter(reader))["data"], images()[:4, ::-1])
    with LayerHarness(MultiProcessInputLayer, str(parameters), base_dir=folder) as harness:
        np.testing.assert_array_equal(harness.forward()["data"], images()[:4])
