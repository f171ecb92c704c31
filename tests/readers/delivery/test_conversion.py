"""What becomes of values between a slot and a top."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from blobfeed.readers.delivery import check_range, check_whole_numbers, mean_of
from blobfeed.workers.api import AnyArray
from blobfeed.workers.loading import Conversion, Mean, conversion
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from blobfeed import InexactValueError
from tests.support.part import examples

_STORED = st.sampled_from(["uint8", "int8", "uint16", "int32", "float32", "float64", "bool"])
_SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.integers(1, 5))
_SCALES = st.sampled_from([1.0, 0.5, 1 / 255, -3.0])


@st.composite
def _rows(draw: st.DrawFn) -> AnyArray:
    dtype = np.dtype(draw(_STORED))
    elements = st.floats(-1000, 1000, width=32) if dtype.kind == "f" else None
    return draw(arrays.arrays(dtype, draw(_SHAPES), elements=elements))


@st.composite
def _means(draw: st.DrawFn, shape: tuple[int, ...]) -> Mean | None:
    mean_shape = draw(st.sampled_from([None, (1, 1, 1), (shape[0], 1, 1), (1, 1, shape[-1]), shape]))
    if mean_shape is None:
        return None
    mean: Mean = draw(arrays.arrays(np.float32, mean_shape, elements=st.floats(-255, 255, width=32)))
    return mean


@examples(100)
@given(st.data(), _rows(), _SCALES, st.integers(1, 40))
def test_values_are_what_the_same_arithmetic_gives_for_each_alone(
    data: st.DataObject, rows: AnyArray, scale: float, block: int
) -> None:
    mean = data.draw(_means(rows.shape[1:]))
    given: Any = scale
    if data.draw(st.booleans()):
        along = data.draw(st.sampled_from([(rows.shape[1], 1, 1), (1, 1, rows.shape[-1])]))
        given = data.draw(arrays.arrays(np.float32, along, elements=st.floats(-2, 2, width=32)))
    out = np.full(rows.shape, np.nan, np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion, "BLOCK_ITEMS", block)
        Conversion(given, mean).put(rows, out)
    expected = rows.astype(np.float32)
    if mean is not None:
        expected = expected - mean
    np.testing.assert_array_equal(out, expected * np.float32(given))


def test_rows_and_tops_need_not_be_contiguous_nor_in_the_machines_byte_order() -> None:
    rows = np.arange(2 * 3 * 4 * 6).reshape(2, 3, 4, 6).astype(">i2")[..., ::2]
    out = np.zeros((2, 3, 4, 5), np.float32)
    Conversion(0.5, np.ones((1, 1, 1), np.float32)).put(rows, out[..., 1:4])
    np.testing.assert_array_equal(out[..., 1:4], (rows.astype(np.float32) - 1) / 2)
    assert not out[..., 0].any()


def test_samples_without_axes_are_converted_too() -> None:
    out = np.zeros(3, np.float32)
    Conversion(2.0, mean_of((1.0,), (), "label")).put(np.array([1, 2, 3]), out)
    np.testing.assert_array_equal(out, [0, 2, 4])


def test_floats_are_not_squeezed_into_an_integer_top() -> None:
    with pytest.raises(TypeError):
        Conversion().put(np.ones((2, 2)), np.zeros((2, 2), np.int64))


@pytest.mark.parametrize(("values", "shape"), [((1.0,), (3, 2, 2)), ((1.0, 2.0, 3.0), (3, 2, 2)), ((5.0,), (7,))])
def test_a_mean_value_is_for_all_channels_or_for_one_each(values: tuple[float, ...], shape: tuple[int, ...]) -> None:
    mean = np.broadcast_to(mean_of(values, shape, "data"), shape)
    for channel in range(shape[0]):
        assert (mean[channel] == values[min(channel, len(values) - 1)]).all()
    last = np.broadcast_to(mean_of(values, shape[::-1], "data", axis=-1), shape[::-1])
    np.testing.assert_array_equal(last, mean.T)


_INTEGERS = st.sampled_from(["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])


@examples(100)
@given(st.data(), _INTEGERS, st.sampled_from(["float16", "float32", "float64"]))
def test_an_integer_is_refused_just_where_numbers_of_its_size_are_rounded(
    data: st.DataObject, stored: str, into: str
) -> None:
    limit = 2 ** (np.finfo(into).nmant + 1)
    info = np.iinfo(stored)
    near = st.sampled_from([limit - 1, limit, limit + 1, -limit, -limit - 1, 0, info.max, info.min])
    value = data.draw(near.filter(lambda value: info.min <= value <= info.max))
    rows = np.array([0, value], stored)
    if abs(value) <= limit:
        check_whole_numbers(rows, np.dtype(into), "label")
        assert int(rows.astype(into)[1]) == value
    else:
        with pytest.raises(InexactValueError, match=f"'label'.* {value}\\b"):
            check_whole_numbers(rows, np.dtype(into), "label")


@pytest.mark.parametrize(("stored", "into"), [("float64", "float32"), ("int64", "int32"), ("bool", "float16")])
def test_other_types_are_not_looked_at(stored: str, into: str) -> None:
    check_whole_numbers(np.full(3, 2**30).astype(stored), np.dtype(into), "data")
    check_whole_numbers(np.empty(0, np.int64), np.dtype("float32"), "data")


@pytest.mark.parametrize(("stored", "into"), [("int64", "int32"), ("int32", "int8"), ("uint8", "int8")])
def test_an_integer_that_a_smaller_integer_type_cannot_hold_is_refused(stored: str, into: str) -> None:
    highest = np.iinfo(into).max
    check_whole_numbers(np.array([0, highest], stored), np.dtype(into), "label")
    with pytest.raises(InexactValueError, match=f"'label'.* {highest + 1}\\b"):
        check_whole_numbers(np.array([0, highest + 1], stored), np.dtype(into), "label")


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize(("stored", "into"), [("float64", "float32"), ("float32", "float16")])
def test_a_float_that_would_get_infinite_raises_and_infinity_itself_passes(
    stored: str, into: str, scale: float
) -> None:
    good = np.array([[np.inf, -np.inf, np.nan, 1.0]], stored)
    out = np.zeros(good.shape, into)
    Conversion(scale).put(good, out)
    np.testing.assert_array_equal(out, good * np.array(scale, stored))
    check_range(good, np.dtype(into), Conversion(scale), "data")
    bad = np.array([[np.inf, 1.0, -1e38, 2.0]], stored) * (1e200 if stored == "float64" else 1)
    with pytest.raises(FloatingPointError):
        Conversion(scale).put(bad, np.zeros(bad.shape, into))
    with pytest.raises(InexactValueError, match=r"'data'.* -1e\+"):
        check_range(bad, np.dtype(into), Conversion(scale), "data")


def test_a_result_for_float16_is_rounded_once_at_the_end() -> None:
    rows = np.array([[2051.0, 4099.0]], np.float32)
    out = np.zeros(rows.shape, np.float16)
    Conversion(0.5, np.ones(2, np.float32)).put(rows, out)
    np.testing.assert_array_equal(out, [[1025.0, 2048.0]])
