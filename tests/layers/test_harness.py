"""The harness: a layer without a net."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import yaml
from blobfeed.layers.harness import make_layer
from blobfeed.layers.standin import CaffeAbort, Layer
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import LayerHarness, MultiProcessInputLayer, ParameterError, Sample
from tests.support.part import examples
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


def test_another_layer_gets_its_param_str_as_it_is() -> None:
    for text in ("", "3", "'num_classes': 21"):
        with LayerHarness(_Recorder, text) as harness:
            assert harness.layer.param_str == text
            assert harness.top_names == ("data", "label")


class _TooEarly(Layer):
    def setup(self, bottom: Any, top: Any) -> None:
        top[0].data[...] = 0


class _MakesAMapping(MultiProcessInputLayer):
    def setup(self, bottom: Any, top: Any) -> None:
        source = {"arrays": {"data": np.arange(4), "label": np.arange(4)}}
        self.param_str = {"source": source, "batch_size": int(self.param_str), "num_loaders": 0}
        super().setup(bottom, top)


def test_a_layer_of_ours_may_read_any_text_if_its_setup_makes_a_mapping_of_it() -> None:
    with LayerHarness(_MakesAMapping, "3") as harness:
        assert harness.forward()["data"].tolist() == [0, 1, 2]


class _Reads(Layer):
    """A plain Caffe layer that reads its own param_str."""

    def setup(self, bottom: Any, top: Any) -> None:
        self.by_python = eval(self.param_str)
        self.by_yaml = yaml.safe_load(self.param_str)

    def reshape(self, bottom: Any, top: Any) -> None:
        top[0].reshape(1)

    def forward(self, bottom: Any, top: Any) -> None: ...
    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None: ...


_PLAIN = (
    st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("a'\"\n: é\\#{}", max_size=8)
)


@given(st.dictionaries(st.sampled_from("abcd"), st.recursive(_PLAIN, lambda inner: st.lists(inner, max_size=3))))
@examples(50)
def test_a_mapping_reaches_a_layer_as_text_for_eval_and_for_yaml(values: dict[str, Any]) -> None:
    with LayerHarness(_Reads, values, tops=["data"]) as harness:
        assert harness.layer.by_python == harness.layer.by_yaml == values
        assert list(harness.layer.by_yaml) == list(values)


def test_what_ends_caffe_ends_the_test_loudly() -> None:
    with pytest.raises(CaffeAbort):
        LayerHarness(_TooEarly, "", tops=["data"])


@pytest.fixture
def values(tmp_path: Path) -> dict[str, Any]:
    source = {"hdf5": {"path": write_images(tmp_path / "train.h5")}}
    return {"source": source, "batch_size": np.int64(4), "num_loaders": 0}


def test_a_mapping_may_hold_paths_numpy_numbers_and_tuples(values: dict[str, Any]) -> None:
    with LayerHarness(MultiProcessInputLayer, {**values, "tops": ("label", "data")}) as harness:
        assert list(harness.tops) == ["label", "data"]
        assert harness.tops["data"].shape == (4, 3, 4, 5)


@pytest.mark.parametrize("delivery", ["copy", "view"])
def test_on_the_cpu_device_the_tops_are_torch_tensors(values: dict[str, Any], delivery: str) -> None:
    torch = pytest.importorskip("torch")
    with LayerHarness(MultiProcessInputLayer, {**values, "delivery": delivery}, device="cpu") as harness:
        tops = harness.forward()
        assert (tops["data"].dtype, str(tops["data"].device)) == (torch.float32, "cpu")
        np.testing.assert_array_equal(tops["data"], images()[:4])


def test_a_layer_without_close_is_left_as_it_is() -> None:
    LayerHarness(_Recorder, "", tops=["out"]).close()
    assert make_layer(_Recorder, "text", 1, "folder").base_dir == "folder"  # type: ignore[attr-defined]


class _Doubled(MultiProcessInputLayer):
    extra_parameters: ClassVar[dict[str, object]] = {"factor": 2}

    def decode(self, sample: Sample, rng: np.random.Generator) -> object:
        _decoded_in.append(os.getpid())
        return {"data": sample["data"].astype(np.float32) * self.extra["factor"], "label": rng.random(2)}

    def postprocess(self, batch: dict[str, Any]) -> None:
        batch["data"] -= batch["data"].mean()


_decoded_in: list[int] = []


def test_a_sample_and_a_batch_are_made_in_this_process_with_the_bytes_that_the_loaders_make(
    values: dict[str, Any],
) -> None:
    given = {**values, "shuffle": True, "factor": 3, "transform": {"crop_size": 2}, "num_loaders": 1}
    with LayerHarness(_Doubled, given) as harness:
        _decoded_in.clear()
        order = harness.sampler()
        batch = harness.postprocess(order[:4].tolist())
        sample = harness.decode(17, epoch=1)
        assert _decoded_in == [os.getpid()] * 5
        assert sample["data"].shape == (3, 2, 2)
        assert not np.array_equal(sample["label"], harness.decode(17)["label"])
        tops = harness.forward()
        np.testing.assert_array_equal(batch["data"], tops["data"])
        np.testing.assert_array_equal(np.asarray(batch["label"]).astype(np.float32), tops["label"])
        assert sorted(order.tolist()) == list(range(20))
        with pytest.raises(IndexError, match=r"\b20 .*\b20 "):
            harness.decode(20)


def _three(shard: int, shards: int) -> list[float]:
    return [float(shard), 2.5, 3.5]


def test_a_streams_sample_is_its_first_shards() -> None:
    source = {"stream": {"make": f"{__name__}:_three", "shards": 2}}
    with LayerHarness(MultiProcessInputLayer, {"source": source, "batch_size": 2, "tops": "data"}) as harness:
        assert harness.decode(1) == {"data": np.float32(2.5)}
        for index in (-1, 3):
            with pytest.raises(IndexError, match=rf"sample {index} "):
                harness.decode(index)


def test_a_layer_of_another_kind_makes_no_samples() -> None:
    with LayerHarness(_Recorder, "", tops=["out"]) as harness, pytest.raises(ParameterError, match="_Recorder"):
        harness.decode(0)


class _Noisy(MultiProcessInputLayer):
    def postprocess(self, batch: dict[str, Any], rng: np.random.Generator) -> None:
        batch["label"][:] = rng.integers(1 << 20, size=len(batch["label"]))


class _NoisyHalves(_Noisy):
    def batch_sampler(self, epoch: int, samples: int, rng: np.random.Generator) -> Any:
        return rng.permutation(samples)[:8].reshape(2, 4)


class _NoisyByName(MultiProcessInputLayer):
    def postprocess(self, batch: dict[str, Any], strength: int = 20, *, rng: np.random.Generator) -> None:
        batch["label"][:] = rng.integers(1 << strength, size=len(batch["label"]))


@pytest.mark.parametrize(
    ("layer", "options", "count"),
    [(_Noisy, {}, 5), (_NoisyByName, {}, 5), (_Noisy, {"sampler": {"indices": [*range(8)]}}, 2), (_NoisyHalves, {}, 2)],
)
def test_a_batch_gets_the_random_numbers_of_the_one_that_begins_the_epoch(
    values: dict[str, Any], layer: type[MultiProcessInputLayer], options: dict[str, Any], count: int
) -> None:
    with LayerHarness(layer, {**values, **options}) as harness:
        for epoch in range(2):
            made = harness.postprocess(harness.sampler(epoch)[:4], epoch)["label"]
            labels = [harness.forward()["label"].tolist() for _ in range(count)]
            assert labels[0] == np.asarray(made).tolist()


class _Halves(MultiProcessInputLayer):
    def batch_sampler(self, epoch: int, samples: int, rng: np.random.Generator) -> Any:
        order = rng.permutation(samples)
        yield order[:3]
        yield order[3:4]


def test_what_a_sampler_draws_is_what_the_layer_delivers(values: dict[str, Any]) -> None:
    np.random.seed(3)  # noqa: NPY002 - the global generator is the user's
    untouched = np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    with LayerHarness(_Halves, values) as harness:
        for epoch in range(2):
            batches = harness.batch_sampler(epoch)
            assert [len(batch) for batch in batches] == [3, 1]
            for batch in batches:
                np.testing.assert_array_equal(harness.forward()["label"], batch)
        harness.decode(3)
        assert np.random.get_state()[1].tolist() == untouched  # type: ignore[index]  # noqa: NPY002
    with LayerHarness(MultiProcessInputLayer, {**values, "sampler": {"indices": [3, 1, 3]}}) as harness:
        assert harness.sampler(7).tolist() == [3, 1, 3]
