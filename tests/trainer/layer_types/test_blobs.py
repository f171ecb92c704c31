"""Blobs over torch tensors; what they share with the stand-in's is held in tests/layers/test_standin.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from blobfeed.layers.torch_blob import Blob, BlobTensor
from blobfeed.trainer.layer_types import ArrayBlob
from numpy.typing import NDArray

CPU = torch.device("cpu")


def shaped(*shape: int) -> Blob:
    blob = Blob(CPU)
    blob.reshape(*shape)
    return blob


def test_data_is_a_float32_tensor_of_the_blobs_shape() -> None:
    blob = shaped(2, 3)
    assert isinstance(blob.data, torch.Tensor)
    assert (blob.data.dtype, blob.data.shape, blob.data.is_contiguous()) == (torch.float32, (2, 3), True)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64, np.int64, bool])
def test_numpy_arrays_of_any_type_can_be_assigned(dtype: type) -> None:
    blob = shaped(2, 3)
    array: NDArray[Any] = np.arange(6).reshape(2, 3).astype(dtype)
    blob.data[...] = array
    assert np.array_equal(np.asarray(blob.data), array.astype(np.float32))
    blob.data[1, ::2] = np.float64(7.5)
    assert blob.data[1].tolist() == [7.5, float(array[1, 1]), 7.5]


def test_read_only_arrays_and_tensors_can_be_assigned() -> None:
    blob = shaped(2)
    array = np.ones(2)
    array.flags.writeable = False
    blob.data[...] = array
    blob.data[0] = torch.tensor(4.0)
    assert blob.data.tolist() == [4.0, 1.0]


def test_operations_of_torch_give_plain_tensors() -> None:
    assert type(shaped(2).data + 1) is torch.Tensor


def test_numpy_computes_with_data_and_gives_arrays() -> None:
    blob, array = shaped(2), np.array([1, 2], np.float32)
    blob.data[...] = [3, -4]
    for result in (array - blob.data, -(blob.data - array), -np.subtract(blob.data, array)):
        assert isinstance(result, np.ndarray)
        assert result.tolist() == [-2, 6]
    assert np.array(blob.data, np.float64, copy=True).tolist() == [3, -4]
    assert np.zeros_like(blob.data).dtype == np.float32
    assert np.asarray(blob.data).ctypes.data == blob.data.data_ptr()


def test_a_part_of_the_data_works_with_numpy_as_the_whole_does() -> None:
    blob = shaped(2, 2)
    blob.data[1][...] = np.array([3, -4])
    assert blob.data.tolist() == [[0.0, 0.0], [3.0, -4.0]]
    assert (np.ones(2) - blob.data[1]).tolist() == [-2, 5]
    # A part that has an __array__ of its own can be read on CUDA too.
    assert {type(blob.data[key]) for key in (1, (1, 0), [0], blob.data > 0)} == {BlobTensor}
    assert f"{blob.data[1, 0]:.2f}" == "3.00"


def test_an_adopted_tensor_is_shown_until_the_blob_is_owned_again() -> None:
    blob = shaped(2)
    blob.data[...] = 1
    blob.adopt(torch.full((3, 1), 2.0))
    assert (blob.shape, blob.data.tolist()) == ((3, 1), [[2.0]] * 3)
    blob.reshape(2)
    assert blob.data.tolist() == [1.0, 1.0]


@pytest.mark.usefixtures("arrays_are_copies")
def test_what_was_written_to_an_array_stays_though_the_blob_gets_the_shape_that_it_has() -> None:
    blob = shaped(2)
    shown = ArrayBlob(blob)
    shown.data[...] = [3, 4]
    shown.reshape(2)
    assert blob.data.tolist() == [3.0, 4.0]


@pytest.mark.usefixtures("arrays_are_copies")
def test_an_array_that_was_only_read_does_not_undo_what_another_one_has_written() -> None:
    blob = shaped(2)
    blob.data[1] = np.nan
    shown = ArrayBlob(blob)
    assert np.isnan(shown.data[1])
    blob.data[...] = 5
    shown.upload()
    assert blob.data.tolist() == [5.0, 5.0]
