"""What the header of a JPEG says, without decoding the picture; and a header that says that the picture ends earlier.

Markers and segments: ITU-T T.81, annex B.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_SEQUENTIAL = (0xC0, 0xC1)
_ANY_OTHER_FRAME = (*range(0xC2, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0))
_START_OF_SCAN = 0xDA
_RESTART_INTERVAL = 0xDD
_END_OF_IMAGE = b"\xff\xd9"
_BLOCK_ROWS = 8


def segments(jpeg: bytes) -> Iterator[tuple[int, int, int]]:
    """(marker, start, end) of what stands before the first scan's data, that scan's own header at the end.

    Ends earlier if there is something else than a segment.
    """
    position, marker = 2, 0
    while marker != _START_OF_SCAN and position + 4 <= len(jpeg) and jpeg[position] == 0xFF:
        marker, start = jpeg[position + 1], position + 4
        position += 2 + int.from_bytes(jpeg[position + 2 : start], "big")
        yield marker, start, position


class Frame(NamedTuple):
    """A picture that can be decoded from its top to any row. `at`: where the file has its height; sizes in pixels.

    `step`: rows of which libjpeg-turbo decodes all or none.
    """

    at: int
    height: int
    width: int
    step: int

    def ended_below(self, jpeg: bytes, rows: int) -> tuple[bytes | bytearray, int]:
        """`jpeg` with a height, which is returned too, that ends it as early as its first `rows` rows allow.

        One step more than they need: colours of half the height are interpolated from the rows below, too.
        """
        height = min(self.height, (-(-rows // self.step) + 1) * self.step)
        if height == self.height:
            return jpeg, height
        ended = bytearray(jpeg)
        ended[self.at : self.at + 2] = height.to_bytes(2, "big")
        return ended, height


def frame_of(jpeg: bytes) -> Frame | None:
    """The frame of a JPEG that is sequential, in one scan and whole; None for any other.

    Without restart markers: between them a decoder looks for the next one, and says of damage what it says of the rows
    that it is not to decode.
    """
    frame, components = None, 0
    for marker, start, end in segments(jpeg):
        if marker in _SEQUENTIAL and end <= len(jpeg) and end - start >= 6:
            components = jpeg[start + 5]
            tallest = max((factors & 0x0F for factors in jpeg[start + 7 : end : 3]), default=0)
            height, width = (int.from_bytes(jpeg[start + k : start + k + 2], "big") for k in (1, 3))
            frame = Frame(start + 1, height, width, _BLOCK_ROWS * tallest)
        elif marker in _ANY_OTHER_FRAME or marker == _RESTART_INTERVAL:
            return None
        elif marker == _START_OF_SCAN and frame is not None and jpeg[start : start + 1] == bytes([components]):
            is_whole = jpeg.endswith(_END_OF_IMAGE) and frame.height and frame.step
            return frame if is_whole else None
    return None
