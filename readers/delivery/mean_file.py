"""The mean image that `mean_file` names: a NumPy array, or the blob that Caffe's compute_image_mean writes."""

from __future__ import annotations

import io
import math
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...workers.base.errors import ParameterError
from ...workers.base.files import read_whole

_NPY = b"\x93NUMPY"

# As in Caffe's caffe.proto.
_BLOB = """
BlobShape: 1 dim int64*
BlobProto: 1 num int, 2 channels int, 3 height int, 4 width int, 5 data float*, 7 shape BlobShape, 8 double_data double*
"""
_LEGACY_SHAPE = ("num", "channels", "height", "width")


def load_mean_file(path: Path) -> NDArray[np.float32]:
    """The mean of shape (channels, height, width) in `path`, told by its content to be .npy or .binaryproto.

    One leading axis of extent 1 is dropped, as compute_image_mean writes one. Raises ParameterError naming the file
    where it cannot be read, is neither, or holds something else than one image.
    """
    try:
        content = read_whole(path)
    except OSError as error:
        raise ParameterError(f"mean_file {path} cannot be read: {error.strerror}; check its path") from error
    array = _from_npy(content, path) if content.startswith(_NPY) else _from_blob(content, path)
    if array.ndim == 4 and len(array) == 1:
        array = array[0]
    if array.ndim != 3 or not array.size:
        raise ParameterError(
            f"mean_file {path} holds shape {array.shape}: expected one image, (channels, height, width); "
            "one number for each channel goes into mean_value"
        )
    mean = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(mean).all():
        raise ParameterError(f"mean_file {path} holds {mean[~np.isfinite(mean)][0]}: expected finite numbers")
    return mean


def _from_npy(content: bytes, path: Path) -> NDArray[Any]:
    try:
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError, TokenError) as error:
        raise ParameterError(f"mean_file {path} is no readable .npy file: {error}") from None
    if array.dtype.kind not in "fiub":
        raise ParameterError(f"mean_file {path} holds {array.dtype}: expected real numbers")
    return np.asarray(array)


def _from_blob(content: bytes, path: Path) -> NDArray[Any]:
    from google.protobuf.message import DecodeError

    from ...workers.base.protobuf import message_classes

    blob = message_classes(_BLOB, {})["BlobProto"]()
    try:
        blob.ParseFromString(content)
    except DecodeError as error:
        raise ParameterError(f"mean_file {path} is neither .npy nor a Caffe .binaryproto blob: {error}") from None
    data = np.array(blob.data or blob.double_data, np.float64 if blob.double_data else np.float32)
    shape = tuple(blob.shape.dim) if blob.HasField("shape") else tuple(getattr(blob, name) for name in _LEGACY_SHAPE)
    if not data.size or any(extent < 0 for extent in shape) or math.prod(shape) != data.size:
        raise ParameterError(
            f"mean_file {path}: its blob says shape {shape} but holds {data.size} numbers; is it a mean image that "
            "compute_image_mean wrote, and complete?"
        )
    return data.reshape(shape)
