"""HDF5 files with damaged bytes, wherever those are: read as far as possible, or a SourceError that names the file."""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.workers.base.errors import BlobfeedError

from tests.support.stored import opened, rows_of

SAMPLES = 20
FILES = 10
VALUES = np.arange(SAMPLES * 12, dtype=np.float32).reshape(SAMPLES, 3, 4)
_MOST_BYTES = 1 << 24


def _dataset(**options: Any) -> Callable[[h5py.File], None]:
    def write(file: h5py.File) -> None:
        file.create_dataset("data", **({"data": VALUES} | options))
        file["label"] = np.arange(SAMPLES)

    return write


def _samples(file: h5py.File) -> None:
    for number, value in enumerate(VALUES):
        file[f"trajectory_{number}"] = value
        file[f"trajectory_{number}"].attrs["label"] = number


KINDS = {
    "contiguous": _dataset(),
    "gzip": _dataset(chunks=(4, 3, 4), compression="gzip", fletcher32=True),
    "lzf": _dataset(chunks=(4, 3, 4), compression="lzf"),
    "words": _dataset(data=[f"word {number}" for number in range(SAMPLES)], dtype=h5py.string_dtype()),
    "enumeration": _dataset(data=np.arange(SAMPLES) % 3, dtype=h5py.enum_dtype({"a": 0, "b": 1, "c": 2})),
    "samples": _samples,
}


# Not a group of samples in the newest format: if it is damaged, HDF5 1.14.6 itself crashes when it lists the members.
@pytest.mark.parametrize(
    ("kind", "newest"),
    [(kind, newest) for kind in KINDS for newest in (False, True) if kind != "samples" or not newest],
)
def test_damaged_bytes_are_an_error_that_names_the_file(kind: str, newest: bool, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "whole.h5", "w", libver="latest" if newest else "earliest") as file:
        KINDS[kind](file)
    whole, rng, path = (tmp_path / "whole.h5").read_bytes(), random.Random(kind), tmp_path / "damaged.h5"
    told = []
    for _ in range(FILES):
        damaged = bytearray(whole)
        for _ in range(rng.choice((1, 3, 20))):
            damaged[rng.randrange(len(damaged))] = rng.choice((0, 255, rng.randrange(256)))
        path.write_bytes(damaged)
        told.append(_in_a_fork(lambda: _read("hdf5_samples" if kind == "samples" else "hdf5", path)))
    assert [words for words in told if words not in ("", "named")] == []
    assert "named" in told


def _read(kind: str, path: Path) -> str:
    """What happens: nothing, an error of ours that names the file, or the traceback of another one."""
    try:
        source = opened(kind, path.parent, ["data", "label"], path=path.name)
        if sum(spec.nbytes for spec in source.specs.values()) < _MOST_BYTES:
            rows_of(source, range(min(len(source), SAMPLES)))
    except BlobfeedError as error:
        return "named" if path.name in str(error) else str(error)
    except Exception:
        return traceback.format_exc()
    return ""


def _in_a_fork(function: Callable[[], str]) -> str:
    """What `function` returns: a damaged file can leave the HDF5 library unable to read any other one."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, function().encode()[-4000:])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return said if status == 0 else f"the process ended with {status}: {said}"
