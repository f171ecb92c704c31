"""Reading an image list, and what OpenCV makes of the same files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from blobfeed.sources import open_source
from blobfeed.workers.api import AnyArray, allocate_rows
from numpy.typing import NDArray

from blobfeed import RaggedRows, Source

SIZE: dict[str, Any] = {"new_height": 48, "new_width": 64}


def opened(path: Path, tops: tuple[str, ...] | None = None, **options: Any) -> Source:
    return open_source({"image_list": {"path": path.name, **options}}, tops=tops, base_dir=path.parent)


def samples(source: Source, indices: list[int] | None = None) -> dict[str, list[AnyArray]]:
    """The samples, each in its own shape, by name; what the source lends must be the same, errors too."""
    wanted = np.array(range(len(source)) if indices is None else indices, np.int64)
    rows = allocate_rows(source.specs, len(wanted))
    try:
        source.read(wanted, rows)
    except Exception as error:
        with pytest.raises(type(error), match=re.escape(str(error))):
            list(source.lend(wanted) or ())
        raise
    read = {
        name: [top.get(k) if isinstance(top, RaggedRows) else top[k] for k in range(len(wanted))]
        for name, top in rows.items()
    }
    for k, sample in enumerate(source.lend(wanted) or ()):
        assert list(sample) == list(read)
        for name, value in sample.items():
            assert value.dtype == read[name][k].dtype
            np.testing.assert_array_equal(value, read[name][k], strict=True)
    return read


def planes(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return image.transpose(2, 0, 1) if image.ndim == 3 else image[np.newaxis]


def resized(image: NDArray[np.uint8], height: int, width: int, how: int = cv2.INTER_LINEAR) -> NDArray[np.uint8]:
    return np.asarray(cv2.resize(image, (width, height), interpolation=how), np.uint8)
