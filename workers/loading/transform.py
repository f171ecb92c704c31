"""The loaders' part of Caffe's transform_param: colour or gray, crop, mirror. Delivery applies scale and mean."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..api import AnyArray, ArraySpec, RaggedRows, RandomResizedCrop, Rows, Transform, channels_first_hint
from ..base import ParameterError, SampleShapeError
from .resized_crop import RESIZABLE, central_part, random_part, resized, sufficient_size

CROPS = "(crops)"
"""The name of a slot's array with a note of each row's crop, besides the tops: CropMirror.note, of NOTE_SPEC."""

NOTE_SPEC = ArraySpec((3,), np.dtype(np.int32))

_GRAY_WEIGHTS = (0.114, 0.587, 0.299)  # blue, green, red: ITU-R BT.601, as Caffe's OpenCV has them
_GRAY_WEIGHTS_UINT8 = (3735, 19235, 9798)  # the same times 2**15, as OpenCV rounds them for uint8
_GRAY_BITS = 15
_HALF = np.uint32(1 << (_GRAY_BITS - 1))

_TAKEN_BY_OPENCV = frozenset(map(np.dtype, ("uint8", "uint16", "float32")))


class Crop(msgspec.Struct, frozen=True):
    """The crop of an image, in pixels, and whether it is mirrored from left to right.

    `size`: its height and width, if it is resized to those of the top.
    """

    top: int
    left: int
    mirrored: bool
    size: tuple[int, int] | None = None


class CropMirror:
    """Transforms an image of shape (channels, height, width) into a row of the top, in one copy.

    With `train` the crop's position and the mirroring are random; otherwise the crop is centred and not mirrored.
    force_gray expects the channels of a colour image in Caffe's order, blue first.
    """

    def __init__(self, options: Transform, *, train: bool) -> None:
        self._resized = options.random_resized_crop
        size = self._resized.size if self._resized else options.crop_size
        self._height, self._width = (size, size) if isinstance(size, int) else size
        self._train = train
        self._mirror = options.mirror and train
        self._channels = 3 if options.force_color else 1 if options.force_gray else 0
        self.is_noted = train and bool(options.mean_file) and (bool(options.crop_size) or options.mirror)
        """True if delivery needs each row's crop, to subtract the part of the mean image that lies under it."""

    @property
    def active(self) -> bool:
        """True if images are transformed at all; otherwise they can be read directly into the slot."""
        return bool(self._height or self._mirror or self._channels)

    def output_spec(self, spec: ArraySpec) -> ArraySpec:
        """Return the spec of transformed images; raises ParameterError if images of `spec` cannot be transformed."""
        hint = channels_first_hint(spec.shape)
        if hint or len(spec.shape) != 3:
            raise ParameterError(
                f"transform: crop_size, mirror, force_color and force_gray need images of shape (channels, height, "
                f"width), but the top holds {spec}{hint}"
            )
        channels, height, width = spec.shape
        if not self.takes(channels):
            name = "force_color" if self._channels == 3 else "force_gray"
            raise ParameterError(f"transform: {name} needs images of 1 or 3 channels, but the top holds {spec}")
        if self._resized:
            if spec.dtype not in RESIZABLE:
                raise ParameterError(
                    f"transform: random_resized_crop needs images of {', '.join(sorted(map(str, RESIZABLE)))}, but the "
                    f"top holds {spec}"
                )
        elif self._height > height or self._width > width:
            raise ParameterError(
                f"transform: crop_size is {self._crop_in_words()}: expected at most the size of the image, {spec}; "
                f"or give the source shorter_side: {max(self._height, self._width)}, which resizes pictures"
            )
        return replace(spec, shape=self.output_shape(spec.shape), varies=spec.varies and not self._height)

    def takes(self, channels: int) -> bool:
        """Return true if images with `channels` channels can be converted to colour or gray, if that is requested."""
        return not self._channels or channels in (1, 3)

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a transformed image of `shape`."""
        channels, height, width = shape
        return self._channels or channels, self._height or height, self._width or width

    def draw(self, shape: Sequence[int], rng: np.random.Generator) -> Crop:
        """Choose the crop of an image of `shape`; raises SampleShapeError if the image is smaller than the crop."""
        if self._resized:
            return self._drawn_part(shape[1], shape[2], self._resized, rng)
        _, height, width = self.output_shape(shape)
        spare_height, spare_width = shape[1] - height, shape[2] - width
        if spare_height < 0 or spare_width < 0:
            raise SampleShapeError(
                f"an image of {shape[1]}×{shape[2]} is smaller than crop_size {self._crop_in_words()}: give the "
                f"source shorter_side: {max(self._height, self._width)}, which resizes pictures, or crop less"
            )
        if not self._train:
            return Crop(spare_height // 2, spare_width // 2, mirrored=False)
        # Always three draws, so that the option mirror does not change where a sample is cropped.
        down, right, mirror = rng.random(3).tolist()
        return Crop(int(down * (spare_height + 1)), int(right * (spare_width + 1)), self._mirror and mirror < 0.5)

    def _drawn_part(self, height: int, width: int, options: RandomResizedCrop, rng: np.random.Generator) -> Crop:
        mirrored = False
        if self._train:
            mirrored = rng.random() < 0.5 and self._mirror  # drawn with the option and without
            top, left, *size = random_part(height, width, options, rng)
        else:
            top, left, *size = central_part(height, width, (self._height, self._width))
        return Crop(top, left, mirrored, (size[0], size[1]))

    @property
    def resizes(self) -> bool:
        """True if crops are resized, so that a smaller copy of a large picture may have all the pixels of the top."""
        return self._resized is not None

    def sufficient_size(self, size: tuple[int, int], rng: np.random.Generator) -> tuple[int, int]:
        """Return the (height, width) of the smallest copy of a picture of `size` whose crop need not be enlarged."""
        part = self.draw((0, *size), rng).size or size
        return sufficient_size(size, part, (self._height, self._width))

    def _crop_in_words(self) -> str:
        return str(self._height) if self._height == self._width else f"[{self._height}, {self._width}]"

    def note(self, crop: Crop, shape: Sequence[int]) -> tuple[int, int, int]:
        """Return the offset of `crop` from the centre of an image of `shape`, down and right, and 1 if mirrored."""
        height, width = self.output_shape(shape)[1:]
        return crop.top - (shape[1] - height) // 2, crop.left - (shape[2] - width) // 2, int(crop.mirrored)

    def put(self, sample: AnyArray, rows: Rows, row: int, rng: np.random.Generator) -> Crop:
        """Transform `sample`, shape (channels, height, width), into a row of a top.

        Raises SampleTooLargeError if the top varies and the sample does not fit.
        """
        out = rows.reserve(row, self.output_shape(sample.shape)) if isinstance(rows, RaggedRows) else rows[row]
        crop = self.draw(sample.shape, rng)
        self.copy(sample, out, crop)
        return crop

    def copy(self, sample: AnyArray, out: AnyArray, crop: Crop) -> None:
        """Copy the part `crop` of `sample` into `out`."""
        height, width = crop.size or out.shape[1:]
        part = sample[:, crop.top : crop.top + height, crop.left : crop.left + width]
        if part.shape[1:] != out.shape[1:]:
            part = resized(part, out.shape[1:])
        if len(out) < len(part):
            _weigh(part[:, :, ::-1] if crop.mirrored else part, out[0])
        elif crop.mirrored:
            _mirror(part, out)
        else:
            _copy(part, out)


def _mirror(part: AnyArray, out: AnyArray) -> None:
    cv2 = _opencv() if part.dtype in _TAKEN_BY_OPENCV and part.dtype == out.dtype else None
    if cv2 is None:
        out[...] = part[:, :, ::-1]
        return
    if _is_of_pixels(part):
        _copy(part, out)
        part = out
    # 6 µs at 3×224×224 uint8, like a forward copy; NumPy copies backwards item by item and takes 42.
    for channel, plane in enumerate(out):
        cv2.flip(part[min(channel, len(part) - 1)], 1, dst=plane)


def _copy(part: AnyArray, out: AnyArray) -> None:
    cv2 = _opencv() if _is_of_pixels(part) and part.dtype == out.dtype else None
    if cv2 is None:
        out[...] = part  # one gray channel goes to all three by broadcasting
        return
    order = slice(None, None, 1 if part.strides[0] > 0 else -1)
    # 12 µs at 3×224×224 uint8; NumPy takes 42. OpenCV takes 147 with lines that are not contiguous and planes at
    # addresses that are no multiples of 32.
    cv2.split(np.ascontiguousarray(part[order].transpose(1, 2, 0)), list(out[order]))


def _is_of_pixels(part: AnyArray) -> bool:
    """Return true if the channels of a pixel are adjacent in memory, in this or the reverse order."""
    return len(part) == 3 and abs(part.strides[0]) == part.itemsize and part.dtype in _TAKEN_BY_OPENCV


@functools.cache
def _opencv() -> ModuleType | None:
    # Imported with the first image that needs it: most runs do not need it, and the import takes 26 ms.
    try:
        import cv2
    except ImportError:
        return None
    return cv2


def _weigh(colors: AnyArray, out: AnyArray) -> None:
    """Write the gray of `colors`, shape (3, height, width), into `out`, shape (height, width)."""
    if colors.dtype == np.uint8:
        out[...] = (_weighted_sum(colors, _GRAY_WEIGHTS_UINT8, np.dtype("uint32")) + _HALF) >> _GRAY_BITS
        return
    gray = _weighted_sum(colors, _GRAY_WEIGHTS, np.result_type(colors.dtype, np.float32))
    out[...] = gray if np.issubdtype(colors.dtype, np.floating) else np.rint(gray)


def _weighted_sum(planes: AnyArray, weights: Sequence[float], dtype: np.dtype[Any]) -> NDArray[Any]:
    blue, green, red = (
        np.multiply(plane, dtype.type(weight), dtype=dtype) for plane, weight in zip(planes, weights, strict=True)
    )
    total: NDArray[Any] = blue + green + red
    return total
