"""LMDB databases of Datum records, as Caffe's tools write them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import lmdb
import numpy as np
from blobfeed.sources.lmdb.datum import datum_class
from blobfeed.workers.api import AnyArray
from numpy.typing import NDArray


def raw_datum(image: NDArray[np.uint8], label: int = 0) -> bytes:
    """`image`: shape (channels, height, width)."""
    channels, height, width = image.shape
    datum = datum_class()(channels=channels, height=height, width=width, data=image.tobytes(), label=label)
    return bytes(datum.SerializeToString())


def float_datum(values: AnyArray, label: int = 0) -> bytes:
    """`values`: shape (channels, height, width)."""
    channels, height, width = values.shape
    numbers = values.ravel().tolist()
    datum = datum_class()(channels=channels, height=height, width=width, float_data=numbers, label=label)
    return bytes(datum.SerializeToString())


def encoded_datum(content: bytes, label: int = 0) -> bytes:
    return bytes(datum_class()(data=content, label=label, encoded=True).SerializeToString())


def write_lmdb(path: Path, records: Iterable[bytes], *, subdir: bool = True) -> Path:
    """A database with `records` under the keys 00000000, 00000001, … Closed, and without its lock file."""
    environment = lmdb.open(str(path), subdir=subdir, map_size=1 << 30, lock=False)
    with environment, environment.begin(write=True) as transaction:
        for number, record in enumerate(records):
            transaction.put(b"%08d" % number, record)
    return path
