"""From a raw sample to the tops' rows: what a decode hook may return, what is learnt from it, what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from blobfeed.workers.api import AnyArray, DecodeHook, Hooks, Parameters, Transform, allocate_rows, by_name
from blobfeed.workers.loading import CropMirror, RowMaker
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import ArraySpec, RaggedRows, Sample, SampleShapeError
from tests.support.part import examples

RAW = {"data": ArraySpec((3, 4, 6), np.dtype(np.uint8)), "label": ArraySpec((), np.dtype(np.int64))}
CROP = CropMirror(Transform(crop_size=2), train=False)


def sample(index: int = 0, epoch: int = 0) -> Sample:
    data = np.arange(72, dtype=np.uint8).reshape(3, 4, 6) + np.uint8(index)
    return Sample({"data": data, "label": np.array(index)}, index, epoch)


def maker(
    decode: DecodeHook | None = None,
    *,
    tops: tuple[str, ...] | None = None,
    transform: CropMirror | None = None,
    max_shapes: Mapping[str, tuple[int, ...]] | None = None,
    concatenate: tuple[str, ...] = (),
    seed: int = 0,
) -> RowMaker:
    shapes = dict(max_shapes or {})
    given = Parameters(batch_size=1, seed=seed, max_shapes=shapes, concatenate=concatenate, tops=tops)
    return RowMaker(Hooks(decode=decode), RAW, sample, given, transform)


def row_of(made: RowMaker, raw: Sample) -> dict[str, AnyArray]:
    """What `put` makes of one sample, in the middle one of three rows; the others must stay as they were."""
    out = allocate_rows(made.specs, 3)
    made.put(raw, out, 1)
    found = {}
    for name, rows in out.items():
        if isinstance(rows, RaggedRows):
            assert not rows.memory[0].any()
            assert not rows.memory[2].any()
            found[name] = rows.get(1)
        else:
            assert not any(rows[0].tobytes())
            assert not any(rows[2].tobytes())
            found[name] = rows[1]
    return found


# ---- what a hook may return


def test_one_array_is_enough_for_one_top() -> None:
    array = np.arange(4)
    assert by_name(array, ("only",), "decode returned")["only"] is array


@examples(60)
@given(names=st.lists(st.text(min_size=1), min_size=1, max_size=5, unique=True), data=st.data())
def test_arrays_go_through_as_they_are_in_the_tops_order(names: list[str], data: st.DataObject) -> None:
    arrays = {name: np.zeros(number + 1) for number, name in enumerate(names)}
    others = dict(reversed(arrays.items()))
    result: object = data.draw(st.sampled_from([arrays, others, tuple(arrays.values()), list(arrays.values())]))
    found = by_name(result, tuple(names), "it was")
    assert list(found) == names
    assert all(found[name] is arrays[name] for name in names)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (0.1, np.float32),
        (1e10, np.float32),
        (float("nan"), np.float32),
        (float("-inf"), np.float32),
        (7, np.int64),
        (True, np.bool_),
        (np.float64(0.5), np.float64),
        (np.uint8(7), np.uint8),
        (np.ones(2, np.float16), np.float16),
    ],
)
def test_a_python_float_becomes_the_type_of_blobs_and_others_keep_theirs(value: object, dtype: type) -> None:
    assert by_name(value, ("top",), "decode returned")["top"].dtype == dtype


def test_what_was_only_read_may_stay_beside_the_tops_and_nothing_else_may() -> None:
    def decode(raw: Sample, _: object) -> dict[str, Any]:
        return {**raw, "right": raw["data"][1]} | ({"late": 7} if raw.index else {})

    made = maker(decode, tops=("right",))
    np.testing.assert_array_equal(row_of(made, sample(0))["right"], sample(0)["data"][1])
    with pytest.raises(SampleShapeError, match="late"):
        row_of(made, sample(1))


# ---- what the tops are


def test_without_a_hook_the_tops_are_the_sources_arrays() -> None:
    assert maker().specs == RAW
    assert maker().changes_nothing


def test_tops_may_be_some_of_the_sources_arrays_in_another_order() -> None:
    assert list(maker(tops=("label", "data")).specs) == ["label", "data"]
    assert maker(tops=("label",)).specs == {"label": RAW["label"]}
    assert not maker(tops=("label",)).changes_nothing
    assert row_of(maker(tops=("label",)), sample(9)) == {"label": 9}


def test_specs_are_learnt_from_what_the_hook_makes() -> None:
    made = maker(lambda s, _: (np.divide(s["data"][:, ::2, ::2], np.float32(2)), 0.5), tops=("small", "weight"))
    assert made.specs == {
        "small": ArraySpec((3, 2, 3), np.dtype(np.float32)),
        "weight": ArraySpec((), np.dtype(np.float32)),
    }
    assert not made.changes_nothing


def test_the_hook_is_given_sample_and_generator() -> None:
    def decode(raw: Sample, rng: np.random.Generator) -> Mapping[str, Any]:
        assert list(raw) == ["data", "label"]
        return {"data": raw["data"], "label": (raw.index, raw.epoch, rng.integers(1 << 40))}

    first, again = (row_of(maker(decode, seed=3), sample(5, 2))["label"].tolist() for _ in range(2))
    assert first == again
    assert first[:2] == [5, 2]
    others = {row_of(maker(decode, seed=seed), sample(index, epoch))["label"].tolist()[2]
              for seed, index, epoch in [(3, 5, 2), (4, 5, 2), (3, 6, 2), (3, 5, 3)]}  # fmt: skip
    assert len(others) == 4


# ---- what is put into the rows


WORDS: Any = np.array([b"cat", b"leopard"], "S8")
"""Items of it have the types S3 and S7."""


@pytest.mark.parametrize("decode", [None, lambda sample, rng: {"name": sample["name"]}])
def test_words_of_any_length_fit_where_they_come_from(decode: DecodeHook | None) -> None:
    raw_specs = {"name": ArraySpec((), WORDS.dtype)}
    first = Sample({"name": WORDS[0]}, 0, 0)
    made = RowMaker(Hooks(decode=decode), raw_specs, lambda: first, Parameters(batch_size=1), None)
    assert made.specs == raw_specs
    for index, word in enumerate(WORDS):
        assert row_of(made, Sample({"name": word}, index, 0))["name"] == word
    with pytest.raises(SampleShapeError):
        row_of(made, Sample({"name": np.array(["crocodile"], "S9")[0]}, 2, 0))


# ---- shapes that vary


def test_a_top_may_vary_up_to_its_declared_maximum() -> None:
    made = maker(lambda s, _: (s["data"][:, : s.index], s["label"]), max_shapes={"data": (3, 4, 6)})
    assert made.specs["data"] == ArraySpec((3, 4, 6), np.dtype(np.uint8), varies=True)
    for rows in range(5):
        assert np.array_equal(row_of(made, sample(rows))["data"], sample(rows)["data"][:, :rows])


# ---- crop and mirror


def test_what_the_hook_made_is_cropped() -> None:
    made = maker(lambda s, _: (np.multiply(s["data"], np.float32(0.5)), s["label"]), transform=CROP)
    assert made.specs["data"] == ArraySpec((3, 2, 2), np.dtype(np.float32))
    assert np.array_equal(row_of(made, sample())["data"], np.multiply(sample()["data"][:, 1:3, 2:4], np.float32(0.5)))


def test_samples_of_several_shapes_are_cropped_to_one() -> None:
    made = maker(lambda s, _: (s["data"][:, : 4 - s.index], s["label"]), transform=CROP, max_shapes={"data": (3, 4, 6)})
    assert made.specs["data"] == ArraySpec((3, 2, 2), np.dtype(np.uint8))
    assert np.array_equal(row_of(made, sample(2))["data"], sample(2)["data"][:, :2, 2:4])


@pytest.mark.parametrize("options", [Transform(force_color=True, mirror=True), Transform(force_gray=True)])
@pytest.mark.parametrize("max_shapes", [{}, {"data": (3, 4, 6)}])
def test_a_later_image_of_two_channels_is_no_image_to_colour(
    options: Transform, max_shapes: dict[str, tuple[int, ...]]
) -> None:
    def decode(raw: Sample, _: object) -> object:
        return raw["data"][: 2 if raw.index else 3], raw["label"]

    made = maker(decode, transform=CropMirror(options, train=True), max_shapes=max_shapes)
    for index in range(1, 6):
        with pytest.raises(SampleShapeError):
            row_of(made, sample(index))
