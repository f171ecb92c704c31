"""How users read the data sets without blobfeed: what every entrant but ours, and the plain loop, is built on.

`one(i)` is what most people write in `__getitem__`; `many(indices)` is what those write who have tuned it: whole
batches, sorted where the format likes that, converted to float only in the trainer, so that fewer bytes travel.
Readers are opened at the first read, hence in the worker that reads; they are pickled before that.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Labels = NDArray[np.int64]


class Reader(Protocol):
    def __len__(self) -> int: ...

    def one(self, index: int) -> tuple[Array, int]:
        """Sample `index`, without a batch axis, and its label."""

    def many(self, indices: Sequence[int] | Labels) -> tuple[Array, Labels]:
        """The samples of `indices`, in that order, shape (len(indices), ...), and their labels."""


class HDF5Rows:
    """One data set per top: `data`, shape (samples, ...), and `label`."""

    def __init__(self, path: Path, samples: int, dtype: str) -> None:
        self._path = path
        self._samples = samples
        self._dtype = np.dtype(dtype)
        self._file: Any = None

    def __len__(self) -> int:
        return self._samples

    def _datasets(self, **options: Any) -> tuple[Any, Any]:
        if self._file is None:
            import h5py  # type: ignore[import-untyped]

            self._file = h5py.File(self._path, "r", **options)
        return self._file["data"], self._file["label"]

    def one(self, index: int) -> tuple[Array, int]:
        data, labels = self._datasets()
        return data[index].astype(self._dtype, copy=False), int(labels[index])

    def many(self, indices: Sequence[int] | Labels) -> tuple[Array, Labels]:
        # A chunk cache that holds chunks of more than the default's 1 MB.
        data, labels = self._datasets(rdcc_nbytes=64 << 20)
        order = np.argsort(indices)
        rows = np.asarray(indices)[order]  # h5py takes a list of rows only in increasing order
        # For chunked data a list of rows was 20 times as slow in h5py as one row after the other.
        sorted_data = data[rows] if data.chunks is None else np.stack([data[row] for row in rows])
        back = np.argsort(order)
        return sorted_data[back], labels[rows][back]


class NpyRows:
    """`data.npy` and `label.npy` in one folder, memory-mapped."""

    def __init__(self, folder: Path, samples: int) -> None:
        self._folder = folder
        self._samples = samples
        self._maps: tuple[Array, Labels] | None = None

    def __len__(self) -> int:
        return self._samples

    def _open(self) -> tuple[Array, Labels]:
        if self._maps is None:
            self._maps = (
                np.load(self._folder / "data.npy", mmap_mode="r"),
                np.load(self._folder / "label.npy", mmap_mode="r"),
            )
        return self._maps

    def one(self, index: int) -> tuple[Array, int]:
        data, labels = self._open()
        return np.array(data[index]), int(labels[index])

    def many(self, indices: Sequence[int] | Labels) -> tuple[Array, Labels]:
        data, labels = self._open()
        rows = np.asarray(indices)
        return np.asarray(data[rows]), np.asarray(labels[rows])


class HDF5Samples:
    """One data set per sample, `sample_<i>`, its label in the attributes."""

    def __init__(self, path: Path, samples: int) -> None:
        self._path = path
        self._samples = samples
        self._file: Any = None

    def __len__(self) -> int:
        return self._samples

    def one(self, index: int) -> tuple[Array, int]:
        if self._file is None:
            import h5py

            self._file = h5py.File(self._path, "r")
        dataset = self._file[f"sample_{index}"]
        return dataset[()], int(dataset.attrs["label"])

    def many(self, indices: Sequence[int] | Labels) -> tuple[Array, Labels]:
        return stack([self.one(int(index)) for index in indices])


class JpegCrops:
    """Pictures `<i>.jpg`, decoded by OpenCV (the fastest that users have at hand), a random crop of each."""

    def __init__(self, folder: Path, samples: int, crop: int) -> None:
        self._folder = folder
        self._samples = samples
        self._crop = crop

    def __len__(self) -> int:
        return self._samples

    def decode(self, index: int) -> Array:
        """Picture `index`, shape (height, width, 3)."""
        import cv2

        picture = cv2.imread(str(self._folder / f"{index}.jpg"), cv2.IMREAD_COLOR)
        if picture is None:
            raise FileNotFoundError(self._folder / f"{index}.jpg")
        return picture

    def one(self, index: int) -> tuple[Array, int]:
        return np.ascontiguousarray(random_crop(self.decode(index), self._crop)), index

    def many(self, indices: Sequence[int] | Labels) -> tuple[Array, Labels]:
        data = np.empty((len(indices), 3, self._crop, self._crop), np.uint8)
        for row, index in enumerate(indices):
            data[row] = random_crop(self.decode(int(index)), self._crop)
        return data, np.array(indices, np.int64)


class PillowCrops(JpegCrops):
    """The same by Pillow, as torchvision's users have it."""

    def decode(self, index: int) -> Array:
        from PIL import Image

        with Image.open(self._folder / f"{index}.jpg") as picture:
            return np.asarray(picture.convert("RGB"))


def random_crop(picture: Array, crop: int) -> Array:
    """A square of `picture`, shape (height, width, 3), as a view of shape (3, crop, crop)."""
    y = random.randint(0, picture.shape[0] - crop)
    x = random.randint(0, picture.shape[1] - crop)
    return picture[y : y + crop, x : x + crop].transpose(2, 0, 1)


def stack(samples: Sequence[tuple[Array, int]]) -> tuple[Array, Labels]:
    """A batch of samples read one by one."""
    return np.stack([data for data, _ in samples]), np.array([label for _, label in samples], np.int64)
