"""Batches of a real pipeline on their way into NumPy blobs and torch tensors on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.layers.standin import Blob as NumpyBlob
from blobfeed.readers.delivery import Delivery, HostDelivery, make_delivery, make_tops
from blobfeed.readers.opening import open_pipeline
from blobfeed.workers.api import Hooks, check_parameters

from blobfeed import ParameterError
from tests.support.standin_files import images, narrowed, write_images

torch = pytest.importorskip("torch")


class _TorchBlob:
    def __init__(self, dtype: Any = torch.float32) -> None:
        self.dtype = dtype
        self.data = torch.zeros(0, dtype=dtype)

    def reshape(self, *shape: int) -> None:
        if tuple(self.data.shape) != shape:
            self.data = torch.zeros(shape, dtype=self.dtype)

    def adopt(self, tensor: Any) -> None:
        self.data = tensor


class _Feeding:
    """A pipeline over twenty images and what it is delivered into."""

    def __init__(self, folder: Path, hooks: Hooks | None = None, **values: object) -> None:
        kind = str(values.pop("dtype", "uint8"))
        write_images(folder / "train.h5", dtype=kind)
        parameters = check_parameters(
            {"source": {"hdf5": {"path": "train.h5"}}, "batch_size": 4, "num_loaders": 0, **values}
        )
        self.pipeline = open_pipeline(parameters, hooks or Hooks(), base_dir=folder)
        self.tops = make_tops(self.pipeline.specs, parameters, folder)
        self.delivery: Delivery | None = None

    def next(self, blobs: list[Any]) -> list[Any]:
        shapes = self.shapes(blobs)
        for blob, shape in zip(blobs, shapes, strict=True):
            blob.reshape(*shape)
        assert self.delivery is not None
        self.delivery.deliver(blobs)
        return [blob.data for blob in blobs]

    def shapes(self, blobs: list[Any]) -> list[tuple[int, ...]]:
        if self.delivery is None:
            for top, blob in zip(self.tops, blobs, strict=True):
                blob.reshape(*top.largest_shape(4))
            self.delivery = make_delivery(self.pipeline, self.tops, blobs)
        return self.delivery.next_shapes()

    def close(self) -> None:
        if self.delivery is not None:
            self.delivery.close()
        self.pipeline.close()


@pytest.fixture
def feeding(tmp_path: Path) -> Iterator[Any]:
    made: list[_Feeding] = []

    def make(hooks: Hooks | None = None, **values: object) -> _Feeding:
        made.append(_Feeding(tmp_path, hooks, **values))
        return made[-1]

    yield make
    while made:
        made.pop().close()


@pytest.mark.parametrize("blob", [NumpyBlob, _TorchBlob])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
def test_numpy_blobs_and_cpu_tensors_get_the_same_values(feeding: Any, blob: Any, dtype: str) -> None:
    feed = feeding(dtype=dtype, transform={"scale": 0.25, "mean_value": 3})
    blobs = [blob(), blob()]
    for start in (0, 4, 8):
        data, label = feed.next(blobs)
        np.testing.assert_array_equal(np.asarray(data), (images()[start : start + 4] - 3) / 4)
        np.testing.assert_array_equal(np.asarray(label), np.arange(start, start + 4))
    assert isinstance(feed.delivery, HostDelivery)


def test_delivering_leaves_torchs_threads_as_the_user_set_them(feeding: Any) -> None:
    before = torch.get_num_threads()
    feeding().next([_TorchBlob(), _TorchBlob()])
    assert torch.get_num_threads() == before


def test_a_tensor_of_its_own_type_keeps_integers_that_float32_cannot_hold(feeding: Any) -> None:
    big = 2**24 + 1
    hooks = Hooks(decode=lambda sample, rng: {"data": sample["data"], "label": np.add(sample["label"], big)})
    blobs = [_TorchBlob(), _TorchBlob(torch.int64)]
    _, label = feeding(hooks).next(blobs)
    assert label.tolist() == [big, big + 1, big + 2, big + 3]


def test_memory_that_is_delivered_into_stays_the_blobs_own(feeding: Any) -> None:
    feed, blobs = feeding(dtype="float32"), [_TorchBlob(), _TorchBlob()]
    first = feed.next(blobs)[0]
    kept = first.clone()
    address = first.data_ptr()
    second = feed.next(blobs)[0]
    assert second.data_ptr() == address
    assert (second != kept).any()


# ---- by view


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_a_view_is_the_slots_memory_until_the_next_batch(feeding: Any, dtype: str) -> None:
    feed, blobs = feeding(dtype=dtype, delivery="view"), [_TorchBlob(), _TorchBlob()]
    seen = []
    for start in (0, 4, 8, 12, 16, 0):
        data, label = feed.next(blobs)
        np.testing.assert_array_equal(data.numpy(), images()[start : start + 4])
        np.testing.assert_array_equal(label.numpy(), np.arange(start, start + 4))
        seen.append(data.data_ptr())
    assert isinstance(feed.delivery, HostDelivery)
    shown = feed.pipeline.peek().tops["data"]
    whole = shown.base
    first, last = whole.ctypes.data, whole.ctypes.data + whole.nbytes
    assert all(first <= address < last for address in seen)


def test_a_view_needs_torch_tensors_on_the_cpu(feeding: Any) -> None:
    with pytest.raises(ParameterError):
        feeding(delivery="view").next([NumpyBlob(), NumpyBlob()])


class _PlainBlob:
    def __init__(self) -> None:
        self.data = torch.zeros(0)

    def reshape(self, *shape: int) -> None:
        self.data = torch.zeros(shape)


def test_a_view_needs_blobs_that_can_be_shown_other_memory(feeding: Any) -> None:
    with pytest.raises(ParameterError, match="_PlainBlob"):
        feeding(dtype="float32", delivery="view").next([_PlainBlob(), _PlainBlob()])


def test_a_view_of_the_last_batch_is_given_back_at_close(feeding: Any) -> None:
    feed = feeding(dtype="float32", delivery="view", prefetch_batches=1)
    for _ in range(8):
        feed.next([_TorchBlob(), _TorchBlob()])
    feed.delivery.close()
    feed.delivery.close()
    assert feed.pipeline.take().rows == 4


# ---- shapes that change, through the whole pipeline


def test_without_pad_one_sample_a_batch_may_have_any_shape(feeding: Any) -> None:
    feed = feeding(Hooks(decode=narrowed), max_shapes={"data": [3, 4, 5]}, batch_size=1)
    blobs = [NumpyBlob(), NumpyBlob()]
    assert [feed.next(blobs)[0].shape for _ in range(4)] == [(1, 3, 4, 3), (1, 3, 4, 4), (1, 3, 4, 4), (1, 3, 4, 3)]
