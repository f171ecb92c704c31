"""Each format in a thousand damaged copies: no crash, no hang, no raw exception.

Each copy either reads as something or is refused with an error of blobfeed's own that names the file. A target runs in
a fork of its own, with limited memory, which says before each copy which one it is: a crash and a hang are seen.
"""

from __future__ import annotations

import logging
import os
import random
import resource
import select
import signal
import sys
import tarfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import h5py  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import zarr
from blobfeed.readers.delivery import load_mean_file
from blobfeed.sources import open_source
from blobfeed.sources.cache import CachedSource
from blobfeed.workers.api import allocate_rows

from blobfeed import BlobfeedError, Source
from tests.support.datums import raw_datum, write_lmdb

from .figures import Figure
from .scale import Scale

_STUDY = "damaged files"
_MEMORY = 2 << 30
"""More than a small file may need: a size in it that is believed shows."""

_PATIENCE_S = 20.0
_WIDE = (b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0" * 8, b"\xff" * 8, b"-1", b"99999999999999999999", b"nan", b"\n", b"(")


# ---- the formats


@dataclass(frozen=True)
class Target:
    """`make` writes the files and returns the one to be damaged; `read` reads all there is.

    `most`: so many bytes are damaged, the first ones or, if `at_end`, the last ones.
    `alone`: each copy has a fork of its own, since one can leave a library unable to read any other.
    """

    make: Callable[[Path], Path]
    read: Callable[[Path], None]
    most: int = 1 << 20
    at_end: bool = False
    alone: bool = False


def _read_all(source: Source) -> None:
    try:
        for index in range(min(len(source), 20)):
            source.read(np.array([index]), allocate_rows(source.specs, 1))
    finally:
        source.close()


def _make_npy(folder: Path) -> Path:
    np.save(folder / "a.npy", np.arange(60, dtype=np.float32).reshape(5, 3, 4))
    return folder / "a.npy"


def _read_npy(path: Path) -> None:
    _read_all(open_source({"npy": {"data": str(path)}}, tops=None, base_dir=path.parent))


def _written(kind: str, name: str, write: Callable[[Path], object], **how: Any) -> Target:
    """A source whose option `path` is what `write` writes to a file of this name."""

    def make(folder: Path) -> Path:
        (folder / name).unlink(missing_ok=True)
        write(folder / name)
        return folder / name

    def read(path: Path) -> None:
        _read_all(open_source({kind: {"path": str(path)}}, tops=None, base_dir=path.parent))

    return Target(make, read, **how)


_LABELS = np.arange(60)


def _table() -> pa.Table:
    words = [f"word {number}" for number in range(60)]
    lists = pa.array([[number] * (number % 3) for number in range(60)])
    return pa.table({"label": _LABELS, "words": words, "lists": lists})


def _write_arrow(path: Path) -> None:
    with pa.ipc.new_file(path, _table().schema) as file:
        file.write_table(_table(), max_chunksize=20)


def _write_tar(path: Path) -> None:
    np.save(path.parent / "x.npy", _LABELS)
    with tarfile.open(path, "w") as tar:
        for number in range(3):
            tar.add(path.parent / "x.npy", f"{number}.npy")


def _write_datums(path: Path) -> None:
    write_lmdb(path, [raw_datum(np.zeros((1, 2, 2), np.uint8), number) for number in range(5)], subdir=False)


def _make_idx(folder: Path) -> Path:
    (folder / "a.idx").write_bytes(b"\0\0\x08\x03" + np.array([5, 2, 2], ">u4").tobytes() + bytes(20))
    return folder / "a.idx"


def _read_idx(path: Path) -> None:
    _read_all(open_source({"idx": {"data": str(path)}}, tops=None, base_dir=path.parent))


def _zarr(name: str, **how: Any) -> Target:
    def make(folder: Path) -> Path:
        zarr.create_array(folder / "a.zarr", data=_VALUES, chunks=(4, 3, 4), **how)
        return folder / "a.zarr" / name

    def read(path: Path) -> None:
        source = open_source({"zarr": {"path": str(path.parent)}}, tops=("data",), base_dir=path.parent)
        if sum(spec.nbytes for spec in source.specs.values()) < 1 << 24:  # there is no memory for more
            _read_all(source)

    return Target(make, read)


def _make_list(folder: Path) -> Path:
    cv2.imwrite(str(folder / "p.png"), np.zeros((4, 5, 3), np.uint8))
    path = folder / "list.txt"
    path.write_text("# pictures\n" + "p.png 3 0.5\n" * 4 + "\np.png -7 1e3\n")
    return path


def _read_list(path: Path) -> None:
    options = {"path": str(path), "max_height": 8, "max_width": 8}
    _read_all(open_source({"image_list": options}, tops=None, base_dir=path.parent))


def _make_table(folder: Path) -> Path:
    for name in "ab":
        (folder / f"{name}.bin").write_bytes(b"content")
    path = folder / "labels.csv"
    path.write_text('path,label\na.bin,3\n"b.bin",5\n')
    return path


def _read_table(path: Path) -> None:
    _read_all(open_source({"files": {"path": "?.bin", "labels": path.name}}, tops=None, base_dir=path.parent))


_ENTRY = b"\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00"
"""The tag of the orientation, a short, one of them: 6, a quarter turn."""


def _make_exif(folder: Path) -> Path:
    _, jpeg = cv2.imencode(".jpg", np.arange(108, dtype=np.uint8).reshape(6, 6, 3))
    tiff = b"MM\0*\0\0\0\x08" + b"\0\x02" + b"\x01\x0f\x00\x03\x00\x00\x00\x01\x00\x01\x00\x00" + _ENTRY + b"\0" * 4
    block = b"Exif\0\0" + tiff
    content = jpeg.tobytes()
    path = folder / "e.jpg"
    path.write_bytes(content[:2] + b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block + content[2:])
    (folder / "jpegs.txt").write_text("e.jpg 1\n")
    return path


def _read_exif(path: Path) -> None:
    options = {"path": str(path.parent / "jpegs.txt"), "max_height": 8, "max_width": 8, "exif": True}
    _read_all(open_source({"image_list": options}, tops=None, base_dir=path.parent))


def _make_binaryproto(folder: Path) -> Path:
    """num, channels, height, width, and twelve packed floats."""
    numbers = np.arange(12, dtype="<f4").tobytes()
    path = folder / "mean.binaryproto"
    path.write_bytes(b"\x08\x01\x10\x03\x18\x02\x20\x02\x2a" + bytes([len(numbers)]) + numbers)
    return path


def _make_npy_mean(folder: Path) -> Path:
    np.save(folder / "mean.npy", np.zeros((3, 2, 2), np.float32))
    return folder / "mean.npy"


def _read_mean(path: Path) -> None:
    load_mean_file(path)


def _make_cache(folder: Path) -> Path:
    np.save(folder / "cached.npy", np.arange(60, dtype=np.float32).reshape(5, 3, 4))
    _read_npy_cached(folder)
    (database,) = (folder / "a.cache").glob("*/data.mdb")
    return database


def _read_cache(path: Path) -> None:
    """What the cache gives has to be right: it may be thrown away and made anew, and it may not be believed."""
    _read_npy_cached(path.parents[2])


def _read_npy_cached(folder: Path) -> None:
    source = open_source({"npy": {"data": "cached.npy"}}, tops=None, base_dir=folder)
    cached = CachedSource(source, folder / "a.cache", 1 << 20)
    out = allocate_rows(cached.specs, 5)
    try:
        cached.read(np.arange(5), out)
    finally:
        cached.close()
    np.testing.assert_array_equal(out["data"], np.load(folder / "cached.npy"))


def _make_index(folder: Path) -> Path:
    _read_samples(_make_samples(folder))
    (path,) = (folder / "cache" / "blobfeed").iterdir()
    return path


def _read_index(path: Path) -> None:
    _read_samples(path.parents[2] / "s.h5")


_VALUES = np.arange(240, dtype=np.float32).reshape(20, 3, 4)
_CHUNKS: dict[str, Any] = {"chunks": (4, 3, 4)}


def _hdf5(*, newest: bool, **options: Any) -> Target:
    """Data sets that the HDF5 library is asked about: there is no second opinion on what it makes of them."""

    def make(folder: Path) -> Path:
        with h5py.File(folder / "a.h5", "w", libver="latest" if newest else "earliest") as file:
            file.create_dataset("data", **{"data": _VALUES, **options})
            file["label"] = np.arange(len(_VALUES))
        return folder / "a.h5"

    def read(path: Path) -> None:
        source = open_source({"hdf5": {"path": path.name}}, tops=("data", "label"), base_dir=path.parent)
        if sum(spec.nbytes for spec in source.specs.values()) < 1 << 24:  # there is no memory for more
            _read_all(source)

    return Target(make, read, alone=True)


def _make_samples(folder: Path) -> Path:
    with h5py.File(folder / "s.h5", "w") as file:
        for number, value in enumerate(_VALUES):
            file[f"sample_{number}"] = value
            file[f"sample_{number}"].attrs["label"] = number
    return folder / "s.h5"


def _read_samples(path: Path) -> None:
    options = {"path": path.name, "labels": ["label"]}
    _read_all(open_source({"hdf5_samples": options}, tops=None, base_dir=path.parent))


_HDF5: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "gzip": {**_CHUNKS, "compression": "gzip", "fletcher32": True},
    "lzf": {**_CHUNKS, "compression": "lzf"},
    "words": {"data": [f"word {number}" for number in range(len(_VALUES))], "dtype": h5py.string_dtype()},
    "enumeration": {"data": np.arange(len(_VALUES)) % 3, "dtype": h5py.enum_dtype({"a": 0, "b": 1, "c": 2})},
}

TARGETS = {
    **{f"hdf5 {name}": _hdf5(newest=False, **options) for name, options in _HDF5.items()},
    # Words not: of a hundred damaged copies the HDF5 library itself (1.14.6) reads two without end.
    **{
        f"hdf5 {name}, newest format": _hdf5(newest=True, **options)
        for name, options in _HDF5.items()
        if name != "words"
    },
    # Not in the newest format: if a group is damaged there, HDF5 1.14.6 itself crashes when it lists the members.
    "hdf5_samples": Target(_make_samples, _read_samples, alone=True),
    "parquet footer": _written(
        "parquet", "a.parquet", lambda path: pq.write_table(_table(), path, row_group_size=20), most=1500, at_end=True
    ),
    "arrow file": _written("parquet", "a.arrow", _write_arrow),
    "tar": _written("tar", "a.tar", _write_tar, most=4096),
    "npz": _written("npz", "a.npz", lambda path: np.savez(path, data=_LABELS)),
    "files npz": _written("files", "a.npz", lambda path: np.savez(path, data=_LABELS, label=3)),
    "files npz, compressed": _written("files", "a.npz", lambda path: np.savez_compressed(path, data=_LABELS)),
    "files npy header": _written("files", "a.npy", lambda path: np.save(path, _VALUES), most=128),
    "files table": Target(_make_table, _read_table),
    "idx header": Target(_make_idx, _read_idx, most=16),
    "lmdb": _written("lmdb", "a.lmdb", _write_datums, most=8192, alone=True),
    "zarr 2 metadata": _zarr(".zarray", zarr_format=2),
    "zarr 3 metadata": _zarr("zarr.json", zarr_format=3),
    "zarr shards": _zarr("zarr.json", shards=(8, 3, 4)),
    "npy header": Target(_make_npy, _read_npy, most=128),
    "image list": Target(_make_list, _read_list),
    "EXIF block": Target(_make_exif, _read_exif, most=70),
    "binaryproto mean": Target(_make_binaryproto, _read_mean),
    "npy mean": Target(_make_npy_mean, _read_mean, most=128),
    "decoded cache": Target(_make_cache, _read_cache),
    "hdf5_samples index": Target(_make_index, _read_index),
}


# ---- damage


def damaged(content: bytes, most: int, rng: random.Random) -> bytes:
    """One to four changes, in the first `most` bytes."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(min(most, len(changed)) or 1)
        _CHANGES[rng.randrange(len(_CHANGES))](changed, at, rng)
    return bytes(changed)


def _flip(content: bytearray, at: int, rng: random.Random) -> None:
    if content:
        content[at] ^= 1 << rng.randrange(8)


def _set(content: bytearray, at: int, rng: random.Random) -> None:
    content[at : at + 1] = bytes([rng.randrange(256)])


def _widen(content: bytearray, at: int, rng: random.Random) -> None:
    value = rng.choice(_WIDE)
    content[at : at + len(value)] = value


def _insert(content: bytearray, at: int, rng: random.Random) -> None:
    content[at:at] = rng.choice([*_WIDE, rng.randbytes(rng.randint(1, 40))])


def _remove(content: bytearray, at: int, rng: random.Random) -> None:
    del content[at : at + rng.randint(1, 30)]


def _repeat(content: bytearray, at: int, rng: random.Random) -> None:
    content[at:at] = content[at : at + rng.randint(1, 60)]


def _cut(content: bytearray, at: int, _rng: random.Random) -> None:
    del content[at:]


def _digit(content: bytearray, at: int, rng: random.Random) -> None:
    """The next digit, if there is one, becomes another character of those that headers are made of."""
    place = next((place for place in range(at, len(content)) if 48 <= content[place] <= 57), None)
    if place is not None:
        content[place] = rng.choice(b"0123456789-+.,e()'\"[]{} L")


_CHANGES = (_flip, _set, _widen, _insert, _remove, _repeat, _cut, _digit)


# ---- in a fork of its own


def _try_each(name: str, folder: Path, seed: int, copies: range, say: Callable[[str], object]) -> None:
    """Say the number of each copy before it is read, and behind it how that ended if that is wrong."""
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    logging.disable()  # that a damaged index is made again
    target = TARGETS[name]
    path = target.make(folder)
    content = path.read_bytes()
    resource.setrlimit(resource.RLIMIT_AS, (_virtual_memory() + _MEMORY,) * 2)
    for number in copies:
        cut = max(0, len(content) - target.most) if target.at_end else 0
        harm = damaged(content[cut:], target.most, random.Random(f"{seed} {name} {number}"))
        path.parent.mkdir(exist_ok=True)  # a cache that was damaged is removed
        path.write_bytes(content[:cut] + harm)
        say(f"{number}\n")
        wrong = what_is_wrong(target, path)
        if wrong:
            say(f"wrong {wrong}\n")


def what_is_wrong(target: Target, path: Path) -> str:
    try:
        target.read(path)
    except BlobfeedError as error:
        return "" if path.name in str(error) else f"the error does not name the file: {error}"
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}".replace("\n", " ")
    return ""


def _virtual_memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


# ---- the study


def wrong_copies(name: str, folder: Path, seed: int, count: int) -> Iterator[str]:
    """Yield what is wrong with the copies of one format, a line each."""
    first = 0
    while first < count:
        copies = range(first, first + 1 if TARGETS[name].alone else count)
        last, lines = _one_process(name, folder, seed, copies)
        yield from lines
        first = last + 1


def _one_process(name: str, folder: Path, seed: int, copies: range) -> tuple[int, list[str]]:
    """Return the last copy that was tried, and what was wrong."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # libraries have threads, which are not in the fork
        child = os.fork()
    if not child:
        try:
            _try_each(name, folder, seed, copies, lambda text: os.write(writing, text.encode()))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    said, hung = b"", False
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while True:
            if not select.select([pipe], [], [], _PATIENCE_S)[0]:
                hung = True
                os.kill(child, signal.SIGKILL)
            if not (part := pipe.read(1 << 16)):
                break
            said += part
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    number, lines = copies.start - 1, []
    for line in said.decode().splitlines():
        if line.isdigit():
            number = int(line)
        else:
            lines.append(f"{name}, copy {number} of seed {seed}: {line}")
    if not code:
        return copies[-1], lines
    how = "hung" if hung else f"the process ended with {code}"
    return max(number, copies.start), [*lines, f"{name}, copy {number} of seed {seed}: {how}"]


def study(scale: Scale, folder: Path) -> Iterator[Figure]:
    for name, target in TARGETS.items():
        own = folder / f"fuzz {name}"
        own.mkdir()
        count = scale.damaged_files // (10 if target.alone else 1)
        wrong = list(wrong_copies(name, own, scale.seed, count))
        for line in wrong:
            print(line, file=sys.stderr)
        what = f"{name}: {count:,} copies; crashes, hangs and raw exceptions"
        yield Figure(_STUDY, what, len(wrong), 0)
