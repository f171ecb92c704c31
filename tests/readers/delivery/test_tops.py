"""Shapes that change: which shape each top gets for a batch, and what it then holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from blobfeed.readers.delivery import LengthsTop, Top, UnevenTop, make_tops
from blobfeed.supplies import make_order
from blobfeed.workers.api import AnyArray, Parameters, Rows, check_parameters
from blobfeed.workers.plan import Batch
from blobfeed.workers.transport import Run
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import ArraySpec, InexactValueError, RaggedRows
from tests.support.part import examples

_ORDER = make_order(1000, shuffle=False, seed=0, chunk_samples=None, window_chunks=1)
_UP_TO = (3, 9, 9)


def _parameters(**values: object) -> Parameters:
    return check_parameters({"source": {"hdf5": {"path": "x"}}, "batch_size": 4, **values})


def _batch(samples: Sequence[AnyArray], largest: tuple[int, ...] = _UP_TO, position: int = 10) -> Batch:
    rows = RaggedRows.empty(ArraySpec(largest, samples[0].dtype, varies=True), len(samples))
    for row, sample in enumerate(samples):
        rows.put(row, sample)
    labels = np.arange(len(samples))
    return _made({"data": rows, "label": labels}, len(samples), position)


def _made(tops: dict[str, Rows], rows: int, position: int = 0) -> Batch:
    return Batch(0, 0, position, rows, tops, 0, [Run(0, rows, 0, position)], _ORDER)


def _tops(
    largest: tuple[int, ...] = _UP_TO, dtype: str = "uint8", folder: Path = Path(), **values: object
) -> list[Top]:
    specs = {"data": ArraySpec(largest, np.dtype(dtype), varies=True), "label": ArraySpec((), np.dtype("int64"))}
    return make_tops(specs, _parameters(**values), folder)


def _put(top: Top, batch: Batch) -> AnyArray:
    out = np.full(top.shape(batch), -1, np.float32)
    top.put(batch, out)
    return out


def _sample(*shape: int, dtype: str = "uint8") -> AnyArray:
    return (np.arange(np.prod(shape)) % 200 + 1).reshape(shape).astype(dtype)


def test_a_batch_whose_samples_have_one_shape_gets_that_shape() -> None:
    data, label = _tops()
    batch = _batch([_sample(3, 5, 4)] * 3)
    assert data.shape(batch) == (3, 3, 5, 4)
    np.testing.assert_array_equal(_put(data, batch), [_sample(3, 5, 4)] * 3)
    np.testing.assert_array_equal(_put(label, batch), [0, 1, 2])
    assert data.largest_shape(4) == (4, 3, 9, 9)


_EXTENTS = st.tuples(st.just(3), st.integers(1, 9), st.integers(1, 9))


@examples(60)
@given(st.lists(_EXTENTS, min_size=1, max_size=5), st.integers(1, 8), st.sampled_from([0.0, 7.0]))
def test_padding_brings_all_to_the_largest_rounded_up_and_the_lengths_say_what_is_real(
    extents: list[tuple[int, int, int]], multiple: int, value: float
) -> None:
    samples = [_sample(*shape) for shape in extents]
    batch = _batch(samples)
    data, _, lengths = _tops(pad={"value": value, "to_multiple_of": multiple})
    out, real = _put(data, batch), _put(lengths, batch)
    assert out.shape[:2] == (len(samples), 3)
    for axis in (1, 2):
        largest = max(shape[axis] for shape in extents)
        assert out.shape[axis + 1] % multiple == 0
        assert 0 <= out.shape[axis + 1] - largest < multiple
    for row, sample in enumerate(samples):
        np.testing.assert_array_equal(real[row], sample.shape[1:])
        height, width = sample.shape[1:]
        np.testing.assert_array_equal(out[row, :, :height, :width], sample)
        assert (out[row, :, height:, :] == value).all()
        assert (out[row, :, :, width:] == value).all()


@pytest.mark.parametrize(
    ("largest", "samples", "shape", "lengths"),
    [
        ((10,), [(4,), (7,)], (2, 8), [[4], [7]]),
        ((10, 6), [(4, 6), (7, 6)], (2, 8, 6), [[4], [7]]),
        ((3, 8, 8), [(3, 4, 5), (3, 2, 3)], (2, 3, 4, 8), [[4, 5], [2, 3]]),
    ],
)
def test_the_axes_that_vary_are_an_images_sides_and_a_sequences_length(
    largest: tuple[int, ...], samples: list[tuple[int, ...]], shape: tuple[int, ...], lengths: list[list[int]]
) -> None:
    batch = _batch([_sample(*extents) for extents in samples], largest)
    data, _, sizes = _tops(largest, pad={"to_multiple_of": 4})
    assert data.shape(batch) == shape
    np.testing.assert_array_equal(_put(sizes, batch), lengths)
    assert sizes.name == "data_lengths"
    assert sizes.largest_shape(5) == (5, len(lengths[0]))


def test_only_padded_tops_have_lengths() -> None:
    assert [type(top) for top in _tops(pad={})] == [UnevenTop, *[type(_tops()[1])], LengthsTop]
    assert len(_tops()) == 2


@pytest.mark.parametrize(
    ("stored", "value", "delivered"),
    [
        ("uint8", 0, "uint8"),
        ("uint8", 255, "uint8"),
        ("uint8", -1, "float32"),
        ("int8", 0.5, "float32"),
        ("int64", -1, "int64"),
        ("float64", 0.5, "float64"),
        ("float16", -1e9, "float32"),
        ("bool", 1, "bool"),
        ("bool", -1, "float32"),
    ],
)
def test_a_padded_top_has_a_type_that_holds_the_pad_value(stored: str, value: float, delivered: str) -> None:
    data = _tops(dtype=stored, pad={"value": value})[0]
    assert data.dtype == delivered
    batch = _batch([_sample(3, 1, 1, dtype=stored), _sample(3, 2, 2, dtype=stored)])
    out = np.zeros(data.shape(batch), data.dtype)
    data.put(batch, out)
    assert (out[0, :, 1, :] == value).all()


def test_tops_may_have_pad_values_of_their_own() -> None:
    specs = {name: ArraySpec((9,), np.dtype("int64"), varies=True) for name in ("ids", "target")}
    ids, target, *_ = make_tops(specs, _parameters(pad={"value": {"target": -100}}), Path())
    rows = RaggedRows.empty(specs["ids"], 2)
    rows.put(0, np.array([1]))
    rows.put(1, np.array([1, 1]))
    batch = _made({"ids": rows, "target": rows}, 2)
    assert _put(ids, batch).tolist() == [[1, 0], [1, 1]]
    assert _put(target, batch).tolist() == [[1, -100], [1, 1]]


def test_text_is_padded_with_none() -> None:
    data = _tops((3,), dtype="U4", pad={})[0]
    batch = _batch([np.array(["a"], "U4"), np.array(["b", "cd", "efgh"])], (3,))
    out = np.full((2, 3), "x", data.dtype)
    data.put(batch, out)
    assert out.tolist() == [["a", "", ""], ["b", "cd", "efgh"]]


def test_mean_and_scale_leave_the_padding_as_it_is() -> None:
    data = _tops(pad={"value": 9}, transform={"mean_value": [1, 2, 3], "scale": 2})[0]
    out = _put(data, _batch([_sample(3, 1, 1), _sample(3, 2, 2)]))
    np.testing.assert_array_equal(out[0, :, 0, 0], [0, 0, 0])
    assert (out[0, :, 1, :] == 9).all()
    assert data.dtype == np.float32


@pytest.mark.parametrize("value", [np.int64(2**24 + 1), np.float64(-1e300)])
def test_values_of_varying_samples_are_checked_too(value: np.generic) -> None:
    with pytest.raises(InexactValueError):
        _put(_tops(dtype=str(value.dtype))[0], _batch([np.full((3, 2, 2), value)]))
