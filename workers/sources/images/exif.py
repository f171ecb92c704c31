"""The orientation that a camera notes in a JPEG's EXIF block, and turning a picture upright by it.

Neither simplejpeg nor OpenCV tells the orientation without decoding the picture.
"""

from __future__ import annotations

import struct
from contextlib import suppress

import cv2
import numpy as np
from numpy.typing import NDArray

_START_OF_SCAN = 0xDA
_APP1 = 0xE1
_EXIF = b"Exif\0\0"
_ORIENTATION = 0x0112
_NUMBERS = (3, 4)
"""Types of a tag: EXIF asks for a short, and some programs write a long, of which OpenCV too reads the first half."""
_FIRST_QUARTER_TURN = 5
_BYTE_ORDERS = {b"II": "<", b"MM": ">"}


def orientation(jpeg: bytes) -> int:
    """The EXIF orientation of a JPEG, 1 to 8; 1 (upright) if it has none, or one that makes no sense.

    Markers and segments: ITU-T T.81 annex B; the block in APP1 and the tag: EXIF 2.3, 4.5.4 and 4.6.4.
    """
    position = 2
    while position + 4 <= len(jpeg) and jpeg[position] == 0xFF and jpeg[position + 1] != _START_OF_SCAN:
        start, end = position + 4, position + 2 + int.from_bytes(jpeg[position + 2 : position + 4], "big")
        if jpeg[position + 1] == _APP1 and jpeg.startswith(_EXIF, start):
            return _orientation_in_tiff(jpeg[start + len(_EXIF) : end])
        position = end
    return 1


def _orientation_in_tiff(tiff: bytes) -> int:
    order = _BYTE_ORDERS.get(tiff[:2])
    if order is None:
        return 1
    with suppress(struct.error):  # the block may end in the middle of its own directory
        (directory,) = struct.unpack_from(order + "I", tiff, 4)
        (entries,) = struct.unpack_from(order + "H", tiff, directory)
        for entry in range(entries):
            tag, kind, count, value = struct.unpack_from(order + "HHIH", tiff, directory + 2 + 12 * entry)
            if tag == _ORIENTATION and kind in _NUMBERS and count == 1:
                return int(value) if 1 <= value <= 8 else 1
    return 1


def turned(size: tuple[int, int], turn: int) -> tuple[int, int]:
    """`size` before and after turning a picture of orientation `turn` upright: a quarter turn swaps the sides."""
    return (size[1], size[0]) if turn >= _FIRST_QUARTER_TURN else size


def upright(image: NDArray[np.uint8], turn: int) -> NDArray[np.uint8]:
    """`image`, shape (height, width) or (height, width, 3), turned upright from the EXIF orientation `turn`."""
    if turn >= _FIRST_QUARTER_TURN:
        image = cv2.transpose(image)  # type: ignore[assignment]
        turn = {5: 1, 6: 2, 7: 3, 8: 4}[turn]
    if turn == 1:
        return image
    return cv2.flip(image, {2: 1, 3: -1, 4: 0}[turn])  # type: ignore[return-value]
