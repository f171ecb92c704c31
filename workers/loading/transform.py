"""The loaders' part of Caffe's transform_param: colour or gray, crop, mirror. Delivery applies scale and mean."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from operator import gt
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..api import (
    AnyArray,
    ArraySpec,
    Needed,
    RaggedRows,
    RandomResizedCrop,
    Rows,
    Transform,
    channels_first_hint,
)
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

    `corner`: where it begins, along the axes that are cut. `size`: its height and width, if it is resized to those of
    the top.
    """

    corner: tuple[int, ...]
    mirrored: bool
    size: tuple[int, int] | None = None


class CropMirror:
    """Transforms an image of shape (channels, height, width) into a row of the top, in one copy.

    With a crop of three axes it takes volumes, shape (depth, height, width) or with channels before them.

    With `train` the crop's position and the mirroring are random; otherwise the crop is centred and not mirrored.
    force_gray expects the channels of a colour image in Caffe's order, blue first.
    """

    def __init__(self, options: Transform, *, train: bool) -> None:
        self._resized = options.random_resized_crop
        size = self._resized.size if self._resized else options.crop_size
        self._size = (size, size) if isinstance(size, int) else size
        self._axes = len(self._size)
        self.beside = options.crop_beside
        self.before_decode = options.crop_before_decode
        self._train = train
        self._mirror = options.mirror and train
        self._channels = 3 if options.force_color else 1 if options.force_gray else 0
        self.is_noted = train and bool(options.mean_file) and (bool(options.crop_size) or options.mirror)
        """True if delivery needs each row's crop, to subtract the part of the mean image that lies under it."""

    @property
    def active(self) -> bool:
        """True if images are transformed at all; otherwise they can be read directly into the slot."""
        return bool(self._crops or self._mirror or self._channels)

    @property
    def _crops(self) -> bool:
        return 0 not in self._size

    def after_decode(self) -> CropMirror | None:
        """Return what is left to do if the crop was cut before decode; None if that is nothing."""
        rest = copy(self)
        rest._size = (0,) * self._axes
        return rest if rest.active else None

    def output_spec(self, spec: ArraySpec) -> ArraySpec:
        """Return the spec of transformed images; raises ParameterError if images of `spec` cannot be transformed."""
        hint = "" if self._axes == 3 else channels_first_hint(spec.shape)
        if hint or len(spec.shape) not in (3, self._axes + 1):
            wanted = "volumes of shape ([channels,] depth" if self._axes == 3 else "images of shape (channels"
            raise ParameterError(
                f"transform: crop_size, mirror, force_color and force_gray need {wanted}, height, width), but the top "
                f"holds {spec}{hint}"
            )
        if not self.takes(spec.shape[0]):
            name = "force_color" if self._channels == 3 else "force_gray"
            raise ParameterError(f"transform: {name} needs images of 1 or 3 channels, but the top holds {spec}")
        if self._resized:
            if spec.dtype not in RESIZABLE:
                raise ParameterError(
                    f"transform: random_resized_crop needs images of {', '.join(sorted(map(str, RESIZABLE)))}, but the "
                    f"top holds {spec}"
                )
        elif any(map(gt, self._size, spec.shape[-self._axes :])):
            raise ParameterError(
                f"transform: crop_size is {self._crop_in_words()}: expected at most the size of the image, {spec}; "
                f"or {self._larger_in_words()}"
            )
        return replace(spec, shape=self.output_shape(spec.shape), varies=spec.varies and not self._crops)

    def spec_beside(self, spec: ArraySpec, image: ArraySpec, top: str) -> ArraySpec:
        """Return the spec of the part of another top; raises ParameterError unless it has the extents of the image."""
        cut = replace(spec, varies=spec.varies and not self._crops)
        if len(spec.shape) >= self._axes:
            cut = replace(cut, shape=self.part_shape(spec.shape))
        if spec.varies != image.varies or not self.lies_beside(spec.shape, image.shape, cut):
            raise ParameterError(
                f"transform: crop_beside names {top!r}, which holds {spec}, and the image is {image}: expected the "
                f"same last {self._axes} axes"
            )
        return cut

    def lies_beside(self, shape: tuple[int, ...], image: tuple[int, ...], spec: ArraySpec) -> bool:
        """Return true if an array of `shape` has the extents of its image, and its part the shape of `spec`."""
        fits = len(shape) >= self._axes and shape[-self._axes :] == image[-self._axes :]
        return fits and (spec.varies or self.part_shape(shape) == spec.shape)

    def takes(self, channels: int) -> bool:
        """Return true if images with `channels` channels can be converted to colour or gray, if that is requested."""
        return not self._channels or channels in (1, 3)

    def takes_axes(self, number: int) -> bool:
        """Return true if images may have so many axes."""
        return number in (3, self._axes + 1)

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a transformed image of `shape`."""
        part = self.part_shape(shape)
        return (self._channels, *part[1:]) if self._channels else part

    def part_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the part of an array of `shape`, whose last axes are the image's."""
        last = zip(self._size, shape[-self._axes :], strict=True)
        return *shape[: -self._axes], *(want or have for want, have in last)

    def corner_in(self, shape: Sequence[int], crop: Crop) -> tuple[int, ...]:
        """Return where the part begins in an array of `shape`, whose last axes are the image's."""
        return *(0,) * (len(shape) - self._axes), *crop.corner

    def part(self, array: AnyArray, crop: Crop) -> AnyArray:
        """Return a view of the part of an array whose last axes are the image's."""
        ends = zip(self.corner_in(array.shape, crop), self.part_shape(array.shape), strict=True)
        return array[tuple(slice(begin, begin + size) for begin, size in ends)]

    def draw(self, shape: Sequence[int], rng: np.random.Generator) -> Crop:
        """Choose the crop of an image of `shape`; raises SampleShapeError if the image is smaller than the crop."""
        if self._resized:
            return self._drawn_part(shape[1], shape[2], self._resized, rng)
        whole = shape[-self._axes :]
        spare = [have - want for have, want in zip(whole, self.part_shape(whole), strict=True)]
        if min(spare) < 0:
            raise SampleShapeError(
                f"an image of {'×'.join(map(str, whole))} is smaller than crop_size {self._crop_in_words()}: "
                f"{self._larger_in_words()}, or crop less"
            )
        if not self._train:
            return Crop(tuple(each // 2 for each in spare), mirrored=False)
        # Always one draw more than axes, so that the option mirror does not change where a sample is cropped.
        *places, mirror = rng.random(self._axes + 1).tolist()
        drawn = tuple(int(place * (each + 1)) for place, each in zip(places, spare, strict=True))
        return Crop(drawn, self._mirror and mirror < 0.5)

    def _drawn_part(self, height: int, width: int, options: RandomResizedCrop, rng: np.random.Generator) -> Crop:
        mirrored = False
        if self._train:
            mirrored = rng.random() < 0.5 and self._mirror  # drawn with the option and without
            top, left, *size = random_part(height, width, options, rng)
        else:
            top, left, *size = central_part(height, width, (self._size[0], self._size[1]))
        return Crop((top, left), mirrored, (size[0], size[1]))

    @property
    def resizes(self) -> bool:
        """True if crops are resized, so that a smaller copy of a large picture may have all the pixels of the top."""
        return self._resized is not None

    @property
    def crops_pictures(self) -> bool:
        return self._crops and self._axes == 2

    def needs(self, size: tuple[int, int], rng: np.random.Generator) -> Needed:
        """Return what the crop needs of a picture of `size`, (height, width): all of it, if it is too small."""
        height, width = self._size
        if not self._resized and (size[0] < height or size[1] < width):
            return Needed(size, (0, 0, *size))
        crop = self.draw((0, *size), rng)
        part = crop.size or (height, width)
        least = sufficient_size(size, part, (height, width)) if self._resized else size
        top, left = crop.corner
        return Needed(least, (top, left, *part))

    def _crop_in_words(self) -> str:
        is_square = self._axes == 2 and self._size[0] == self._size[1]
        return str(self._size[0]) if is_square else str([*self._size])

    def _larger_in_words(self) -> str:
        if self._axes == 3:
            return "pad the volumes in decode"
        return f"give the source shorter_side: {max(self._size)}, which resizes pictures"

    def note(self, crop: Crop, shape: Sequence[int]) -> tuple[int, int, int]:
        """Return the offset of `crop` from the centre of an image of `shape`, down and right, and 1 if mirrored."""
        (top, left), (height, width) = crop.corner[-2:], self.part_shape(shape)[1:]
        return top - (shape[1] - height) // 2, left - (shape[2] - width) // 2, int(crop.mirrored)

    def put(
        self, sample: AnyArray, rows: Rows, row: int, crop: Crop, *, is_cut: bool = False, is_beside: bool = False
    ) -> None:
        """Transform `sample`, whose last axes are those of the image, into a row of a top.

        `is_cut`: it is the part already. `is_beside`: it is not the image, but cut and mirrored as that is.
        Raises SampleTooLargeError if the top varies and the sample does not fit.
        """
        shape = self.part_shape(sample.shape) if is_beside else self.output_shape(sample.shape)
        out = rows.reserve(row, shape) if isinstance(rows, RaggedRows) else rows[row]
        crop = Crop((0,) * self._axes, crop.mirrored) if is_cut else crop
        if is_beside or self._axes == 3:
            part = self.part(sample, crop)
            out[...] = part[..., ::-1] if crop.mirrored else part
        else:
            self._put_picture(sample, out, crop)

    def _put_picture(self, sample: AnyArray, out: AnyArray, crop: Crop) -> None:
        (top, left), (height, width) = crop.corner, crop.size or out.shape[1:]
        part = sample[:, top : top + height, left : left + width]
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
