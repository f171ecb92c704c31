"""`blobfeed pack LIST FILE.lmdb`: pictures as they are encoded, in one file instead of many."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from ..workers.base.errors import ParameterError, SourceError
from ..workers.base.extras import need
from ..workers.base.source import Source
from ..workers.base.specs import allocate_rows
from ..workers.sources.lmdb.datum import datum_class
from .packing import Packed, Told
from .recognise import Found

_AT_ONCE = 256
_LARGEST = 1 << 42
"""Bytes that the database may grow to: LMDB reserves addresses for them, and no room on the disk."""


def pack_encoded(found: Found, target: Path, told: Told) -> Packed:
    """Write the files that an image list names into an LMDB of Caffe's Datum records; goes on if it was interrupted.

    All records are read back and compared with the files. Raises ParameterError, SourceError.
    """
    need("lmdb", f"{target}")
    if found.kind != "image_list":
        raise ParameterError(
            f"{target}: only listed image files are kept as they are encoded, and this is {found.kind}: name a .h5 file"
        )
    if target.exists():
        raise ParameterError(f"{target} is there already: name another file, or remove it")
    import lmdb

    from ..workers.sources.images.source import ImageListSource

    begun = time.monotonic()
    source = ImageListSource(dict(found.declared["image_list"]))
    labels, samples = _whole_labels(source), len(source)
    part = target.with_name(f"{target.name}.part")
    with lmdb.open(str(part), subdir=False, map_size=_LARGEST, lock=False) as environment:
        resumed = environment.stat()["entries"]
        for start in range(resumed, samples, _AT_ONCE):
            end = min(start + _AT_ONCE, samples)
            with environment.begin(write=True) as transaction:
                for index in range(start, end):
                    transaction.put(_key(index), _record(source.content(index), labels[index]), append=True)
            told("packing", end, samples)
        with environment.begin() as transaction:
            for index in range(samples):
                if transaction.get(_key(index)) != _record(source.content(index), labels[index]):
                    raise SourceError(
                        f"{part}: record {index} is not {source.where(index)}: remove {part}, and start again"
                    )
                told("checking", index + 1, samples)
    part.rename(target)
    return Packed(samples, resumed, time.monotonic() - begun, target.stat().st_blocks * 512)


def _whole_labels(source: Source) -> list[int | None]:
    if "label" not in source.specs:
        return [None] * len(source)
    rows = allocate_rows({"label": source.specs["label"]}, len(source))
    source.read(np.arange(len(source)), rows)
    labels = np.asarray(rows["label"])
    if labels.ndim != 1 or (labels != np.floor(labels)).any():
        raise ParameterError("a Datum record has one label, a whole number: pack the pictures into a .h5 file instead")
    whole: list[int | None] = labels.astype(np.int64).tolist()
    return whole


def _key(index: int) -> bytes:
    return b"%010d" % index


def _record(content: bytes, label: int | None) -> bytes:
    datum: Any = datum_class()(data=content, encoded=True)
    if label is not None:
        datum.label = label
    return bytes(datum.SerializeToString())
