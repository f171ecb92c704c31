"""Mean images, the blobs among them written byte by byte as Caffe's protobuf definition has them."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from blobfeed.readers.delivery import load_mean_file
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.part import examples

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
