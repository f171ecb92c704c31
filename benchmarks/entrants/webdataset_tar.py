"""webdataset: its own format (tar files of samples), read in order by two workers and shuffled in a buffer of 1,000.

That is a weaker shuffle than the others', and a copy of the data; it is what its users have.
"""

from __future__ import annotations

import importlib
import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ..datasets import JPEG
from ..reading import Array, random_crop
from ..works import Work
from . import WORKERS, Batch

wds = importlib.import_module("webdataset")

_SHARDS = 4


def prepare(samples: int) -> list[Path]:
    """Pack the pictures into tar files, once; where these lie."""
    pictures = JPEG.path(samples)
    _shard(pictures, 0).parent.mkdir(exist_ok=True)
    for shard in range(_SHARDS):
        path = _shard(pictures, shard)
        if not path.exists():
            unfinished = path.with_suffix(".part")
            _pack(unfinished, pictures, range(shard, samples, _SHARDS))
            unfinished.rename(path)
    return [_shard(pictures, 0).parent]


def _shard(pictures: Path, shard: int) -> Path:
    return pictures.with_name(f"{pictures.name}.shards") / f"shard-{shard:06d}.tar"


def _pack(path: Path, pictures: Path, indices: range) -> None:
    with tarfile.open(path, "w") as tar:
        for index in indices:
            tar.add(pictures / f"{index}.jpg", f"{index}.jpg")
            label = tarfile.TarInfo(f"{index}.cls")
            label.size = len(str(index))
            tar.addfile(label, io.BytesIO(str(index).encode()))


def _decode(jpeg: bytes) -> Array:
    import cv2

    picture = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    if picture is None:
        raise ValueError("not a picture that OpenCV reads")
    return np.ascontiguousarray(random_crop(picture, 224))


@contextmanager
def open_batches(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    shards = [str(_shard(JPEG.path(samples), shard)) for shard in range(_SHARDS)]
    samples_read = (
        wds.WebDataset(shards, resampled=True, shardshuffle=False, nodesplitter=wds.split_by_node)
        .shuffle(1000)
        .to_tuple("jpg", "cls")
        .map_tuple(_decode, int)
        .batched(work.batch_size, partial=False)
    )
    yield iter(wds.WebLoader(samples_read, batch_size=None, num_workers=WORKERS))
