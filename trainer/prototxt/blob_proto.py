"""Arrays in Caffe's own message for them, BlobProto. Needs no torch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .descriptors import message_class
from .schema import BlobProto


def read_blob(content: bytes) -> NDArray[np.float32]:
    """The array in a .binaryproto file's `content`; raises ValueError if it is none."""
    message: BlobProto = message_class(BlobProto).FromString(content)
    return to_array(message)


def to_array(blob: BlobProto) -> NDArray[np.float32]:
    """The data of `blob`, in its shape; files of before 2015 give four extents."""
    data = np.array(blob.double_data or blob.data, np.float32)
    shape = tuple(blob.shape.dim)
    if not blob.HasField("shape"):
        shape = (blob.num, blob.channels, blob.height, blob.width)
    if math.prod(shape) != data.size:
        raise ValueError(f"a blob of shape {shape} holds {data.size} numbers")
    return data.reshape(shape)


def from_array(array: NDArray[np.float32]) -> Any:
    blob = message_class(BlobProto)()
    blob.shape.dim.extend(array.shape)
    blob.data.extend(array.ravel())
    return blob
