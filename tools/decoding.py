"""The decode hooks of `blobfeed pack`: other types and sizes."""

from __future__ import annotations

import numpy as np

from ..workers.api import AnyArray, Sample, channels_first_hint
from ..workers.base import InexactValueError, ParameterError


def decode(
    uint8: tuple[str, ...], size: tuple[int, int] | None, sample: Sample, rng: np.random.Generator
) -> dict[str, AnyArray]:
    """A decode hook behind two arguments of pack's: tops to make `uint8`, and the `size` (height, width) of `data`."""
    made = dict(sample)
    if size is not None:
        made["data"] = _resized(made["data"], size)
    for top in uint8:
        made[top] = _as_uint8(made[top], top)
    return made


def _as_uint8(values: AnyArray, top: str) -> AnyArray:
    with np.errstate(invalid="ignore"):
        cast = values.astype(np.uint8)
    if not (cast == values).all():
        wrong = values[cast != values].flat[0]
        raise InexactValueError(f"{top} holds {wrong}, which is no whole number from 0 to 255: leave out --uint8 {top}")
    return cast


def _resized(picture: AnyArray, size: tuple[int, int]) -> AnyArray:
    """`picture`: shape (channels, height, width)."""
    import cv2

    hint = channels_first_hint(picture.shape)
    if hint or picture.ndim != 3:
        raise ParameterError(
            f"--resize is for pictures of shape (channels, height, width), and data has {picture.shape}{hint}"
        )
    height, width = size
    shrinks = picture.shape[1] > height and picture.shape[2] > width
    how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return np.stack([cv2.resize(plane, (width, height), interpolation=how) for plane in picture])
