"""MultiProcessInputLayer as Caffe calls it, on blobs as strict as Caffe's."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
from blobfeed.layers import multi_process_input_layer
from blobfeed.layers.harness import make_layer
from blobfeed.layers.standin import Blob, BlobVector
from blobfeed.workers.api import AnyArray, HookBatch

from blobfeed import (
    InexactValueError,
    LayerHarness,
    MultiProcessInputLayer,
    ParameterError,
    RingAllocationError,
    Sample,
    SourceError,
)
from tests.support.standin_files import images, write_hdf5, write_images
from tests.support.waiting import wait_until


@pytest.fixture
def train(tmp_path: Path) -> dict[str, Any]:
    write_images(tmp_path / "train.h5")
    return {"source": {"hdf5": {"path": str(tmp_path / "train.h5")}}, "batch_size": 8, "num_loaders": 0}


@pytest.fixture
def with_loader(train: dict[str, Any]) -> dict[str, Any]:
    return {**train, "num_loaders": 1}


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def _two_tops() -> BlobVector:
    return BlobVector([Blob(), Blob()])


def test_two_layers_of_one_seed_order_crop_and_mirror_alike_so_masks_follow_their_pictures(
    train: dict[str, Any],
) -> None:
    given = {**train, "shuffle": True, "tops": "data", "transform": {"crop_size": 3, "mirror": True}}
    masks = {**given, "num_loaders": 1}
    with LayerHarness(MultiProcessInputLayer, given) as one, LayerHarness(MultiProcessInputLayer, masks) as other:
        for _ in range(5):
            np.testing.assert_array_equal(one.forward()["data"], other.forward()["data"])


def test_a_layer_that_is_started_has_its_batch_ready_and_goes_on_from_a_state_that_comes_later(
    with_loader: dict[str, Any],
) -> None:
    with LayerHarness(MultiProcessInputLayer, with_loader) as harness:
        harness.layer.start()
        pipeline = harness.layer._opened().pipeline
        wait_until(pipeline.is_ready, "the first batch has come")
        np.testing.assert_array_equal(harness.forward()["label"], np.arange(8))
        state = harness.layer.state_dict()
        with pytest.raises(ParameterError, match="load_state_dict"):
            harness.layer.load_state_dict(state)
        assert harness.layer.statistics().stalls == 0
    before = _children()
    with LayerHarness(MultiProcessInputLayer, with_loader) as harness:
        harness.layer.start()
        harness.reshape()  # the batch that a state replaces has been looked at
        harness.layer.load_state_dict(state)
        assert len(_children() - before) == 1  # one assembler
        np.testing.assert_array_equal(harness.forward()["label"], np.arange(8, 16))


def test_a_layer_that_is_let_go_without_close_ends_its_processes(with_loader: dict[str, Any]) -> None:
    before, none = _children(), BlobVector([])
    layer, top = make_layer(MultiProcessInputLayer, with_loader, 0), BlobVector([Blob(), Blob()])
    layer.setup(none, top)
    layer.reshape(none, top)
    layer.reshape(none, top)
    assert _children() > before
    del layer
    gc.collect()
    assert _children() == before


def test_the_third_layer_that_was_let_go_without_close_is_warned_of(with_loader: dict[str, Any]) -> None:
    """Caffe keeps its layers, as the list does here."""
    with contextlib.ExitStack() as kept:
        nets = []
        for _ in range(3):
            nets.append(kept.enter_context(LayerHarness(MultiProcessInputLayer, with_loader)))
            nets[-1].forward()
        with pytest.warns(RuntimeWarning, match=r"\b3 .*close\(\)"):
            LayerHarness(MultiProcessInputLayer, with_loader).close()
        nets[0].close()
        LayerHarness(MultiProcessInputLayer, with_loader).close()


def test_layers_of_one_net_and_layers_without_processes_are_no_forgotten_ones(
    train: dict[str, Any], with_loader: dict[str, Any]
) -> None:
    with contextlib.ExitStack() as net:
        for values in (train, with_loader):
            layers = [net.enter_context(LayerHarness(MultiProcessInputLayer, values)) for _ in range(4)]
            for layer in layers[: 4 if values is train else 2]:
                layer.forward()
        LayerHarness(MultiProcessInputLayer, with_loader).close()


def test_the_trainer_gets_no_python_thread(with_loader: dict[str, Any]) -> None:
    before = threading.active_count()
    with LayerHarness(MultiProcessInputLayer, with_loader) as harness:
        harness.forward()
        assert threading.active_count() == before


def test_forward_without_reshape_before_it_is_refused_where_the_shape_has_changed(train: dict[str, Any]) -> None:
    with LayerHarness(MultiProcessInputLayer, {**train, "last_batch": "partial"}) as harness:
        harness.forward()
        tops = _two_tops()
        harness.layer.reshape(BlobVector(()), tops)
        harness.forward()
        with pytest.raises(ValueError, match="reshape"):
            harness.layer.forward(BlobVector(()), tops)
        np.testing.assert_array_equal(harness.forward()["label"], np.arange(16, 20))  # the batch was not lost


# ---- the net definition


def test_a_batch_that_no_memory_holds_is_refused_in_setup(
    train: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multi_process_input_layer, "available_memory", lambda: 1_000_000)
    with pytest.raises(RingAllocationError, match="1,000,000"):
        LayerHarness(MultiProcessInputLayer, {**train, "batch_size": 30 << 20})


def test_paths_are_taken_from_the_base_directory_where_there_is_one_else_from_the_working_directory(
    train: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relative = {**train, "source": {"hdf5": {"path": "train.h5"}}}
    with pytest.raises(SourceError):
        LayerHarness(MultiProcessInputLayer, relative)
    LayerHarness(MultiProcessInputLayer, relative, base_dir=tmp_path).close()
    monkeypatch.chdir(tmp_path)
    LayerHarness(MultiProcessInputLayer, relative).close()
    monkeypatch.chdir(tmp_path.parent)
    with LayerHarness(MultiProcessInputLayer, {**relative, "num_loaders": 0}, base_dir=tmp_path.name) as harness:
        monkeypatch.chdir("/")
        harness.forward()


# ---- hooks of subclasses


class Shifts(MultiProcessInputLayer):
    extra_parameters = {"max_shift": 2, "gain": 1.0}  # noqa: RUF012 - as users write it

    def setup(self, bottom: Any, top: Any) -> None:
        self.offset = np.float32(100)
        super().setup(bottom, top)

    def decode(self, sample: Sample, rng: np.random.Generator) -> Mapping[str, AnyArray]:
        shift = rng.integers(0, int(str(self.extra["max_shift"])) + 1)
        gain = np.float32(str(self.extra["gain"]))
        return {"data": np.asarray(sample["data"], np.float32) * gain + self.offset + shift, "label": sample["label"]}


def test_decode_runs_with_the_attributes_and_the_extra_parameters_of_the_layer(train: dict[str, Any]) -> None:
    with LayerHarness(Shifts, {**train, "max_shift": 1, "gain": 2, "num_loaders": 2}) as harness:
        data = harness.forward()["data"]
        shifts = {float(shift) for shift in np.unique(data - (images()[:8] * 2 + 100))}
        assert shifts <= {0.0, 1.0}
        assert len(shifts) == 2
        first = data.copy()
    with LayerHarness(Shifts, {**train, "max_shift": 1, "gain": 2.0}) as harness:
        np.testing.assert_array_equal(harness.forward()["data"], first)


class ShiftsMore(Shifts):
    extra_parameters = {"max_shift": 5, "label": "none"}  # noqa: RUF012


def test_extra_parameters_have_defaults_and_a_further_subclass_adds_to_them(train: dict[str, Any]) -> None:
    with LayerHarness(ShiftsMore, train) as harness:
        assert harness.layer.extra == {"max_shift": 5, "gain": 1.0, "label": "none"}


@pytest.mark.parametrize(
    ("default", "given", "value"), [(Path("a"), "b/c", Path("b/c")), (b"a", b"b", b"b"), (np.uint8, None, np.uint8)]
)
def test_an_extra_parameter_may_have_a_default_that_no_text_says(
    train: dict[str, Any], default: object, given: object, value: object
) -> None:
    class Odd(MultiProcessInputLayer):
        extra_parameters = {"odd": default}  # noqa: RUF012

    with LayerHarness(Odd, {**train, **({} if given is None else {"odd": given})}) as harness:
        assert harness.layer.extra == {"odd": value}


class MakesOneTop(MultiProcessInputLayer):
    decode = lambda self, sample, rng: sample["data"].sum(dtype=np.float32)  # noqa: E731


def test_decode_may_be_a_lambda_that_returns_one_array(train: dict[str, Any]) -> None:
    with LayerHarness(MakesOneTop, {**train, "tops": ["data"]}) as harness:
        np.testing.assert_array_equal(harness.forward()["data"], images()[:8].sum(axis=(1, 2, 3)))


class HasALockTooLate(MultiProcessInputLayer):
    def setup(self, bottom: Any, top: Any) -> None:
        super().setup(bottom, top)
        self.guard = threading.Lock()

    def decode(self, sample: Sample, rng: np.random.Generator) -> object:
        assert not hasattr(self, "guard")
        return dict(sample)


def test_an_attribute_set_after_setup_stays_in_the_trainer(with_loader: dict[str, Any]) -> None:
    with LayerHarness(HasALockTooLate, with_loader) as harness:
        assert harness.forward()["label"][1] == 1


class ChoosesItsHooks(MultiProcessInputLayer):
    def setup(self, bottom: Any, top: Any) -> None:
        self.decode = self.plain if int(self.phase) else self.shifted  # type: ignore[method-assign]
        self.postprocess = negated  # type: ignore[method-assign]
        self.by = 10
        super().setup(bottom, top)

    def plain(self, sample: Sample, rng: np.random.Generator) -> object:
        return dict(sample)

    def shifted(self, sample: Sample, rng: np.random.Generator) -> object:
        return {"data": sample["data"], "label": sample["label"] + self.by}


def negated(batch: HookBatch) -> None:
    batch["label"] *= -1


@pytest.mark.parametrize(("phase", "labels"), [("TRAIN", [-10, -11, -12]), ("TEST", [0, -1, -2])])
def test_hooks_may_be_assigned_before_setup(train: dict[str, Any], phase: str, labels: list[int]) -> None:
    with LayerHarness(ChoosesItsHooks, train, phase=phase) as harness:
        assert harness.forward()["label"][:3].tolist() == labels


class ClosesItsOwn(MultiProcessInputLayer):
    closed = 0

    def setup(self, bottom: Any, top: Any) -> None:
        super().setup(bottom, top)
        self.own = [1]

    def close(self) -> None:
        self.closed += len(self.own)
        super().close()


def test_setup_closes_nothing_that_was_not_set_up(train: dict[str, Any]) -> None:
    with LayerHarness(ClosesItsOwn, train) as harness:
        harness.layer.setup(BlobVector(()), _two_tops())
        assert harness.layer.closed == 1


# ---- values


def test_a_float_beyond_float32_is_an_error_and_not_infinity(tmp_path: Path) -> None:
    data = np.ones((6, 2))
    data[3, 1] = 1e300
    write_hdf5(tmp_path / "x.h5", data=data, label=np.arange(6))
    values = {"source": {"hdf5": {"path": "x.h5"}}, "batch_size": 2, "num_loaders": 0}
    with LayerHarness(MultiProcessInputLayer, values, base_dir=tmp_path) as harness:
        np.testing.assert_array_equal(harness.forward()["label"], [0, 1])
        with pytest.raises(InexactValueError):
            harness.forward()
        np.testing.assert_array_equal(harness.forward()["label"], [4, 5])


def test_crops_are_drawn_in_train_and_centred_in_test(train: dict[str, Any]) -> None:
    values = {**train, "transform": {"crop_size": 2}, "batch_size": 20}
    with LayerHarness(MultiProcessInputLayer, values, phase="TEST") as harness:
        np.testing.assert_array_equal(harness.forward()["data"], images()[:, :, 1:3, 1:3])
    with LayerHarness(MultiProcessInputLayer, values) as harness:
        assert (harness.forward()["data"] != images()[:, :, 1:3, 1:3]).any()


# ---- what users of the layer object can do


def test_setup_may_be_called_again(with_loader: dict[str, Any]) -> None:
    with LayerHarness(MultiProcessInputLayer, with_loader) as harness:
        harness.forward()
        harness.layer.setup(BlobVector(()), _two_tops())
        harness.layer.reshape(BlobVector(()), _two_tops())
        assert harness.forward()["label"][0] == 0


def test_backward_has_nothing_to_do(train: dict[str, Any]) -> None:
    with LayerHarness(MultiProcessInputLayer, train) as harness:
        harness.forward()
        tops = _two_tops()
        harness.layer.reshape(BlobVector(()), tops)
        harness.layer.forward(BlobVector(()), tops)
        before = tops[0].data.copy()
        harness.layer.backward(tops, [], BlobVector(()))
        np.testing.assert_array_equal(tops[0].data, before)
