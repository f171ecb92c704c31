"""Real photographs, encoded as the tests need them."""

from __future__ import annotations

import functools
import struct
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

# Only looked for: to import scikit-learn takes seconds, also in each loader whose hook stands beside such a picture.
_SKLEARN = find_spec("sklearn")
assert _SKLEARN is not None
_PHOTOGRAPHS = Path(str(_SKLEARN.origin)).parent / "datasets" / "images"

Picture = NDArray[np.uint8]
"""Shape (height, width, 3), channels BGR."""


@functools.cache
def photograph(name: str = "china") -> Picture:
    """One of scikit-learn's two sample photographs, `china` or `flower`: shape (427, 640, 3), BGR."""
    return decoded((_PHOTOGRAPHS / f"{name}.jpg").read_bytes())


def picture(height: int, width: int, name: str = "china") -> Picture:
    """A photograph resized to `height` and `width`."""
    resized: Picture = cv2.resize(photograph(name), (width, height), interpolation=cv2.INTER_AREA)  # type: ignore[assignment]
    return resized


def noise(height: int, width: int, seed: int = 0) -> Picture:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def encoded(image: Picture, suffix: str = ".jpg") -> bytes:
    """`image` in the format that the file name's `suffix` says, by OpenCV."""
    done, content = cv2.imencode(suffix, image)
    assert done, suffix
    return bytes(content)


def decoded(content: bytes, flags: int = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION) -> Picture:
    """What OpenCV makes of `content`."""
    image: Picture | None = cv2.imdecode(np.frombuffer(content, np.uint8), flags)  # type: ignore[assignment]
    assert image is not None
    return image


def with_orientation(jpeg: bytes, turn: int, order: str = "<") -> bytes:
    """`jpeg` with an EXIF block that notes orientation `turn`, in little (`<`) or big (`>`) endian."""
    mark = {"<": b"II", ">": b"MM"}[order]
    directory = struct.pack(f"{order}HHHIHHI", 1, 0x0112, 3, 1, turn, 0, 0)
    tiff = mark + struct.pack(f"{order}HI", 42, 8) + directory
    block = b"Exif\0\0" + tiff
    segment = b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block
    return jpeg[:2] + segment + jpeg[2:]


def write_pictures(folder: Path, *names: str, size: tuple[int, int] = (20, 30)) -> None:
    """Write a picture under each of the names, in folders that are made for them."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encoded(picture(*size), Path(name).suffix.lower()))


def write_list(folder: Path, pictures: dict[str, bytes], labels: str = "{position}") -> Path:
    """Write the pictures by name, and a list `list.txt` of them, each with `labels` for its position behind it."""
    for name, content in pictures.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    path = folder / "list.txt"
    path.write_text("".join(f"{name} {labels.format(position=k)}\n" for k, name in enumerate(pictures)))
    return path
