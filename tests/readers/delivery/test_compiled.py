"""The compiled loops give what NumPy gives, to the bit. Where Numba is missing they are run as they stand."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from blobfeed.readers.delivery import Conversion, Mean, MeanImage, convert_compiled
from blobfeed.readers.delivery import compiled as delivery_compiled
from blobfeed.workers.api import AnyArray, IndexArray

_MEANS = [None, (1, 1, 1), (3, 1, 1), (1, 1, 5), (3, 4, 5)]


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_compiled, "FEWEST_ITEMS", 0)
    monkeypatch.setattr(delivery_compiled, "_WORTH_COMPILING", -1)
    if importlib.util.find_spec("numba") is None:
        monkeypatch.setattr(delivery_compiled, "_compiled", lambda loop: loop)


def _rows(dtype: str) -> AnyArray:
    return (np.arange(2 * 60) * 7 % 256).reshape(2, 3, 4, 5).astype(dtype)


def _mean(shape: tuple[int, ...] | None) -> Mean | None:
    return None if shape is None else np.linspace(0, 200, int(np.prod(shape)), dtype=np.float32).reshape(shape)


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32"])
@pytest.mark.parametrize("shape", _MEANS)
@pytest.mark.parametrize("scale", [1.0, 0.1, 1 / 255, [[[0.1]], [[3.0]], [[1 / 255]]], [[[0.1, 3, 2, 1, 7]]]])
def test_compiled_and_numpy_agree_to_the_bit(
    monkeypatch: pytest.MonkeyPatch, dtype: str, shape: tuple[int, ...] | None, scale: Any
) -> None:
    rows, mean = _rows(dtype), _mean(shape)
    scale = np.array(scale, np.float32) if isinstance(scale, list) else scale
    compiled, plain = np.full((2, 2, 3, 4, 5), np.nan, np.float32)
    done = convert_compiled(rows, compiled, np.zeros((), np.float32) if mean is None else mean, scale)
    assert done or (shape == (3, 4, 5) and np.size(scale) == 3) or 5 in (np.size(scale), np.prod(shape or 1))
    if not done:
        return
    monkeypatch.setattr(delivery_compiled, "FEWEST_ITEMS", 1 << 30)
    Conversion(scale, mean).put(rows, plain)
    assert compiled.tobytes() == plain.tobytes()


@pytest.mark.usefixtures("loops")
def test_samples_of_one_number_are_compiled_too() -> None:
    out = np.full(6, np.nan, np.float32)
    assert convert_compiled(np.arange(6, dtype=np.int16), out, np.array(1, np.float32), 0.5)
    assert out.tolist() == [-0.5, 0, 0.5, 1, 1.5, 2]


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("scale", [1.0, 1 / 255, np.array([[[0.1]], [[3.0]], [[1 / 255]]], np.float32)])
def test_compiled_and_numpy_agree_where_each_row_has_its_own_part_of_the_mean(
    monkeypatch: pytest.MonkeyPatch, dtype: str, scale: Any
) -> None:
    whole = np.linspace(0, 200, 3 * 6 * 9, dtype=np.float32).reshape(3, 6, 9)
    image = MeanImage(whole, (3, 4, 5))
    conversion = Conversion(scale, image.centre, image)
    corners = np.array([[0, 2, 1], [1, 0, 4]])
    compiled, plain = np.full((2, 2, 3, 4, 5), np.nan, np.float32)
    conversion.put(_rows(dtype), compiled, corners)
    monkeypatch.setattr(delivery_compiled, "FEWEST_ITEMS", 1 << 30)
    conversion.put(_rows(dtype), plain, corners)
    assert compiled.tobytes() == plain.tobytes()


@pytest.mark.usefixtures("loops")
def test_a_conversion_takes_the_compiled_way_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(
        values: AnyArray, begins: IndexArray, positions: IndexArray, out: AnyArray, mean: Mean, scale: Mean
    ) -> None:
        out[...] = 42

    monkeypatch.setattr(delivery_compiled, "_compiled", lambda _: told)
    out = np.zeros((2, 3, 4, 5), np.float32)
    Conversion(0.5).put(_rows("uint8"), out)
    assert (out == 42).all()


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64", "uint64"])
def test_a_compiled_cast_rounds_as_numpy_does(dtype: str) -> None:
    info = np.iinfo(dtype)
    rows = np.array([info.min, info.max, 0, 1, 7, info.max // 3], dtype)
    out = np.full(6, np.nan, np.float32)
    assert convert_compiled(rows, out, np.zeros((), np.float32), 1.0)
    assert out.tobytes() == rows.astype(np.float32).tobytes()


def test_numba_is_loaded_only_where_much_is_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[bool] = []
    monkeypatch.setattr(delivery_compiled, "_compiled", lambda _: loaded.append(True))
    monkeypatch.setattr(delivery_compiled, "_items", 0)
    monkeypatch.setattr(delivery_compiled, "_WORTH_COMPILING", 3 << 20)
    for items, enough in ((1 << 12, False), (1 << 20, True)):  # never for small batches
        out = np.zeros(items, np.float32)
        for converted in range(5):
            assert bool(loaded) == (enough and converted > 3)
            Conversion().put(np.zeros(items, np.uint8), out)


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize(
    ("rows", "out"),
    [
        (_rows("uint8")[..., ::2], np.zeros((2, 3, 4, 3), np.float32)),
        (_rows(">i4"), np.zeros((2, 3, 4, 5), np.float32)),
        (_rows("bool"), np.zeros((2, 3, 4, 5), np.float32)),
        (_rows("float16"), np.zeros((2, 3, 4, 5), np.float32)),
        (_rows("float64"), np.zeros((2, 3, 4, 5), np.float32)),  # NumPy notices what is beyond float32
        (_rows("uint8"), np.zeros((2, 3, 4, 5), np.float64)),
        (_rows("uint8"), np.zeros((2, 3, 4, 9), np.float32)[..., :5]),
    ],
)
def test_what_is_no_plain_memory_is_left_to_numpy(rows: AnyArray, out: AnyArray) -> None:
    assert not convert_compiled(rows, out, np.zeros((), np.float32), 2.0)
    Conversion(2.0).put(rows, out)
    np.testing.assert_array_equal(out, rows.astype(np.float64) * 2)


def test_small_batches_are_left_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(delivery_compiled, "convert_compiled")
    out = np.zeros((2, 3, 4, 5), np.float32)
    Conversion(2.0).put(_rows("uint8"), out)
    np.testing.assert_array_equal(out, _rows("uint8").astype(np.float32) * 2)


def test_without_numba_numpy_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_compiled, "FEWEST_ITEMS", 0)
    monkeypatch.setattr(delivery_compiled, "_compiled", lambda _: None)
    out = np.zeros((2, 3, 4, 5), np.float32)
    Conversion(0.5).put(_rows("uint8"), out)
    np.testing.assert_array_equal(out, _rows("uint8").astype(np.float32) / 2)
