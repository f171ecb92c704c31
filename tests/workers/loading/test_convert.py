"""The extension's conversion gives what NumPy gives, to the bit, and touches no other memory."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from blobfeed.workers.api import AnyArray
from blobfeed.workers.loading import Conversion, MeanImage, conversion
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.support.part import examples

convert: Any = pytest.importorskip("blobfeed.workers.loading._convert", reason="no compiler was there").convert

pytestmark = pytest.mark.pure

_TYPES = st.sampled_from(["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4"])
_FACTORS = st.floats(-300, 300, width=32)


def _of_sample(shape: tuple[int, ...]) -> st.SearchStrategy[AnyArray]:
    """Return numbers for samples of `shape`, broadcast or strided."""
    kept = st.tuples(*(st.sampled_from([extent, 1]) for extent in shape)).flatmap(
        lambda some: st.integers(0, len(some)).map(lambda first: some[first:])
    )
    plain = kept.flatmap(lambda own: arrays.arrays(np.float32, own, elements=_FACTORS))
    return plain | arrays.arrays(np.float32, (*shape, 2), elements=_FACTORS).map(lambda both: both[..., 1])


@examples(300)
@given(st.data(), _TYPES, st.integers(1, 4), st.booleans())
def test_any_samples_at_any_place_become_what_numpy_makes_of_them(
    data: st.DataObject, dtype: str, rows: int, streams: bool
) -> None:
    shape = data.draw(st.lists(st.integers(0, 5), max_size=4).map(tuple) | st.tuples(st.integers(1000, 2200)))
    samples = data.draw(arrays.arrays(dtype, (rows, *shape)))
    mean, scale = data.draw(_of_sample(shape)), data.draw(_of_sample(shape))
    chosen = np.array(data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=5)))
    positions = np.array(data.draw(st.permutations(range(len(chosen) + 2))))[: len(chosen)]
    out = np.full((len(chosen) + 2, *shape), 42, np.float32)
    expected = out.copy()
    with np.errstate(all="ignore"):
        expected[positions] = (samples[chosen].astype(np.float32) - mean) * scale
    convert(samples, chosen * int(np.prod(shape, dtype=int)), positions, out, mean, scale, None, streams)
    assert out.tobytes() == expected.tobytes()


@examples(100)
@given(st.data(), st.integers(0, 200), st.booleans())
def test_bytes_come_as_they_are_to_any_place(data: st.DataObject, size: int, streams: bool) -> None:
    memory, out = np.arange(size + 251, dtype=np.uint8), np.zeros((4, size), np.uint8)
    begins = np.array(data.draw(st.lists(st.integers(0, 251), max_size=4)), np.int64)
    positions = np.array(data.draw(st.permutations(range(4))))[: len(begins)]
    expected = out.copy()
    for begin, position in zip(begins, positions, strict=True):
        expected[position] = memory[begin : begin + size]
    convert(memory, begins, positions, out, None, None, None, streams)
    assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("scale", [1.0, 1 / 255, np.array([[[0.1]], [[3.0]], [[1 / 255]]], np.float32)])
def test_each_row_loses_its_own_part_of_the_mean(monkeypatch: pytest.MonkeyPatch, dtype: str, scale: Any) -> None:
    image = MeanImage(np.linspace(0, 200, 3 * 6 * 9, dtype=np.float32).reshape(3, 6, 9), (3, 4, 5))
    rows = (np.arange(2 * 60) * 7 % 256).reshape(2, 3, 4, 5).astype(dtype)
    corners = np.array([[0, 2, 1], [1, 0, 4]])
    compiled, plain = np.full((2, *rows.shape), np.nan, np.float32)
    Conversion(scale, image.centre, image).put(rows, compiled, corners)
    monkeypatch.setattr(conversion, "convert", None)
    Conversion(scale, image.centre, image).put(rows, plain, corners)
    assert compiled.tobytes() == plain.tobytes()


_ROWS = np.arange(24, dtype=np.uint8)
_ONE = np.ones((), np.float32)
_IMAGES = np.ones((2, 1, 3, 4), np.float32)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"values": _ROWS.astype(">u2")}, ValueError),
        ({"values": _ROWS.astype("f8")}, ValueError),
        ({"values": None}, ValueError),
        ({"values": _ROWS[::2]}, ValueError),
        ({"values": np.zeros(49, np.uint8)[1:].view("u2")}, ValueError),
        ({"values": _ROWS[:-1]}, IndexError),
        ({"out": np.zeros((4, 1, 2, 3))}, ValueError),
        ({"out": np.zeros((4, 1, 2, 3), np.uint8)}, ValueError),
        ({"mean": None, "scale": None}, ValueError),
        ({"out": np.zeros((), np.float32)}, ValueError),
        ({"out": np.zeros((4, 1, 2, 6), np.float32)[..., ::2]}, ValueError),
        ({"mean": np.ones(2, np.float32)}, ValueError),
        ({"mean": np.ones((1, 3), np.float64)}, ValueError),
        ({"scale": np.ones((2, 2, 3), np.float32)}, ValueError),
        ({"scale": None}, ValueError),
        ({"begins": np.arange(3)}, ValueError),
        ({"begins": np.arange(4, dtype=np.int32)}, ValueError),
        ({"begins": np.array([0, 6, 12, 19])}, IndexError),
        ({"begins": np.array([0, 6, 12, -1])}, IndexError),
        ({"positions": np.array([0, 1, 2, 4])}, IndexError),
        ({"positions": np.array([0, 1, 2, -1])}, IndexError),
        ({"mean": _IMAGES, "corners": np.array([[0, 1, 1]] * 3 + [[2, 0, 0]])}, IndexError),
        ({"mean": _IMAGES, "corners": np.array([[0, 1, 1]] * 3 + [[0, 2, 0]])}, IndexError),
        ({"mean": _IMAGES, "corners": np.array([[0, 1, 1]] * 3 + [[0, 0, -1]])}, IndexError),
        ({"mean": _IMAGES, "corners": np.array([[0, 1, 1]] * 3)}, ValueError),
        ({"mean": _IMAGES[..., :2], "corners": np.zeros((4, 3), np.int64)}, ValueError),
        ({"mean": _IMAGES[0], "corners": np.zeros((4, 3), np.int64)}, ValueError),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], error: type[Exception]) -> None:
    good = {"values": _ROWS, "begins": None, "positions": None, "out": np.zeros((4, 1, 2, 3), np.float32)}
    with pytest.raises(error):
        convert(*{**good, "mean": _ONE, "scale": _ONE, "corners": None, **changed}.values(), False)


def test_other_threads_run_meanwhile() -> None:
    rows, done, turns = np.zeros(150_000, np.uint8), threading.Event(), 0
    begins, begun = np.zeros(5000, np.int64), threading.Event()

    def work() -> None:
        out = np.zeros((1, rows.size), np.float32)
        begun.set()
        convert(rows, begins, begins, out, _ONE, _ONE, None, False)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    while not done.is_set():
        turns += 1
    thread.join()
    assert turns > 1000
