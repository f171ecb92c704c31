"""The mean image that `mean_file` names: a NumPy array, or the blob that Caffe's compute_image_mean writes."""

from __future__ import annotations

import functools
import io
import math
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...workers.base.errors import ParameterError
from ...workers.base.whole_files import read_whole

_NPY = b"\x93NUMPY"

# Caffe's caffe.proto: name, number, repeated, packed. `shape` stands apart since its type is a message.
_BLOB_FIELDS = (
    ("num", 1, "int32", False),
    ("channels", 2, "int32", False),
    ("height", 3, "int32", False),
    ("width", 4, "int32", False),
    ("data", 5, "float", True),
    ("double_data", 8, "double", True),
)
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

    blob = _blob_class()()
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


@functools.cache
def _blob_class() -> Any:
    """Caffe's BlobProto as a class of the protobuf library, made here since no package carries Caffe's own."""
    from google.protobuf import descriptor_pb2

    from ...workers.base.protobuf import make_message_class

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="blobfeed/blob.proto", package="blobfeed.caffe", syntax="proto2")
    shape = file.message_type.add(name="BlobShape")
    shape.field.add(name="dim", number=1, label=field.LABEL_REPEATED, type=field.TYPE_INT64).options.packed = True
    blob = file.message_type.add(name="BlobProto")
    types = {"int32": field.TYPE_INT32, "float": field.TYPE_FLOAT, "double": field.TYPE_DOUBLE}
    for name, number, kind, repeated in _BLOB_FIELDS:
        label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
        blob.field.add(name=name, number=number, label=label, type=types[kind]).options.packed = repeated
    blob.field.add(
        name="shape",
        number=7,
        label=field.LABEL_OPTIONAL,
        type=field.TYPE_MESSAGE,
        type_name=".blobfeed.caffe.BlobShape",
    )
    return make_message_class(file, "BlobProto")
