"""The stand-in is as strict as Caffe was measured to be, and so are blobs over torch tensors in what both can do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from blobfeed.layers.standin import Blob, BlobVector, CaffeAbort, Extents, Layer
from hypothesis import given
from hypothesis import strategies as st

from tests.support.part import examples

_SHAPES = st.lists(st.integers(0, 5), max_size=5).map(tuple)


def _blob(*shape: int) -> Blob:
    blob = Blob()
    blob.reshape(*shape)
    return blob


def of_torch() -> Any:
    torch = pytest.importorskip("torch")
    from blobfeed.layers import torch_blob

    return torch_blob.Blob(torch.device("cpu"))


both = pytest.mark.parametrize("new", [Blob, of_torch])


@examples(40)
@given(_SHAPES)
def test_data_and_diff_are_fresh_float32_arrays_that_do_not_own_their_memory(shape: tuple[int, ...]) -> None:
    blob = _blob(*shape)
    for first, second in ((blob.data, blob.data), (blob.diff, blob.diff)):
        assert first is not second
        assert (first.shape, str(first.dtype)) == (shape, "float32")
        assert first.flags.c_contiguous
        assert first.flags.writeable
        assert not first.flags.owndata
        assert first.size == 0 or np.shares_memory(first, second)
    assert blob.count == math.prod(shape)
    assert list(blob.shape) == list(shape)


@both
@examples(40)
@given(shapes=st.lists(_SHAPES.filter(lambda shape: math.prod(shape) > 0), min_size=2, max_size=6))
def test_memory_stays_where_it_is_until_a_blob_grows_beyond_all_it_has_been(
    new: Any, shapes: list[tuple[int, ...]]
) -> None:
    blob, largest, address = new(), 0, 0
    for shape in shapes:
        blob.reshape(*shape)
        before, address = address, np.asarray(blob.data).ctypes.data
        assert (address == before) == (math.prod(shape) <= largest)
        if new is Blob:
            assert address % 16 == 0
            assert address % 32
        largest = max(largest, math.prod(shape))


def test_a_view_from_before_the_growth_is_spoilt() -> None:
    blob = _blob(2, 3)
    old = blob.data
    old[...] = 7
    blob.reshape(3, 3)
    assert blob.data.shape == (3, 3)
    assert np.isnan(old).all()


@both
def test_a_blob_of_no_axes_holds_one_number(new: Any) -> None:
    blob = new()
    blob.reshape()
    blob.data[...] = 3
    assert (blob.data.shape, blob.count, float(blob.data)) == ((), 1, 3.0)


@both
@pytest.mark.parametrize("shape", [((2, 3),), ([2, 3],), (2.0,), (np.int64(2),), ("2",)])
def test_reshape_takes_plain_integers_alone(new: Any, shape: tuple[object, ...]) -> None:
    with pytest.raises(TypeError):
        new().reshape(*shape)


@pytest.mark.parametrize("use", [lambda blob: blob.data, lambda blob: blob.diff, lambda blob: blob.reshape(-1, 3)])
def test_reading_before_the_first_reshape_and_a_negative_axis_abort_past_all_handlers(use: Any) -> None:
    with pytest.raises(CaffeAbort) as caught:
        use(Blob())
    assert not isinstance(caught.value, Exception)


def test_a_blob_has_nothing_but_what_caffe_gives_it() -> None:
    public = {name for name in dir(Blob()) if not name.startswith("_")}
    assert public == {"data", "diff", "shape", "count", "num", "channels", "height", "width", "reshape"}
    with pytest.raises(AttributeError):
        _blob(2).name = "data"  # type: ignore[attr-defined]


@both
def test_the_four_old_names_count_missing_axes_as_one_and_abort_beyond_four(new: Any) -> None:
    blob = new()
    blob.reshape(2, 3)
    assert (list(blob.shape), blob.count, blob.diff.shape) == ([2, 3], 6, (2, 3))
    assert (blob.num, blob.channels, blob.height, blob.width) == (2, 3, 1, 1)
    blob.reshape(1, 1, 1, 1, 1)
    with pytest.raises(BaseException, match="1, 1, 1, 1, 1") as caught:
        _ = blob.width
    assert type(caught.value).__name__ == ("CaffeAbort" if new is Blob else "BlobError")


@both
def test_data_cannot_be_replaced(new: Any) -> None:
    with pytest.raises(AttributeError):
        new().data = np.zeros(2)


def test_a_shape_is_no_tuple() -> None:
    shape = _blob(2, 3).shape
    assert (len(shape), shape[0], shape[-1], list(shape)) == (2, 2, 3, [2, 3])
    alike: object = (2, 3)
    assert shape != alike
    assert isinstance(shape, Extents)


def test_vectors_of_blobs_are_no_lists() -> None:
    blobs = [_blob(1), _blob(2)]
    vector = BlobVector(blobs)
    assert len(vector) == 2
    assert vector[0] is blobs[0]
    assert vector[-1] is blobs[1]
    assert not isinstance(vector, list)
    assert not hasattr(vector, "append")
    for index in (2, -3):
        with pytest.raises(IndexError):
            _ = vector[index]
    for odd in (slice(0, 1), np.int64(0)):
        with pytest.raises(TypeError):
            _ = vector[odd]  # type: ignore[index]


def test_a_layer_is_made_with_its_layer_parameter_and_has_no_name() -> None:
    layer = Layer(None)
    assert (layer.type, len(layer.blobs)) == ("Python", 0)
    assert not hasattr(layer, "name")
    with pytest.raises(TypeError):
        Layer()  # type: ignore[call-arg]
