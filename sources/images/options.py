"""The options of pictures and of lists of them, and the size that they give to images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec
import numpy as np

from ...workers.api import ArraySpec, NotNegative, check_options
from ...workers.base import ParameterError, SampleTooLargeError

PICTURES = ("jpg", "jpeg", "png", "bmp", "webp", "ppm", "pgm", "tif", "tiff")
"""How the names of pictures end."""

LONGEST_SIDE_RATIO = 4  # of a picture with a shorter_side, if no max_height or max_width is declared


class PictureOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The decoding of pictures, wherever they are stored; sizes in pixels, 0 for not given.

    new_height: resize every image to this height, whatever its ratio; goes with new_width.
    new_width: resize every image to this width.
    shorter_side: resize so that the shorter side has this length; the ratio stays, sizes vary.
    max_height: the largest height, if sizes vary; stands for both if max_width is not given; without both, four times
        shorter_side. Pictures of image_list and files that are cropped need none.
    max_width: the largest width, if sizes vary; stands for both if max_height is not given.
    equal_sizes: whether all images have the size of the first one; any other size is an error then.
    is_color: false for one gray channel.
    color: the order of the channels; without it rgb in readers and commands, as torch and Keras have it, and bgr in
        layers, as in Caffe.
    exif: whether images are turned upright by the orientation that the camera noted.
    interpolation: how images are resized.
    dct_scaling: decode large JPEGs at 1/2, 1/4 or 1/8 of their size if that still covers the wanted size (not those
        that `exif` may turn).
    strict: whether a damaged JPEG is an error, instead of what can be decoded of it.
    """

    new_height: NotNegative = 0
    new_width: NotNegative = 0
    shorter_side: NotNegative = 0
    max_height: NotNegative = 0
    max_width: NotNegative = 0
    equal_sizes: bool = False
    is_color: bool = True
    color: Literal["rgb", "bgr"] = "rgb"
    exif: bool = False
    interpolation: Literal["nearest", "linear", "cubic", "area", "lanczos"] = "linear"
    dct_scaling: bool = True
    strict: bool = True

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) that an upright image of this height and width gets."""
        if self.new_height:
            return self.new_height, self.new_width
        if not self.shorter_side:
            return height, width
        scale = self.shorter_side / min(height, width)
        return max(1, round(height * scale)), max(1, round(width * scale))

    @property
    def largest_size(self) -> tuple[int, int]:
        """(height, width) of the largest image that there may be."""
        if self.new_height:
            return self.new_height, self.new_width
        default = self.max_height or self.max_width or LONGEST_SIDE_RATIO * self.shorter_side
        return self.max_height or default, self.max_width or default

    @property
    def channels(self) -> int:
        return 3 if self.is_color else 1

    def spec(self, size_of_first: Callable[[], tuple[int, int]]) -> ArraySpec:
        """Return the spec of the pictures as samples. `size_of_first`: gives the (height, width) of the first one."""
        fixed = self.equal_sizes or self.new_height > 0
        size = size_of_first() if self.equal_sizes else self.largest_size
        return ArraySpec((self.channels, *size), np.dtype(np.uint8), varies=not fixed)


class ImageListOptions(PictureOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of `source: {image_list: …}`, beside those of all pictures.

    path: the list: a path and its labels on each line.
    root_folder: put before each path.
    labels: labels on each line; without it they are counted.
    label_dtype: the type of labels; "auto": int64 if all are written as integers, else float32. A label that the type
        cannot hold is an error; float32 may round fractions below 16,777,216.
    check_files: whether setup looks for the first 100 images.
    """

    path: str
    root_folder: str = ""
    labels: NotNegative | None = None
    label_dtype: Literal["auto", "int64", "float32", "float64"] = "auto"
    check_files: bool = True


_Options = TypeVar("_Options", bound=PictureOptions)


def picture_options(options: object, into: type[_Options], what: str) -> _Options:
    """Convert `options` as `check_options`; raises ParameterError for options of sizes that contradict each other.

    No file is read before, so that such a mistake is seen at once.
    """
    checked = check_options(options, into, what)
    height, width, shorter = checked.new_height, checked.new_width, checked.shorter_side
    if bool(height) != bool(width):
        raise ParameterError(f"{what}: new_height is {height} and new_width {width}: give both, or shorter_side alone")
    if height and shorter:
        raise ParameterError(
            f"{what}: new_height and new_width ({height}×{width}) and shorter_side ({shorter}) exclude "
            "each other: give one or the other"
        )
    if checked.equal_sizes and (height or shorter or checked.max_height or checked.max_width):
        raise ParameterError(f"{what}: equal_sizes takes the size of the first image, so no other size can be given")
    return checked


def require_sizes(options: PictureOptions, what: str) -> None:
    """Raises ParameterError, begun by `what`, if the options do not say how large pictures may be."""
    sizes = options.new_height, options.shorter_side, options.max_height, options.max_width, options.equal_sizes
    if not any(sizes):
        raise ParameterError(
            f"{what}: images keep their own sizes, so their largest must be declared: give max_height and "
            "max_width (one of them stands for both), or resize them all by new_height and new_width or shorter_side, "
            "or say equal_sizes: true if all have the size of the first; image_list and files need no size beside a "
            "crop_size in 'transform'"
        )


def require_like_first(shape: tuple[int, int, int], spec: ArraySpec) -> None:
    """Raises ValueError, SampleTooLargeError if a picture, shape (channels, height, width), is not as `spec` says."""
    if shape[0] != spec.shape[0]:
        raise ValueError(f"it has {shape[0]} channels and the first one {spec.shape[0]}: all need as many")
    if spec.varies:
        try:
            spec.require_fits(shape)
        except SampleTooLargeError as error:
            raise SampleTooLargeError(f"{error} (max_height, max_width)") from None
    elif shape != spec.shape:
        _, height, width = spec.shape
        raise ValueError(
            f"it is {shape[1]}×{shape[2]} and the first one {height}×{width}: resize them, or declare the largest by "
            "max_height and max_width, not equal_sizes"
        )
