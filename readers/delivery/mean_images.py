"""The mean of whole images, of which each row loses the part under its crop, mirrored where the row is: as in Caffe.

`mean_file` names it: a NumPy array, or the blob that Caffe's compute_image_mean writes. Only the loader that drew a
crop knows where it lies, so it leaves a note beside the rows (CROPS in transform.py). Were the mean subtracted in the
loader, slots would hold float32 for uint8, four times the memory and the copying.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...workers.api import AnyArray, IndexArray
from ...workers.base import ParameterError, read_whole

Mean = NDArray[np.float32]

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


class MeanImage:
    """`whole`: shape (channels, height, width). `shape`: of a sample, with at most that height and width.

    `both`: shape (2, channels, height, width), the mean and its mirror image, so that every part is read forwards.
    """

    def __init__(self, whole: Mean, shape: tuple[int, ...]) -> None:
        self.both: Mean = np.stack([whole, whole[:, :, ::-1]])
        self._height, self._width = shape[1:]
        self._spare_height, self._spare_width = (
            have - want for have, want in zip(whole.shape[1:], shape[1:], strict=True)
        )

    @property
    def centre(self) -> Mean:
        """The part under a centred crop, shape (channels, height, width)."""
        return np.ascontiguousarray(self.part((0, self._spare_height // 2, self._spare_width // 2)))

    def corners(self, notes: AnyArray) -> IndexArray:
        """Return the start of each row's part in `both`: image, top and left, shape (rows, 3).

        `notes`: shape (rows, 3), CropMirror.note of each row. The centres of image and mean lie upon each other; a part
        that would reach beyond a mean smaller than the image is moved back into it.
        """
        down, right, mirrored = notes.T.astype(np.int64)
        top = np.clip(self._spare_height // 2 + down, 0, self._spare_height)
        left = np.clip(self._spare_width // 2 + right, 0, self._spare_width)
        return np.stack([mirrored, top, np.where(mirrored, self._spare_width - left, left)], axis=1)

    def part(self, corner: tuple[int, int, int]) -> Mean:
        """A view, shape (channels, height, width)."""
        image, top, left = corner
        return self.both[image, :, top : top + self._height, left : left + self._width]


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
