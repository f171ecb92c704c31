"""Writes Fashion-MNIST as LMDBs of Datum records, as Caffe's tools write them: `python make_lmdb.py [FOLDER]`.

FOLDER holds the four files ….gz, as Debian's package dataset-fashion-mnist has them in
/usr/share/datasets/fashion-mnist.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import lmdb
import numpy as np
from numpy.typing import NDArray

from blobfeed.caffe import io

_DEBIAN = "/usr/share/datasets/fashion-mnist"
_AT_ONCE = 1000


def read(path: Path, header: int) -> NDArray[np.uint8]:
    """The numbers behind the `header` bytes of an IDX file."""
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)


def write(folder: Path, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> None:
    """`images`: (samples, channels, height, width). The keys count the samples."""
    with lmdb.open(str(folder), map_size=1 << 30) as database:
        for first in range(0, len(images), _AT_ONCE):
            with database.begin(write=True) as transaction:
                for nth in range(first, min(first + _AT_ONCE, len(images))):
                    datum = io.array_to_datum(images[nth], int(labels[nth]))
                    transaction.put(f"{nth:08}".encode(), datum.SerializeToString())


def main(source: Path, target: Path) -> None:
    for name, prefix in (("train", "train"), ("test", "t10k")):
        images = read(source / f"{prefix}-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)
        write(target / f"fashion_{name}_lmdb", images, read(source / f"{prefix}-labels-idx1-ubyte.gz", 8))
        print(f"fashion_{name}_lmdb: {len(images)} samples")


if __name__ == "__main__":
    main(Path((sys.argv[1:] or [_DEBIAN])[0]), Path(__file__).parent)
