"""Mean images, the blobs among them written byte by byte as Caffe's protobuf definition has them."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from blobfeed.readers.delivery.mean_image import load_mean_file
from blobfeed.workers.base.errors import ParameterError
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

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


@settings(max_examples=30)
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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "says shape .* but holds 0 numbers"),
        (b"no such thing", "is neither .npy nor a Caffe .binaryproto"),
        (legacy_shape(1, 2, 3, 4) + floats(MEAN)[:-3], "is neither .npy nor a Caffe .binaryproto"),
        (legacy_shape(1, 2, 3, 5) + floats(MEAN), r"says shape \(1, 2, 3, 5\) but holds 24 numbers"),
        (new_shape(2, 3, 4), r"says shape \(2, 3, 4\) but holds 0 numbers"),
        (new_shape(2, 12) + floats(MEAN), r"holds shape \(2, 12\): expected one image"),
        (new_shape(2, 1, 3, 4) + floats(MEAN), r"holds shape \(2, 1, 3, 4\): expected one image"),
        (npy(MEAN)[:-1], "is no readable .npy file"),
        (npy(MEAN[0]), r"holds shape \(3, 4\): .* one number for each channel goes into mean_value"),
        (npy(np.zeros((0, 3, 4))), r"holds shape \(0, 3, 4\)"),
        (npy(np.zeros((1, 2, 3), "c16")), "holds complex128: expected real numbers"),
        (npy(np.full((1, 2, 3), np.nan)), "holds nan: expected finite numbers"),
        (b"\x93NUMPY\x01\x00" + bytes(10), "is no readable .npy file"),
    ],
)
def test_what_is_no_mean_image_is_an_error_that_names_the_file(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "mean").write_bytes(content)
    with pytest.raises(ParameterError, match=message) as raised:
        load_mean_file(tmp_path / "mean")
    assert str(tmp_path / "mean") in str(raised.value)


def test_an_npy_of_objects_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "mean.npy", np.array([[[print]]], object), allow_pickle=True)
    with pytest.raises(ParameterError, match=r"is no readable \.npy file: Object arrays cannot be loaded"):
        load_mean_file(tmp_path / "mean.npy")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"mean_file .*none\.npy cannot be read: No such file"):
        load_mean_file(tmp_path / "none.npy")


def test_a_mean_file_that_is_a_fifo_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mean")
    with pytest.raises(ParameterError, match="not a regular file"):
        load_mean_file(tmp_path / "mean")
