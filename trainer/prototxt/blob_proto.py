"""Arrays in Caffe's own message for them, BlobProto. Needs no torch."""

from __future__ import annotations

import math

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from .schema import BlobProto, message_class


def read_blob(content: bytes) -> NDArray[np.float32]:
    """The array in a .binaryproto file's `content`; raises ValueError if it is none."""
    try:
        message: BlobProto = message_class(BlobProto).FromString(content)
    except DecodeError as error:
        raise ValueError(f"it is no BlobProto: {error}") from error
    return to_array(message)


def to_array(blob: BlobProto) -> NDArray[np.float32]:
    """A copy of the data of `blob`, in its shape; files of before 2015 give four extents. Raises ValueError."""
    data = np.frombuffer(blob.double_data, "<f8") if blob.double_data else np.frombuffer(blob.data, "<f4")
    shape = tuple(blob.shape.dim)
    if not blob.HasField("shape"):
        shape = (blob.num, blob.channels, blob.height, blob.width)
    if math.prod(shape) != data.size:
        raise ValueError(f"a blob of shape {shape} holds {data.size} numbers")
    return data.astype(np.float32).reshape(shape)


def fill_blob(blob: BlobProto, data: NDArray[np.float32], diff: NDArray[np.float32] | None = None) -> None:
    """Write `data`, and its gradient if there is one, into the empty message `blob`."""
    blob.shape.dim.extend(data.shape)
    blob.data = data.astype("<f4").tobytes()
    if diff is not None:
        blob.diff = diff.astype("<f4").tobytes()
