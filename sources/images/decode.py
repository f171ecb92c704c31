"""Encoded bytes of one image into planes of uint8, by the fastest library for its format.

JPEG goes to libjpeg-turbo through simplejpeg, which decodes into memory that is kept; everything else, and the JPEGs
that simplejpeg cannot take, to OpenCV. Both give the same bytes for the same JPEG. OpenCV alone turns pictures upright.
"""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from ...workers.api import ArraySpec, RaggedRows, Rows
from ..files import Scratch
from ..table import Field, NeedsOfRow
from .options import PictureOptions, require_like_first

try:
    import simplejpeg  # type: ignore[import-untyped]
except ImportError:  # OpenCV decodes JPEG too, with one allocation more for each image and no reduced sizes
    simplejpeg = None

try:
    from ._crop import decode_part
except ImportError:  # installed without a compiler, or without libjpeg-turbo: pictures are decoded whole
    decode_part = None  # type: ignore[assignment]

Image: TypeAlias = NDArray[np.uint8]
"""One decoded image: shape (height, width, 3), channels in OpenCV's order BGR, or (height, width) if it is gray."""

INTERPOLATIONS = {
    "nearest": cv2.INTER_NEAREST,
    "linear": cv2.INTER_LINEAR,
    "cubic": cv2.INTER_CUBIC,
    "area": cv2.INTER_AREA,
    "lanczos": cv2.INTER_LANCZOS4,
}

REDUCES = simplejpeg is not None
"""True if large JPEGs can be decoded at a reduced size here."""

_JPEG = b"\xff\xd8\xff"
_END_OF_IMAGE = b"\xff\xd9"
_START_OF_SCAN = b"\xff\xda"
_EXIF = b"Exif\0\0"
_REDUCTIONS = (8, 4, 2)
_TINY = 16
_GRAY = 128
_LARGEST_PIXELS = 1 << 30  # OpenCV's own limit; a broken header may ask for 12 GB


