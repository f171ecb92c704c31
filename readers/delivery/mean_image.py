"""The mean of whole images, of which each row loses the part under its crop, mirrored where the row is: as in Caffe.

Only the loader that drew a crop knows where it lies, so it leaves a note beside the rows (CROPS in transform.py).
Were the mean subtracted in the loader, slots would hold float32 for uint8, four times the memory and the copying.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...workers.base.errors import ParameterError
from ...workers.base.specs import AnyArray, IndexArray

Mean = NDArray[np.float32]


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
        """Where the part of each row begins in `both`: image, top and left, shape (rows, 3).

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
