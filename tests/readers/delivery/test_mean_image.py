"""The mean of whole images: what each row loses is what lies under its crop, drawn by a loader and mirrored with it."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.readers.delivery import load_mean_file, mean_image
from blobfeed.workers.api import AnyArray, Transform
from blobfeed.workers.loading import Conversion, CropMirror, MeanImage
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

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


# ---- their files, blobs among them that are written byte by byte as Caffe's protobuf definition has them


MEAN: NDArray[np.float32] = (np.arange(24) / 7).reshape(2, 3, 4).astype(np.float32)


def varint(number: int) -> bytes:
    """Seven bits a byte, lowest first; the eighth says that more follow (protobuf's encoding guide)."""
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def block(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def legacy_shape(*shape: int) -> bytes:
    return b"".join(number(field, extent) for field, extent in enumerate(shape, 1))


def new_shape(*shape: int) -> bytes:
    return block(7, block(1, b"".join(map(varint, shape))))


def floats(values: NDArray[np.float32]) -> bytes:
    return block(5, values.astype("<f4").tobytes())


def one_by_one(values: NDArray[np.float32]) -> bytes:
    return b"".join(varint(5 << 3 | 5) + struct.pack("<f", value) for value in values.ravel().tolist())


def doubles(values: NDArray[np.float32]) -> bytes:
    return block(8, values.astype("<f8").tobytes())


@pytest.mark.parametrize(
    "content",
    [
        legacy_shape(1, 2, 3, 4) + floats(MEAN),
        new_shape(2, 3, 4) + floats(MEAN),
        new_shape(1, 2, 3, 4) + one_by_one(MEAN),
        new_shape(2, 3, 4) + doubles(MEAN),
        floats(MEAN) + block(6, bytes(8)) + legacy_shape(1, 2, 3, 4),
    ],
    ids=["compute_image_mean", "shape", "unpacked", "double", "with diff"],
)
def test_a_blob_gives_its_image(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mean.binaryproto").write_bytes(content)
    mean = load_mean_file(tmp_path / "mean.binaryproto")
    assert mean.dtype == np.float32
    np.testing.assert_array_equal(mean, MEAN)


@examples(30)
@given(
    st.tuples(st.integers(1, 4), st.integers(1, 40), st.integers(1, 40)),
    st.sampled_from(["float32", "float64", "uint8", "int64", ">f4"]),
    st.booleans(),
)
def test_an_npy_gives_its_image_whatever_its_type_and_order(
    tmp_path_factory: pytest.TempPathFactory, shape: tuple[int, ...], dtype: str, fortran: bool
) -> None:
    array = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
    path = tmp_path_factory.getbasetemp() / "mean.npy"
    np.save(path, np.asfortranarray(array) if fortran else array)
    mean = load_mean_file(path)
    assert (mean.dtype.name, mean.flags.c_contiguous) == ("float32", True)
    np.testing.assert_array_equal(mean, array)


def test_the_content_tells_the_format_and_not_the_name(tmp_path: Path) -> None:
    (tmp_path / "mean.npy").write_bytes(new_shape(2, 3, 4) + floats(MEAN))
    np.testing.assert_array_equal(load_mean_file(tmp_path / "mean.npy"), MEAN)


def npy(array: NDArray[np.generic]) -> bytes:
    descr = f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': {array.shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(descr)) + descr + array.tobytes()
