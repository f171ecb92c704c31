"""Images and arrays on their way into a net, and Caffe's messages that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.nn import functional

from ...workers.base import ParameterError, need
from ..prototxt import blob_proto
from . import caffe_pb2

Floats = NDArray[np.float32]

_MODES = {0: "nearest", 1: "bilinear", 3: "bicubic"}


def load_image(filename: str | Path, color: bool = True) -> Floats:
    """Shape (height, width, 3), RGB, or (height, width, 1) for gray; between 0 and 1."""
    need("cv2", "reading images")
    import cv2

    flags = (cv2.IMREAD_COLOR if color else cv2.IMREAD_GRAYSCALE) | cv2.IMREAD_IGNORE_ORIENTATION
    content = np.frombuffer(Path(filename).read_bytes(), np.uint8)
    image = cv2.imdecode(content, flags) if content.size else None
    if image is None:
        raise ParameterError(f"{filename} is no image that OpenCV can read")
    pixels = image[:, :, ::-1] if color else image[:, :, np.newaxis]
    return np.ascontiguousarray(pixels, np.float32) / np.float32(255)


def resize_image(im: ArrayLike, new_dims: Sequence[int], interp_order: int = 1) -> Floats:
    """`im`: shape (height, width, channels), resized to the height and width `new_dims`.

    interp_order: 0 the nearest pixel, 1 linear, 3 cubic; an image that shrinks is not smoothed first.
    """
    if interp_order not in _MODES:
        raise ParameterError(f"interp_order must be one of {', '.join(map(str, _MODES))}, got {interp_order}")
    image = torch.from_numpy(np.array(im, np.float32)).permute(2, 0, 1)[np.newaxis]
    mode = _MODES[interp_order]
    aligned = {} if interp_order == 0 else {"align_corners": False}
    resized = functional.interpolate(image, tuple(new_dims[:2]), mode=mode, **aligned)
    return np.ascontiguousarray(resized[0].permute(1, 2, 0).numpy())


def oversample(images: Sequence[ArrayLike], crop_dims: Sequence[int]) -> Floats:
    """Ten crops of each image (height, width, channels): the corners and the center, then the same mirrored."""
    arrays = [np.asarray(image, np.float32) for image in images]
    rows, columns = crop_dims
    crops = []
    for image in arrays:
        down, right = image.shape[0] - rows, image.shape[1] - columns
        corners = [(0, 0), (0, right), (down, 0), (down, right), (down // 2, right // 2)]
        five = [image[top : top + rows, left : left + columns] for top, left in corners]
        crops += five + [crop[:, ::-1] for crop in five]
    return np.stack(crops)


class Transformer:
    """Turns images (height, width, channels) into the rows of a net's inputs, and back.

    `inputs`: the shape of each input blob, by name. Each step is done if it was set: resize, transpose, swap the
    channels, multiply by raw_scale, subtract the mean, multiply by input_scale. What was set is found by input in the
    attributes of these names, which scripts read.
    """

    def __init__(self, inputs: dict[str, Sequence[int]]) -> None:
        self.inputs = {name: tuple(shape) for name, shape in inputs.items()}
        self.transpose: dict[str, tuple[int, ...]] = {}
        self.channel_swap: dict[str, tuple[int, ...]] = {}
        self.raw_scale: dict[str, np.float32] = {}
        self.mean: dict[str, Floats] = {}
        self.input_scale: dict[str, np.float32] = {}

    def set_transpose(self, in_: str, order: Sequence[int]) -> None:
        """The order of the axes in the blob; (2, 0, 1) puts the channels first."""
        self.transpose[in_] = self._order("transpose", in_, order, len(self._shape(in_)) - 1)

    def set_channel_swap(self, in_: str, order: Sequence[int]) -> None:
        """The order of the channels in the blob; (2, 1, 0) makes BGR of RGB."""
        self.channel_swap[in_] = self._order("channel_swap", in_, order, self._shape(in_)[1])

    def _order(self, step: str, in_: str, order: Sequence[int], count: int) -> tuple[int, ...]:
        if sorted(order) != list(range(count)):
            raise ParameterError(f"{step} of {in_!r} needs 0 to {count - 1} in some order, got {tuple(order)}")
        return tuple(order)

    def set_raw_scale(self, in_: str, scale: float) -> None:
        """Set the factor of the image before the mean is subtracted; 255 for one from load_image."""
        self._shape(in_)
        self.raw_scale[in_] = np.float32(scale)

    def set_mean(self, in_: str, mean: ArrayLike) -> None:
        """Set the mean that is subtracted: a number for each channel, or an image (channels, height, width)."""
        shape, array = self._shape(in_)[1:], np.asarray(mean, np.float32)
        if array.ndim == 1:
            array = array[:, np.newaxis, np.newaxis]
        fits = array.shape in ((1, 1, 1), (shape[0], 1, 1)) or array.shape == shape[-array.ndim :]
        if not fits:
            raise ParameterError(f"the mean of {in_!r} has the shape {np.shape(mean)}, and the input {shape}")
        self.mean[in_] = array

    def set_input_scale(self, in_: str, scale: float) -> None:
        """Set the last factor of the image."""
        self._shape(in_)
        self.input_scale[in_] = np.float32(scale)

    def preprocess(self, in_: str, data: ArrayLike) -> Floats:
        """The row of blob `in_` for the image `data`."""
        size = self._shape(in_)[2:]
        row = np.array(data, np.float32)
        if row.shape[:2] != size:
            row = resize_image(row, size)
        if in_ in self.transpose:
            row = row.transpose(self.transpose[in_])
        if in_ in self.channel_swap:
            row = row[list(self.channel_swap[in_])]
        row = row * self.raw_scale.get(in_, np.float32(1)) - self.mean.get(in_, np.float32(0))
        return np.ascontiguousarray(row * self.input_scale.get(in_, np.float32(1)))

    def deprocess(self, in_: str, data: ArrayLike) -> Floats:
        """The image for a row of blob `in_`; it keeps the size that it has in the blob."""
        self._shape(in_)
        image = np.array(data, np.float32).squeeze() / self.input_scale.get(in_, np.float32(1))
        image = (image + self.mean.get(in_, np.float32(0))) / self.raw_scale.get(in_, np.float32(1))
        if in_ in self.channel_swap:
            image = image[np.argsort(self.channel_swap[in_])]
        if in_ in self.transpose:
            image = image.transpose(np.argsort(self.transpose[in_]))
        return np.ascontiguousarray(image)

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self.inputs:
            raise ParameterError(f"{name!r} is no input of this Transformer; it has {', '.join(self.inputs)}")
        return self.inputs[name]


def array_to_blobproto(arr: ArrayLike, diff: ArrayLike | None = None) -> Any:
    """A BlobProto with the array; its SerializeToString() is a .binaryproto file."""
    blob = caffe_pb2.BlobProto()
    arrays = [None if each is None else np.asarray(each, np.float32) for each in (arr, diff)]
    blob_proto.fill_blob(blob, *arrays)  # type: ignore[arg-type]
    return blob


def blobproto_to_array(blob: Any, return_diff: bool = False) -> Floats:
    """The data of a BlobProto, or its diff."""
    if not return_diff:
        return blob_proto.to_array(blob)
    gradient = caffe_pb2.BlobProto()
    gradient.CopyFrom(blob)
    gradient.data = blob.diff
    return blob_proto.to_array(gradient)


def array_to_datum(arr: ArrayLike, label: int | None = None) -> Any:
    """A Datum with an array (channels, height, width): bytes if it is uint8, else floats."""
    array = np.asarray(arr)
    if array.ndim != 3:
        raise ParameterError(f"a Datum holds an array (channels, height, width), got one of shape {array.shape}")
    datum: Any = caffe_pb2.Datum()
    datum.channels, datum.height, datum.width = array.shape
    if array.dtype == np.uint8:
        datum.data = array.tobytes()
    else:
        datum.float_data.extend(array.astype(float).ravel())
    if label is not None:
        datum.label = label
    return datum


def datum_to_array(datum: Any) -> NDArray[Any]:
    """The array (channels, height, width) in a Datum that is not encoded: uint8 or float32."""
    if datum.encoded:
        raise ParameterError("the Datum holds an encoded image; decode its `data`, for example by cv2.imdecode")
    found: NDArray[Any] = np.frombuffer(datum.data, np.uint8) if datum.data else np.array(datum.float_data, np.float32)
    return found.reshape(datum.channels, datum.height, datum.width)
