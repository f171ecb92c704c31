"""The readers that users write without blobfeed: what every entrant but ours, and the plain loop, is built on.

`one(i)` is what most people write in `__getitem__`; `many(indices)` is what those write who have tuned it: whole
batches, sorted where the format likes that, converted to float only in the trainer, so that fewer bytes travel.
Readers are opened at the first read, hence in the worker that reads; they are pickled before that.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Labels = NDArray[np.int64]
Make = Callable[[tuple[int, ...], "np.dtype[Any]"], Array]
"""(shape, dtype) → the memory of a batch."""


class Reader(Protocol):
    def __len__(self) -> int: ...

    def one(self, index: int) -> tuple[Array, int]:
        """Sample `index`, without a batch axis, and its label."""

    def many(self, indices: Sequence[int] | Labels, make: Make = np.empty) -> tuple[Array, Labels]:
        """The samples of `indices`, in that order, shape (len(indices), ...), made by `make`; and their labels."""


@dataclass(frozen=True)
class Normalise:
    """`(values - mean) * scale` into an array of floats that is there, as users write it."""

    mean: float = 0.0
    scale: float = 1.0

    def __call__(self, values: Array, out: Array) -> None:
        if self == _UNCHANGED:
            np.copyto(out, values)
        else:
            np.subtract(values, np.float32(self.mean), out=out)
            np.multiply(out, np.float32(self.scale), out=out)


_UNCHANGED = Normalise()


class HDF5Rows:
    """One data set per top: `data`, shape (samples, ...), and `label`.

    Both are looked up once. A look-up by name for every sample took 369 µs, and a bare read of the row takes 38. The
    labels are small, so they are read whole. `normalise`: of a sample whose type is not the stored one.
    """

    def __init__(self, path: Path, samples: int, dtype: str, normalise: Normalise = _UNCHANGED) -> None:
        self._path = path
        self._normalise = normalise
        self._samples = samples
        self._dtype = np.dtype(dtype)
        self._opened: tuple[Any, Labels] | None = None
        self._map: Array | None = None
        self._chunks = np.empty(0, np.int64)

    def __len__(self) -> int:
        return self._samples

    def _open(self, cache_bytes: int = 1 << 20) -> tuple[Any, Labels]:
        """`cache_bytes`: of the chunk cache, if chunks are compressed. Else rows are read alone, past a small one."""
        if self._opened is None:
            import h5py  # type: ignore[import-untyped]

            file = h5py.File(self._path, "r")
            if file["data"].compression is not None:
                file = h5py.File(self._path, "r", rdcc_nbytes=cache_bytes)
            self._opened = file["data"], file["label"][:]
        return self._opened

    def one(self, index: int) -> tuple[Array, int]:
        data, labels = self._open()
        sample = data[index]
        if sample.dtype != self._dtype:
            self._normalise(data[index], sample := np.empty(sample.shape, self._dtype))
        return sample, int(labels[index])

    def many(self, indices: Sequence[int] | Labels, make: Make = np.empty) -> tuple[Array, Labels]:
        data, labels = self._open(64 << 20)  # a window of chunks: each of them is more than the default's 1 MB
        rows = np.asarray(indices)
        batch = make((len(rows), *data.shape[1:]), data.dtype)
        if data.compression is None:
            self._gather(data, rows, batch)
            return batch, labels[rows]
        # In file order, so that a chunk is read once. A list of rows in one call was 20 to 150 times as slow in h5py as
        # one row after the other.
        for row in np.argsort(rows):
            data.read_direct(batch, np.s_[rows[row]], np.s_[row])
        return batch, labels[rows]

    def _gather(self, data: Any, rows: Labels, batch: Array) -> None:
        """Stored rows without the library: it says where they begin, and NumPy gathers them from a map."""
        if data.chunks is not None:
            self._gather_from_chunks(data, rows, batch)
            return
        if self._map is None:
            self._map = np.memmap(self._path, data.dtype, "r", data.id.get_offset(), data.shape)
        if batch.dtype != data.dtype:  # to convert each row as it is found spares a pass over the batch
            for row, index in enumerate(rows):
                self._normalise(self._map[index], batch[row])
            return
        # mode="clip": with the default, take() would gather into a buffer of its own first.
        np.take(self._map, rows, axis=0, out=batch, mode="clip")

    def _gather_from_chunks(self, data: Any, rows: Labels, batch: Array) -> None:
        """Each chunk is looked up once, and holds whole rows one behind the other."""
        if self._map is None:
            self._map = np.memmap(self._path, np.uint8, "r")
            chunks = range(-(-len(data) // data.chunks[0]))
            self._chunks = np.array([data.id.get_chunk_info(number).byte_offset for number in chunks])
        size = batch[0].nbytes
        flat = batch.reshape(len(batch), -1).view(np.uint8)
        for row, at in enumerate((self._chunks[rows // data.chunks[0]] + rows % data.chunks[0] * size).tolist()):
            flat[row] = self._map[at : at + size]


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

    def many(self, indices: Sequence[int] | Labels, make: Make = np.empty) -> tuple[Array, Labels]:
        data, labels = self._open()
        rows = np.asarray(indices)
        batch = make((len(rows), *data.shape[1:]), data.dtype)
        np.take(data, rows, axis=0, out=batch, mode="clip")
        return batch, np.asarray(labels[rows])


class HDF5Samples:
    """One data set per sample, `sample_<i>`, its label in the attributes; the same number in each of the files."""

    def __init__(self, paths: Sequence[Path], samples: int) -> None:
        self._paths = paths
        self._samples = samples
        self._in_each = samples // len(paths)
        self._files: list[Any] = []
        self._bytes: list[Array] = []
        self._offsets: list[int] = []
        self._labels = np.empty(0, np.int64)
        self._like = np.empty(0)

    def __len__(self) -> int:
        return self._samples

    def _find(self, index: int) -> Any:
        if not self._files:
            import h5py

            self._files = [h5py.File(path, "r") for path in self._paths]
        return self._files[index // self._in_each][f"sample_{index}"]

    def one(self, index: int) -> tuple[Array, int]:
        dataset = self._find(index)
        return dataset[()], int(dataset.attrs["label"])

    def _look_up(self) -> None:
        """Look up all samples at the first read, while nothing is measured yet: it takes longer than reading them."""
        self._bytes = [np.memmap(path, np.uint8, "r") for path in self._paths]
        found = [self._find(index) for index in range(self._samples)]
        self._like = found[0][()]
        self._offsets = [dataset.id.get_offset() for dataset in found]
        self._labels = np.array([dataset.attrs["label"] for dataset in found], np.int64)

    def many(self, indices: Sequence[int] | Labels, make: Make = np.empty) -> tuple[Array, Labels]:
        if not self._bytes:
            self._look_up()
        rows = np.asarray(indices)
        batch = make((len(rows), *self._like.shape), self._like.dtype)
        size = self._like.nbytes
        flat = batch.reshape(len(rows), -1).view(np.uint8)
        for row, index in enumerate(rows.tolist()):
            at = self._offsets[index]
            flat[row] = self._bytes[index // self._in_each][at : at + size]
        return batch, self._labels[rows]


class JpegCrops:
    """Pictures `<i>.jpg`, decoded by OpenCV (the fastest that users have at hand), a random crop of each.

    `resizes`: a random part as torchvision's RandomResizedCrop draws it, resized to the crop's size.
    """

    def __init__(self, folder: Path, samples: int, crop: int, *, resizes: bool = False) -> None:
        self._folder = folder
        self._samples = samples
        self._crop = crop
        self._resizes = resizes

    def __len__(self) -> int:
        return self._samples

    def decode(self, index: int) -> Array:
        """Picture `index`, shape (height, width, 3)."""
        import cv2

        picture = cv2.imread(str(self._folder / f"{index}.jpg"), cv2.IMREAD_COLOR)
        if picture is None:
            raise FileNotFoundError(self._folder / f"{index}.jpg")
        return picture

    def cut(self, index: int) -> Array:
        """The crop of picture `index`, shape (3, crop, crop)."""
        picture = self.decode(index)
        if not self._resizes:
            return random_crop(picture, self._crop)
        y, x, height, width = random_part(*picture.shape[:2])
        return resized(picture[y : y + height, x : x + width], self._crop)

    def one(self, index: int) -> tuple[Array, int]:
        return np.ascontiguousarray(self.cut(index)), index

    def many(self, indices: Sequence[int] | Labels, make: Make = np.empty) -> tuple[Array, Labels]:
        data = make((len(indices), 3, self._crop, self._crop), np.dtype(np.uint8))
        for row, index in enumerate(indices):
            data[row] = self.cut(int(index))
        return data, np.array(indices, np.int64)


class PillowCrops(JpegCrops):
    """The same by Pillow, as torchvision's users have it."""

    def decode(self, index: int) -> Array:
        from PIL import Image

        with Image.open(self._folder / f"{index}.jpg") as picture:
            return np.asarray(picture.convert("RGB"))


