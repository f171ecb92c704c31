"""The data sets: written once into a cache folder, with the readers that users would write and blobfeed's parameters.

Folder: BLOBFEED_BENCH_DATA, else `blobfeed_bench` in the system's temporary directory. A data set's name holds its
size, so that quick and full ones live side by side; it is written under another name first, so that an interrupted run
leaves none that is cut short.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .photographs import crops, stamp
from .reading import HDF5Rows, HDF5Samples, JpegCrops, NpyRows, Reader

_LABELS = np.int64


def data_folder() -> Path:
    return Path(os.environ.get("BLOBFEED_BENCH_DATA") or Path(tempfile.gettempdir()) / "blobfeed_bench")


@dataclass(frozen=True)
class DataSet:
    """`write(path, samples)` makes it; `reader(path, samples, dtype)` is the user's, `source(path)` is ours.

    `stamped`: samples carry their index in their first 8 bytes, and it is their label too.
    """

    name: str
    samples: int
    quick_samples: int
    write: Callable[[Path, int], None]
    reader: Callable[[Path, int, str], Reader]
    source: Callable[[Path], Mapping[str, Any]]
    stamped: bool = True

    def size(self, quick: bool) -> int:
        return self.quick_samples if quick else self.samples

    def path(self, samples: int) -> Path:
        return data_folder() / f"{self.name}-{samples}"

    def ensure(self, samples: int) -> Path:
        """The path of the data set, written now if it is not there."""
        return made(self.path(samples), lambda unfinished: self.write(unfinished, samples))


def made(path: Path, write: Callable[[Path], None]) -> Path:
    """`path`, written now if it is not there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{os.getpid()}.{path.name}")
        try:
            write(unfinished)
            unfinished.rename(path)
        finally:
            _remove(unfinished)
    return path


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write_hdf5_rows(path: Path, samples: int, size: int, channels: int, **storage: Any) -> None:
    import h5py  # type: ignore[import-untyped]

    with h5py.File(path, "w") as file:
        data = file.create_dataset("data", (samples, channels, size, size), np.uint8, **storage)
        file["label"] = np.arange(samples, dtype=_LABELS)
        block = np.empty((64, channels, size, size), np.uint8)
        for index, crop in enumerate(crops(size, size, samples)):
            row = index % len(block)
            block[row] = crop.transpose(2, 0, 1)[:channels]
            stamp(block[row], index)
            if row == len(block) - 1 or index == samples - 1:
                data[index - row : index + 1] = block[: row + 1]


def _write_npy(path: Path, samples: int) -> None:
    path.mkdir()
    data = np.lib.format.open_memmap(path / "data.npy", "w+", np.uint8, (samples, 3, 224, 224))
    for index, crop in enumerate(crops(224, 224, samples)):
        data[index] = crop.transpose(2, 0, 1)
        stamp(data[index], index)
    data.flush()
    np.save(path / "label.npy", np.arange(samples, dtype=_LABELS))


def _write_hdf5_samples(path: Path, samples: int) -> None:
    _write_samples([path], samples)


def _write_hdf5_samples_ten(path: Path, samples: int) -> None:
    path.mkdir()
    _write_samples(_ten_files(path), samples)


def _ten_files(folder: Path) -> list[Path]:
    return [folder / f"{number}.h5" for number in range(10)]


def _write_samples(paths: Sequence[Path], samples: int) -> None:
    import h5py

    with ExitStack() as files:
        opened = [files.enter_context(h5py.File(path, "w")) for path in paths]
        for index, crop in enumerate(crops(64, 64, samples)):
            sample = crop.astype(np.float32)
            stamp(sample, index)
            file = opened[index // (samples // len(paths))]
            file.create_dataset(f"sample_{index}", data=sample).attrs["label"] = _LABELS(index)


def _write_jpeg(path: Path, samples: int) -> None:
    import cv2

    path.mkdir()
    for index, crop in enumerate(crops(375, 500, samples)):
        cv2.imwrite(str(path / f"{index}.jpg"), np.ascontiguousarray(crop), [cv2.IMWRITE_JPEG_QUALITY, 90])
    (path / "list.txt").write_text("".join(f"{index}.jpg {index}\n" for index in range(samples)))


def _hdf5_source(path: Path) -> Mapping[str, Any]:
    return {"hdf5": {"path": str(path)}}


_write_224 = partial(_write_hdf5_rows, size=224, channels=3)
_write_28 = partial(_write_hdf5_rows, size=28, channels=1)
_write_chunked = partial(_write_224, chunks=(8, 3, 224, 224))
_write_gzip = partial(_write_chunked, compression="gzip")

HDF5_224 = DataSet("hdf5_224", 6000, 512, _write_224, HDF5Rows, _hdf5_source)
HDF5_28 = DataSet("hdf5_28", 60000, 6000, _write_28, HDF5Rows, _hdf5_source)
HDF5_CHUNKED = DataSet("hdf5_chunked", 6000, 512, _write_chunked, HDF5Rows, _hdf5_source)
HDF5_GZIP = DataSet("hdf5_gzip", 6000, 512, _write_gzip, HDF5Rows, _hdf5_source)
NPY_224 = DataSet(
    "npy_224",
    6000,
    512,
    _write_npy,
    lambda path, samples, _: NpyRows(path, samples),
    lambda path: {"npy": {"data": str(path / "data.npy"), "label": str(path / "label.npy")}},
)
HDF5_SAMPLES = DataSet(
    "hdf5_samples",
    10000,
    512,
    _write_hdf5_samples,
    lambda path, samples, _: HDF5Samples([path], samples),
    lambda path: {"hdf5_samples": {"path": str(path), "labels": ["label"]}},
)
HDF5_SAMPLES_TEN = DataSet(
    "hdf5_samples_ten",
    10000,
    500,
    _write_hdf5_samples_ten,
    lambda path, samples, _: HDF5Samples(_ten_files(path), samples),
    lambda path: {"hdf5_samples": {"path": [str(each) for each in _ten_files(path)], "labels": ["label"]}},
)
JPEG = DataSet(
    "jpeg",
    2000,
    256,
    _write_jpeg,
    lambda path, samples, _: JpegCrops(path, samples, 224),
    lambda path: {
        "image_list": {
            "path": str(path / "list.txt"),
            "root_folder": str(path),
            "max_height": 375,
            "max_width": 500,
        }
    },
    stamped=False,
)
