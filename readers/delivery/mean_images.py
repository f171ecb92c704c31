"""The means that `transform` names: numbers, or the mean of whole images in a file.

`mean_file` names a NumPy array, or the blob that Caffe's compute_image_mean writes.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...workers.api import channels_first_hint
from ...workers.base import ParameterError, read_whole
from ...workers.loading import Mean, MeanImage

_NPY = b"\x93NUMPY"

# As in Caffe's caffe.proto.
_BLOB = """
BlobShape: 1 dim int64*
BlobProto: 1 num int, 2 channels int, 3 height int, 4 width int, 5 data float*, 7 shape BlobShape, 8 double_data double*
"""
_LEGACY_SHAPE = ("num", "channels", "height", "width")


def load_mean_file(path: Path) -> Mean:
    """Return the mean of shape (channels, height, width) in `path`, by its content .npy or .binaryproto.

    One leading axis of extent 1 is dropped, as compute_image_mean writes one. Raises ParameterError naming the file
    if it cannot be read, is neither, or holds something else than one image.
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


def mean_of(
    values: tuple[float, ...], shape: tuple[int, ...], top: str, parameter: str = "mean_value", axis: int = 0
) -> Mean:
    """`mean_value`, or `scale`, for samples of `shape`: one number, or one for each entry of `axis`, 0 or -1."""
    entries = shape[axis] if shape else 1
    if len(values) not in (1, entries):
        of_last = "; for the last axis, such as the features of a window, say axis: last"
        hint = "" if axis else of_last if shape[-1:] == (len(values),) else channels_first_hint(shape)
        each = "channels" if axis == 0 else "entries of the last axis"
        raise ParameterError(
            f"parameter 'transform.{parameter}' has {len(values)} values, and the samples of top {top!r} have the "
            f"shape {shape}: expected one value, or one for each of the {entries} {each}{hint}"
        )
    others = [1] * (len(shape) - 1)
    return np.array(values, np.float32).reshape(([-1, *others] if axis == 0 else [*others, -1]) if shape else [])


def mean_image(whole: Mean, shape: tuple[int, ...], path: Path, top: str) -> MeanImage:
    """The mean in `path` for samples of `shape` (channels, height, width); raises ParameterError where it is less."""
    fits = len(shape) == 3 and len(whole) == shape[0] and whole.shape[1] >= shape[1] and whole.shape[2] >= shape[2]
    if not fits:
        raise ParameterError(
            f"parameter 'transform.mean_file' is {str(path)!r}, whose mean has the shape {whole.shape}, and the "
            f"samples of top {top!r} have {shape}: expected the same number of channels and at least the same height "
            "and width"
        )
    return MeanImage(whole, shape)