class TurboCrops(JpegCrops):
    """The same by libjpeg-turbo, which decodes a picture that is resized no larger than its part needs."""

    def cut(self, index: int) -> Array:
        import simplejpeg  # type: ignore[import-untyped]

        data = (self._folder / f"{index}.jpg").read_bytes()
        if not self._resizes:
            return random_crop(simplejpeg.decode_jpeg(data, "BGR"), self._crop)
        height, width, *_ = simplejpeg.decode_jpeg_header(data)
        part = random_part(height, width)
        least = -(-height * self._crop // part[2]), -(-width * self._crop // part[3])
        picture = simplejpeg.decode_jpeg(data, "BGR", min_height=least[0], min_width=least[1])
        scale = len(picture) / height
        y, x, part_height, part_width = (round(scale * each) for each in part)
        return resized(picture[y : y + part_height, x : x + part_width], self._crop)


_WIDEST = math.log(4 / 3)


def random_part(height: int, width: int) -> tuple[int, int, int, int]:
    """Top, left, height and width of a part, as torchvision's RandomResizedCrop draws them."""
    for _ in range(10):
        area, shape = height * width * random.uniform(0.08, 1.0), math.exp(random.uniform(-_WIDEST, _WIDEST))
        part_height, part_width = round(math.sqrt(area / shape)), round(math.sqrt(area * shape))
        if part_height <= height and part_width <= width:
            top, left = random.randint(0, height - part_height), random.randint(0, width - part_width)
            return top, left, part_height, part_width
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def resized(part: Array, size: int) -> Array:
    """`part`, shape (height, width, 3), as an array of shape (3, size, size)."""
    import cv2

    return np.asarray(cv2.resize(part, (size, size)).transpose(2, 0, 1))


def random_crop(picture: Array, crop: int) -> Array:
    """A square of `picture`, shape (height, width, 3), as a view of shape (3, crop, crop)."""
    y = random.randint(0, picture.shape[0] - crop)
    x = random.randint(0, picture.shape[1] - crop)
    return picture[y : y + crop, x : x + crop].transpose(2, 0, 1)


def stack(samples: Sequence[tuple[Array, int]]) -> tuple[Array, Labels]:
    """A batch of samples read one by one."""
    return np.stack([data for data, _ in samples]), np.array([label for _, label in samples], np.int64)
