"""The mean of whole images: what each row loses is what lies under its crop, drawn by a loader and mirrored with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.readers.delivery import mean_image
from blobfeed.workers.api import AnyArray, Transform
from blobfeed.workers.loading import Conversion, CropMirror, MeanImage
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import BatchReader, LayerHarness, MultiProcessInputLayer
from tests.support.part import examples
from tests.support.standin_files import write_hdf5

_EXTENTS = st.integers(6, 12)


def _mean(*shape: int) -> Any:
    return np.random.default_rng(1).integers(0, 200, shape).astype(np.float32)


@examples(200)
@given(
    size=st.integers(0, 6),
    mirror=st.booleans(),
    height=_EXTENTS,
    width=_EXTENTS,
    scale=st.sampled_from([1.0, 0.5]),
    seed=st.integers(0, 2**32),
)
def test_a_row_loses_the_pixels_of_the_mean_that_its_own_were_cut_from(
    size: int, mirror: bool, height: int, width: int, scale: float, seed: int
) -> None:
    whole = _mean(2, height, width)
    transform = CropMirror(Transform(crop_size=size, mirror=mirror, mean_file="mean.npy"), train=True)
    # What is cropped says where it was cropped: pixel by pixel its own place in the mean, plus seven.
    shape = transform.output_shape(whole.shape)
    rows: Any = np.zeros((2, *shape), np.float32)
    rng = np.random.default_rng(seed)
    crops = [transform.draw(whole.shape, rng) for _ in rows]
    for row, crop in enumerate(crops):
        transform.put(whole + 7, rows, row, crop)
    notes = np.array([transform.note(crop, whole.shape) for crop in crops], np.int32)
    image = MeanImage(whole, shape)
    out = np.full(rows.shape, np.nan, np.float32)
    Conversion(scale, image.centre, image).put(rows, out, image.corners(notes))
    assert (out == 7 * scale).all()


@examples(100)
@given(
    notes=st.lists(st.tuples(st.integers(-20, 20), st.integers(-20, 20), st.integers(0, 1)), min_size=1, max_size=5),
    height=_EXTENTS,
    width=_EXTENTS,
)
def test_no_part_reaches_beyond_the_mean(notes: list[tuple[int, int, int]], height: int, width: int) -> None:
    image = MeanImage(_mean(2, height, width), (2, 5, 6))
    for corner in image.corners(np.array(notes, np.int32)).tolist():
        assert image.part(corner).shape == (2, 5, 6)


def test_the_centre_is_what_a_centred_crop_loses() -> None:
    whole = _mean(2, 6, 7)
    image = mean_image(whole, (2, 4, 4), Path("m.npy"), "data")
    np.testing.assert_array_equal(image.centre, whole[:, 1:5, 1:5])
    np.testing.assert_array_equal(image.part(tuple(image.corners(np.zeros((1, 3), np.int32))[0])), image.centre)
    np.testing.assert_array_equal(mean_image(whole, (2, 6, 7), Path("m.npy"), "data").centre, whole)


# ---- with real loaders: each image is the mean plus its own label, so that the label is what is left everywhere


@pytest.fixture
def given_images(tmp_path: Path) -> dict[str, object]:
    whole = _mean(3, 9, 11)
    np.save(tmp_path / "mean.npy", whole)
    labels = np.arange(20)
    write_hdf5(tmp_path / "train.h5", data=(whole + labels[:, None, None, None]).astype(np.uint8), label=labels)
    return {
        "source": {"hdf5": {"path": str(tmp_path / "train.h5")}},
        "transform": {"crop_size": 5, "mirror": True, "mean_file": str(tmp_path / "mean.npy")},
        "batch_size": 4,
        "shuffle": True,
    }


def _is_its_label(data: AnyArray, labels: AnyArray) -> bool:
    return data.shape == (len(labels), 3, 5, 5) and bool((data == np.asarray(labels)[:, None, None, None]).all())


@pytest.mark.parametrize("cached", [False, True])
def test_a_reader_subtracts_what_lies_under_each_crop(
    given_images: dict[str, Any], cached: bool, tmp_path: Path
) -> None:
    if cached:
        given_images["cache"] = {"path": str(tmp_path / "cache"), "size_limit": 1 << 20}
    with BatchReader(given_images.pop("source"), num_loaders=2, epochs=3, train=True, **given_images) as reader:
        assert list(reader.specs) == ["data", "label"]
        seen = [batch["label"] for batch in reader if _is_its_label(batch["data"], batch["label"])]
    assert len(seen) == 15


class _Watched(MultiProcessInputLayer):
    def postprocess(self, batch: dict[str, AnyArray]) -> None:
        if list(batch) != ["data", "label"]:
            raise ValueError(f"a hook was shown {list(batch)}")


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_a_layer_subtracts_it_in_both_phases_and_shows_hooks_the_tops_alone(
    given_images: dict[str, Any], phase: str
) -> None:
    with LayerHarness(_Watched, {**given_images, "num_loaders": 0}, phase=phase) as harness:
        for _ in range(6):
            tops = harness.forward()
            assert _is_its_label(tops["data"], tops["label"])