def reduction(size: tuple[int, int], target: tuple[int, int]) -> int:
    """The largest of 8, 4, 2 by which `size`, (height, width), can be divided and still cover `target`; else 1.

    Only these: libjpeg-turbo has no SIMD code for the odd scales between them, which are slower than a full decode.
    """
    for by in _REDUCTIONS:
        if -(-size[0] // by) >= target[0] and -(-size[1] // by) >= target[1]:
            return by
    return 1


class ImageDecoder:
    """Decodes and resizes one image after the other, in memory that it keeps. Not for use by two threads."""

    def __init__(self, options: PictureOptions) -> None:
        self._size_of = options.size_of
        self._resizes = bool(options.new_height or options.shorter_side)
        self._is_color = options.is_color
        self._channels = options.channels
        self._exif = options.exif
        self._strict = options.strict
        # "nearest" asks for no values but those of the image, so the image must not be reduced.
        self._dct_scaling = options.dct_scaling and options.interpolation != "nearest"
        self._interpolation = INTERPOLATIONS[options.interpolation]
        self._order = slice(None, None, -1 if options.color == "rgb" else None)
        self._flags = cv2.IMREAD_COLOR if options.is_color else cv2.IMREAD_GRAYSCALE
        if not options.exif:
            self._flags |= cv2.IMREAD_IGNORE_ORIENTATION
        self._decoded = Scratch()
        self._kept = Scratch()

    def decode(self, data: bytes, needs: NeedsOfRow | None = None) -> tuple[Image, tuple[int, int]]:
        """Return the image in `data`, and the (height, width) that `put` will give it.

        With the option `exif` the image is turned upright. It is valid until the next call. `needs`: says what
        is needed of a JPEG; beside that part the image has any values.
        Raises ValueError saying what is wrong with the bytes.
        """
        if not data:
            raise ValueError("the file is empty (0 bytes)")
        may_turn = self._exif and _EXIF in data
        if simplejpeg is None or not data.startswith(_JPEG) or (may_turn and not self._strict):
            return self._decode_by_opencv(data)
        try:
            decoded = self._decode_by_turbo(data, needs=needs)
        except ValueError as error:
            left = self._what_is_left(data)
            if left is None:
                return self._decode_by_opencv(data)
            if self._strict:
                raise ValueError(f"the JPEG is damaged: {error} (strict: false decodes what is left of it)") from None
            return left
        # OpenCV overlooks damage, which simplejpeg has found none of.
        return self._decode_by_opencv(data) if may_turn else decoded

    def decode_like(
        self, spec: ArraySpec, data: bytes, needs: NeedsOfRow | None = None
    ) -> tuple[Image, tuple[int, int]]:
        """Return the same as `decode`; raises ValueError, SampleTooLargeError for an image that is not of `spec`."""
        image, size = self.decode(data, needs)
        require_like_first((self._channels, *size), spec)
        return image, size

    def read(self, spec: ArraySpec, data: bytes, row: int, rows: Rows) -> None:
        """Put the image in `data` into row `row` of `rows`; raises as `decode_like`."""
        image, size = self.decode_like(spec, data)
        self.put(image, rows.reserve(row, (self._channels, *size)) if isinstance(rows, RaggedRows) else rows[row])

    def field(self, spec: ArraySpec) -> Field[bytes]:
        """Return the top of pictures that a table decodes from records, which are encoded images."""
        return Field(spec, partial(self.read, spec), partial(self._seen, spec), (__name__,), REDUCES)

    def _seen(self, spec: ArraySpec, data: bytes, needs: NeedsOfRow | None = None) -> NDArray[np.uint8]:
        if needs is None or self._resizes:
            return self.planes(*self.decode_like(spec, data))
        image, _ = self.decode_like(spec, data, needs)
        return self.planes(image, (image.shape[0], image.shape[1]))

    def put(self, image: Image, row: NDArray[np.uint8]) -> None:
        """Put `image` into `row`, shape (channels, height, width), C-contiguous, resized to that height and width."""
        height, width = row.shape[1:]
        if self._is_color:
            # Straight into the planes: 7 µs at 3×224×224; a copy of the transposed view takes 42.
            cv2.split(self._resized(image, (height, width)), list(row[self._order]))
        elif image.shape == (height, width):
            np.copyto(row[0], image)
        else:
            cv2.resize(image, (width, height), dst=row[0], interpolation=self._interpolation)

    def planes(self, image: Image, size: tuple[int, int]) -> NDArray[np.uint8]:
        """`image`, resized to `size`, seen with the shape (channels, height, width); valid until the next call."""
        image = self._resized(image, size)
        return image[:, :, self._order].transpose(2, 0, 1) if self._is_color else image[np.newaxis]

    def _resized(self, image: Image, size: tuple[int, int]) -> Image:
        if image.shape[:2] == size:
            return image
        kept = self._kept.take((*size, *image.shape[2:]))
        return cv2.resize(image, size[::-1], dst=kept, interpolation=self._interpolation)  # type: ignore[return-value]

    def _what_is_left(self, data: bytes) -> tuple[Image, tuple[int, int]] | None:
        """Return the damaged JPEG if simplejpeg can decode it with its damage overlooked: then OpenCV must not try."""
        try:
            return self._decode_by_turbo(data, strict=False)
        except ValueError:
            return None

    def _decode_by_turbo(
        self, data: bytes, *, strict: bool = True, needs: NeedsOfRow | None = None
    ) -> tuple[Image, tuple[int, int]]:
        height, width = _jpeg_size(data)
        target = self._size_of(height, width)
        needed = needs((height, width)) if needs else None
        by = reduction((height, width), needed.least if needed else target) if self._dct_scaling else 1
        least = (-(-height // by), -(-width // by))
        image = self._decoded.take((*least, self._channels))
        # For tiny pictures simplejpeg may take another scale that gives the same size.
        if needs and needed and decode_part is not None and (by == 1 or max(height, width) >= _TINY):
            part = needed.part if by == 1 else needs(least).part
            if part[2:] != least and decode_part(data, image, by, part):
                return image if self._is_color else image[:, :, 0], target
        if not strict:
            # Where damage ends the decoding, the rest of the memory is left as it is: with an earlier picture's pixels.
            image.fill(_GRAY)
        image = simplejpeg.decode_jpeg(
            data,
            "BGR" if self._is_color else "GRAY",
            min_height=least[0] if by > 1 else 0,  # 0 is full size: 7/8 of a tiny image rounds up to its own size, too
            min_width=least[1] if by > 1 else 0,
            buffer=image,
            strict=strict,
        )
        return image if self._is_color else image[:, :, 0], target

    def _decode_by_opencv(self, data: bytes) -> tuple[Image, tuple[int, int]]:
        try:
            image = cv2.imdecode(np.frombuffer(data, np.uint8), self._flags)
        except cv2.error as error:
            raise ValueError(f"OpenCV cannot decode it: {error}") from None
        if image is None:
            raise ValueError(f"it is truncated, damaged, or in no format that OpenCV knows (begins {data[:8]!r})")
        if self._strict and ends_early(data):
            raise ValueError("the JPEG is damaged: it ends before its end marker")
        if image.ndim == 3 and not self._is_color:  # OpenCV gives a PFM's colours whatever it is asked for
            image = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
        return image, self._size_of(*image.shape[:2])  # type: ignore[return-value]


def _jpeg_size(data: bytes) -> tuple[int, int]:
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data, strict=False)
    except KeyError:  # how simplejpeg says that it has no name for the subsampling
        raise ValueError("libjpeg-turbo does not know its chroma subsampling") from None
    if height * width > _LARGEST_PIXELS:
        raise ValueError(f"its header says {height}×{width}, more than 2**30 pixels")
    return height, width


def ends_early(data: bytes) -> bool:
    """Return true for a JPEG whose last scan never ends: some versions of OpenCV fill it up with gray and say nothing.

    Neither marker can occur inside a scan's data; a thumbnail's own end comes before the picture's last scan.
    """
    return data.startswith(_JPEG) and data.rfind(_END_OF_IMAGE) < data.rfind(_START_OF_SCAN)
