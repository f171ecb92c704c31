"""The harness: a layer without a net."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.layers import HDF5InputLayer, LayerHarness, MultiProcessInputLayer
from blobfeed.layers.harness import make_layer
from blobfeed.layers.standin import CaffeAbort, Layer
from blobfeed.workers.base.errors import ParameterError

from tests.support.standin_files import images, write_images


class _Recorder(Layer):
    """A layer as anybody writes one for Caffe, that counts."""

    def setup(self, bottom: Any, top: Any) -> None:
        self.calls: list[object] = [("setup", len(bottom), len(top), self.param_str, self.phase)]

    def reshape(self, bottom: Any, top: Any) -> None:
        self.calls.append("reshape")
        top[0].reshape(2, len(self.calls))

    def forward(self, bottom: Any, top: Any) -> None:
        self.calls.append("forward")
        top[0].data[...] = len(self.calls)


def test_hooks_are_called_in_caffes_order_with_its_attributes_set() -> None:
    with LayerHarness(_Recorder, "anything", tops=["out"], phase="TEST") as harness:
        assert harness.layer.calls == [("setup", 0, 1, "anything", 1), "reshape"]
        tops = harness.forward()
        assert harness.layer.calls[2:] == ["reshape", "forward"]
        np.testing.assert_array_equal(tops["out"], np.full((2, 3), 4))


class _TooEarly(Layer):
    def setup(self, bottom: Any, top: Any) -> None:
        top[0].data[...] = 0


def test_what_ends_caffe_ends_the_test_loudly() -> None:
    with pytest.raises(CaffeAbort, match="before its first reshape"):
        LayerHarness(_TooEarly, "", tops=["data"])


@pytest.fixture
def values(tmp_path: Path) -> dict[str, Any]:
    return {"source": {"hdf5": {"path": write_images(tmp_path / "train.h5")}}, "batch_size": np.int64(4)}


def test_a_mapping_may_hold_paths_numpy_numbers_and_tuples(values: dict[str, Any]) -> None:
    with LayerHarness(MultiProcessInputLayer, {**values, "tops": ("label", "data")}) as harness:
        assert list(harness.tops) == ["label", "data"]
        assert harness.tops["data"].shape == (4, 3, 4, 5)


@pytest.mark.parametrize("text", ["{path: train.h5, batch_size: 4}", '{"path": "train.h5", "batch_size": 4}'])
def test_param_str_may_be_text_and_paths_relative(values: dict[str, Any], tmp_path: Path, text: str) -> None:
    with LayerHarness(HDF5InputLayer, text, base_dir=tmp_path) as harness:
        np.testing.assert_array_equal(harness.forward()["data"], images()[:4])


@pytest.mark.parametrize("delivery", ["copy", "view"])
def test_on_the_cpu_device_the_tops_are_torch_tensors(values: dict[str, Any], delivery: str) -> None:
    torch = pytest.importorskip("torch")
    with LayerHarness(MultiProcessInputLayer, {**values, "delivery": delivery}, device="cpu") as harness:
        tops = harness.forward()
        assert (tops["data"].dtype, str(tops["data"].device)) == (torch.float32, "cpu")
        np.testing.assert_array_equal(tops["data"], images()[:4])


def test_a_phase_is_one_of_caffes_two(values: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="phase is 'train': expected 'TRAIN' or 'TEST'"):
        LayerHarness(MultiProcessInputLayer, values, phase="train")


def test_a_layer_without_close_is_left_as_it_is() -> None:
    LayerHarness(_Recorder, "", tops=["out"]).close()
    assert make_layer(_Recorder, "text", 1, "folder").base_dir == "folder"  # type: ignore[attr-defined]
