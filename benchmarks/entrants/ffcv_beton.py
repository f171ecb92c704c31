"""FFCV: its own format (a .beton file), read by two threads of compiled code.

JPEGs stay JPEGs in it. It has no plain crop: the one that resizes too has to cut out exactly a crop's area, so that
it resizes by a factor of about 1. Arrays lie in it as they are.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..datasets import JPEG, NPY_224
from ..reading import Array, NpyRows
from ..works import Work
from . import WORKERS, Batch

fields = importlib.import_module("ffcv.fields")
decoders = importlib.import_module("ffcv.fields.decoders")
loader = importlib.import_module("ffcv.loader")
transforms = importlib.import_module("ffcv.transforms")
writer = importlib.import_module("ffcv.writer")

_AREA = 224 * 224 / (375 * 500)


class _Pictures:
    def __init__(self, folder: Path, samples: int) -> None:
        self._folder = folder
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import cv2

        picture = cv2.imread(str(self._folder / f"{index}.jpg"))
        if picture is None:
            raise FileNotFoundError(self._folder / f"{index}.jpg")
        return cv2.cvtColor(picture, cv2.COLOR_BGR2RGB), index


class _Arrays:
    def __init__(self, rows: NpyRows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Array, int]:
        return self._rows.one(index)


def _beton(path: Path) -> Path:
    return path.with_name(f"{path.name}.beton")


def prepare(samples: int) -> list[Path]:
    """Write what is there of the two data sets into FFCV's format, once; where that lies."""
    if (path := JPEG.path(samples)).exists():
        image = fields.RGBImageField(write_mode="jpg", jpeg_quality=90)
        _write(_beton(path), {"data": image, "label": fields.IntField()}, _Pictures(path, samples))
    if (path := NPY_224.path(samples)).exists():
        array = fields.NDArrayField(dtype=np.dtype(np.uint8), shape=(3, 224, 224))
        _write(_beton(path), {"data": array, "label": fields.IntField()}, _Arrays(NpyRows(path, samples)))
    return [_beton(path) for path in (JPEG.path(samples), NPY_224.path(samples)) if path.exists()]


def _write(path: Path, columns: dict[str, Any], data: Any) -> None:
    if not path.exists():
        unfinished = path.with_suffix(".part")
        writer.DatasetWriter(str(unfinished), columns, num_workers=1).from_indexed_dataset(data)
        unfinished.rename(path)


@contextmanager
def open_batches(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    data: list[Any] = [decoders.NDArrayDecoder(), transforms.ToTensor()]
    if work.data is JPEG:
        crop = decoders.RandomResizedCropRGBImageDecoder((224, 224), scale=(_AREA, _AREA), ratio=(1.0, 1.0))
        data = [crop, transforms.ToTensor(), transforms.ToTorchImage(channels_last=False)]
    label = [decoders.IntDecoder(), transforms.ToTensor(), transforms.Squeeze(1)]
    batches = loader.Loader(
        str(_beton(work.data.path(samples))),
        batch_size=work.batch_size,
        num_workers=WORKERS,
        order=loader.OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines={"data": data, "label": label},
    )
    yield _endless(batches)


def _endless(batches: Any) -> Iterator[Batch]:
    while True:
        yield from batches
