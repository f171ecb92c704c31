"""`blobfeed pack`: a data set, read once by several processes, into the HDF5 layout that is read fastest.

While it is made the file is called FILE.part. Beside it lies FILE.part.log: a line of JSON says what is packed and
how, then each batch has one with the checksums of its bytes. Packing goes on after the last batch that FILE.part
really holds: what the log says is read back first, since a machine that failed may have left less than was noted. In
the end all is read back by blobfeed's own reader, and compared with the checksums; only then does the file get its
name.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np
import xxhash

from ..readers.batch_reader import BatchReader
from ..sources.file_samples.source import format_of
from ..sources.lmdb.datum import datum_class
from ..sources.stored.hdf5_library import h5py
from ..workers.api import AnyArray, Source, allocate_rows
from ..workers.base import BlobfeedError, ParameterError, SourceError, need
from ..workers.plan import usable_cores
from .decoding import decode
from .found import COLOR_ATTRIBUTE, Found, has_colors, in_yaml
from .written import writing

Compression = Literal["none", "gzip", "lz4", "zstd"]
Progress = Callable[[str, int, int], None]
"""A function that gets the step ("packing", "checking"), the number of samples done and of all."""

_BATCH_BYTES = 8 << 20
_MOST_ROWS = 1024
_CHUNK_BYTES = 64 << 10
_SMALL_CHUNK_BYTES = 4 << 10
_LARGEST_CHUNK = (1 << 32) - 1
"""Bytes: the HDF5 library takes no larger chunk."""

_GZIP_LEVEL = 4
_RECORDS_AT_ONCE = 256
_EACH_SAMPLE_ONCE: Any = {"epochs": 1, "rank": 0, "world_size": 1}
"""For a reader, also in a job whose processes have RANK and WORLD_SIZE."""

_LARGEST_LMDB = 1 << 42
"""Bytes that the database may grow to: LMDB reserves addresses for them, and no room on the disk."""


@dataclass(frozen=True)
class Layout:
    """The storage of the data set. `chunk`: samples in a chunk, 0 for contiguous (compressed: for about 64 kB).

    `uint8`: tops of whole numbers from 0 to 255 that are stored as such. `size`: height and width for pictures.
    """

    chunk: int = 0
    compression: Compression = "none"
    uint8: tuple[str, ...] = ()
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class Packed:
    """The result: `resumed` samples were there from an earlier run, `seconds` the others took; `tops`: of a .h5."""

    samples: int
    resumed: int
    seconds: float
    bytes: int
    tops: tuple[str, ...] = ()


def pack(found: Found, target: Path, layout: Layout, *, loaders: int | None = None, progress: Progress) -> Packed:
    """Write the samples of `found` to `target`, in their order; raises ParameterError, SourceError, SampleError."""
    _check_target(target)
    if target.suffix.lower() not in (".h5", ".hdf5"):
        raise ParameterError(
            f"{target}: arrays are packed into HDF5: name a file that ends in .h5 or .hdf5, "
            "or in lmdb for pictures as they are encoded"
        )
    size = layout.size
    if size is not None and _resizes(found):
        found, size = _resized(found, *size), None
    with closing(found.open()) as source:
        hook = partial(decode, layout.uint8, size) if layout.uint8 or size else None
        _check_tops(source, layout)
        sample_bytes = sum(spec.nbytes for spec in source.specs.values())
        usual = max(1, _CHUNK_BYTES // max(1, sample_bytes)) if layout.compression != "none" else 0
        layout = replace(layout, chunk=min(layout.chunk or usual, len(source)))
        rows = max(1, min(_MOST_ROWS, _BATCH_BYTES // max(1, sample_bytes)))
        if layout.chunk:  # a batch is whole chunks
            rows = max(1, rows // layout.chunk) * layout.chunk
        loaders = usable_cores() if loaders is None else loaders
        with BatchReader(source, decode=hook, batch_size=rows, num_loaders=loaders, **_EACH_SAMPLE_ONCE) as reader:
            _check_specs(reader)
            _check_chunk(reader, layout)
            part = target.with_name(f"{target.name}.part")
            what = {"source": source.fingerprint(), "layout": asdict(layout), "rows": rows}
            with _alone(part.with_name(f"{part.name}.log"), target):  # HDF5 locks the part itself
                return _Packing(reader, part, json.dumps(what), layout, found).finish(target, progress)


def _check_target(target: Path) -> None:
    if target.exists():
        raise ParameterError(f"{target} is there already: name another file, or remove it")
    if not target.parent.is_dir():
        raise ParameterError(f"{target}: there is no folder {target.parent}: make it, or name another one")


@contextmanager
def _alone(held: Path, target: Path) -> Iterator[None]:
    """Lock the file `held`: two runs at a time would ruin what they write. Raises ParameterError."""
    with writing(target):
        file = held.open("ab")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if isinstance(error, BlockingIOError):  # any other is of a file system without locks
                raise ParameterError(
                    f"{target} is being packed by another run: wait until that has ended, or name another file"
                ) from None
        _check_target(target)  # the other run may have ended just now
        yield


def _resizes(found: Found) -> bool:
    """Return true if the source can resize the pictures while it decodes them, which is faster.

    With a `shorter_side` it has to: a hook would enlarge pictures again that the source has reduced.
    """
    options = found.declared[found.kind]
    kept = ("shorter_side", *(("equal_sizes", "max_height") if found.kind == "files" else ()))
    return isinstance(options, Mapping) and (found.kind == "image_list" or any(name in options for name in kept))


def _resized(found: Found, height: int, width: int) -> Found:
    sizes = ("shorter_side", "max_height", "max_width", "equal_sizes")
    kept = {name: value for name, value in found.declared[found.kind].items() if name not in sizes}
    return replace(found, declared={found.kind: {**kept, "new_height": height, "new_width": width}})


def _check_tops(source: Source, layout: Layout) -> None:
    if layout.size is not None:
        need("cv2", "--resize")
    if layout.size is not None and "data" not in source.specs:
        raise ParameterError(f"--resize is for pictures, the top 'data', and the tops are {', '.join(source.specs)}")
    if wrong := [top for top in layout.uint8 if top not in source.specs]:
        raise ParameterError(f"--uint8 names {wrong[0]!r}, and the tops are {', '.join(source.specs)}")


def _check_specs(reader: BatchReader) -> None:
    for top, spec in reader.specs.items():
        if spec.varies:
            is_picture = spec.dtype == np.uint8 and len(spec.shape) == 3
            advice = (
                "give --resize HEIGHTxWIDTH, or keep pictures as they are encoded, by a target that ends in lmdb"
                if is_picture
                else "store them at one size, or leave them out by --tops"
            )
            raise SourceError(
                f"the samples of {top!r} differ in size ({spec}), and an array in a file has one size: {advice}"
            )
        if spec.dtype.kind == "U":
            raise SourceError(
                f"{top!r} holds text of type {spec.dtype.str}, and HDF5 has no such type: store it as bytes, "
                'np.char.encode(text, "utf-8"), or leave it out by --tops'
            )


def _check_chunk(reader: BatchReader, layout: Layout) -> None:
    top = max(reader.specs, key=lambda name: reader.specs[name].nbytes)
    largest = _LARGEST_CHUNK // max(1, reader.specs[top].nbytes)
    if layout.chunk > largest:
        advice = f"give at most {largest}" if largest else "leave out --chunk and --compression"
        raise ParameterError(f"--chunk {layout.chunk}: a chunk of {top!r} would have 4 GiB or more: {advice}")


class _Packing:
    """A file that is being written. `what`: a line that says what is packed, and how."""

    def __init__(self, reader: BatchReader, part: Path, what: str, layout: Layout, found: Found) -> None:
        self._reader, self._part, self._what, self._layout, self._found = reader, part, what, layout, found
        self._log = part.with_name(f"{part.name}.log")
        self._samples = reader.samples
        self._rows = reader.parameters.batch_size
        self._tops = tuple(reader.specs)
        noted = self._log.read_text().splitlines() if self._log.exists() and part.exists() else []
        self._sums: list[list[str]] = []
        """The checksums of the batches that the file is said to have."""
        if noted[:1] == [what]:
            self._sums = [json.loads(line) for line in noted[1:] if line.endswith("]")]

    def finish(self, target: Path, progress: Progress) -> Packed:
        begun = time.monotonic()
        del self._sums[self._sound_batches(progress, "looking at what is there") if self._sums else 0 :]
        if not self._sums:
            _create(self._part, self._reader, self._layout, self._found)
        resumed = min(len(self._sums) * self._rows, self._samples)
        try:
            with self._log.open("w", buffering=1) as log:
                log.writelines([f"{self._what}\n", *(f"{json.dumps(sums)}\n" for sums in self._sums)])
                self._append(log, resumed, progress)
        except (BlobfeedError, BrokenPipeError):  # some are OSErrors, and not of this file
            raise
        except OSError as error:  # the HDF5 library's own text has buffers and offsets
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise ParameterError(
                f"{self._part} cannot be written: {reason}: remove the cause and run the command again"
            ) from None
        if (sound := self._sound_batches(progress, "checking")) < len(self._sums):
            raise SourceError(
                f"{self._part}: samples {sound * self._rows:,} and following are not read back as they were written: "
                "the disk is damaged or full; run the command again, it goes on there"
            )
        self._part.rename(target)
        self._log.unlink()
        return Packed(self._samples, resumed, time.monotonic() - begun, target.stat().st_size, self._tops)

    def _append(self, log: TextIO, resumed: int, progress: Progress) -> None:
        if resumed == self._samples:
            return
        self._reader.load_state_dict({**self._reader.state_dict(), "position": resumed})
        row = resumed
        with h5py.File(self._part, "r+") as file, ThreadPoolExecutor(usable_cores()) as pool:
            progress("packing", row, self._samples)
            for batch in self._reader:
                for top in self._tops:
                    _put(file[top], row, batch[top], self._layout, pool)
                file.flush()  # to the kernel, not to the disk
                self._sums.append(_sums(batch, self._tops))
                log.write(json.dumps(self._sums[-1]) + "\n")
                row += batch.rows
                progress("packing", row, self._samples)

    def _sound_batches(self, progress: Progress, step: str) -> int:
        """Return the number of the first batches that the file really has."""
        given: Any = {"tops": self._tops, "num_loaders": self._reader.parameters.num_loaders, **_EACH_SAMPLE_ONCE}
        try:
            with BatchReader({"hdf5": {"path": str(self._part)}}, batch_size=self._rows, **given) as reader:
                for number, batch in enumerate(reader):
                    if number == len(self._sums) or _sums(batch, self._tops) != self._sums[number]:
                        return number
                    progress(step, min((number + 1) * self._rows, self._samples), self._samples)
        except (BlobfeedError, OSError):
            return 0  # killed in the middle of a write, HDF5 may leave a file that cannot be opened
        return len(self._sums)


def _sums(batch: Mapping[str, AnyArray], tops: Sequence[str]) -> list[str]:
    return [xxhash.xxh3_64_hexdigest(np.ascontiguousarray(batch[top]).view(np.uint8).data) for top in tops]


# ---- the file


def _create(part: Path, reader: BatchReader, layout: Layout, found: Found) -> None:
    with writing(part), h5py.File(part, "w") as file:
        file.attrs["packed_from"] = in_yaml(dict(found.declared))
        if has_colors(reader.specs) and found.color:
            file.attrs[COLOR_ATTRIBUTE] = found.color
        for top, spec in reader.specs.items():
            storage = {}
            if layout.chunk:
                # A chunk for every few labels would be a great many chunks of a few bytes.
                small = spec.nbytes * layout.chunk < _SMALL_CHUNK_BYTES
                chunk = reader.parameters.batch_size if small else layout.chunk
                storage = {"chunks": (min(chunk, reader.samples), *spec.shape), **_filters(layout.compression)}
            file.create_dataset(top, (reader.samples, *spec.shape), spec.dtype, **storage)


def _filters(compression: Compression) -> dict[str, Any]:
    if compression == "none":
        return {}
    if compression == "gzip":
        return {"compression": "gzip", "compression_opts": _GZIP_LEVEL}
    need("hdf5plugin", f"--compression {compression}")
    import hdf5plugin

    # Of a damaged chunk lz4 gives zeros or other values, and no error.
    return {**(hdf5plugin.LZ4() if compression == "lz4" else hdf5plugin.Zstd()), "fletcher32": True}


def _put(dataset: Any, row: int, values: AnyArray, layout: Layout, pool: ThreadPoolExecutor) -> None:
    if layout.compression != "gzip":
        dataset[row : row + len(values)] = values
        return
    # The library would compress on one core. zlib lets go of the interpreter while it works. Every batch but the last
    # one fills its chunks.
    size = dataset.chunks[0]
    chunks = (values[start : start + size] for start in range(0, len(values), size))
    for number, content in enumerate(pool.map(lambda chunk: _compressed(chunk, size), chunks)):
        dataset.id.write_direct_chunk((row + number * size, *(0 for _ in values.shape[1:])), content)


def _compressed(chunk: AnyArray, size: int) -> bytes:
    whole = np.zeros((size, *chunk.shape[1:]), chunk.dtype)  # the last chunk of a file is stored whole, too
    whole[: len(chunk)] = chunk
    return zlib.compress(whole.data, _GZIP_LEVEL)


# ---- pictures that stay encoded, in one file instead of many


def pack_encoded(found: Found, target: Path, progress: Progress) -> Packed:
    """Write the files of pictures, listed or not, into an LMDB of Caffe's Datum records; goes on if it was interrupted.

    All records are read back and compared with the files. Raises ParameterError, SourceError.
    """
    need("lmdb", f"{target}")
    given = found.declared[found.kind]
    options = given if isinstance(given, Mapping) else {}  # `open` refuses anything else
    source: Any = found.open()
    are_pictures = found.kind == "files" and "pictures" in (options.get("format"), format_of(source.where(0)))
    if found.kind != "image_list" and not are_pictures:
        raise ParameterError(
            f"{target}: only files of pictures are kept as they are encoded, and this is {found.kind}: name a .h5 file"
        )
    if lost := next((name for name in ("exif", "new_height") if options.get(name)), ""):
        raise ParameterError(
            f"{target}: an LMDB keeps files as they are, so {lost} would be lost: leave it out, or name a .h5 file"
        )
    _check_target(target)
    import lmdb

    begun = time.monotonic()
    labels, samples = _whole_labels(source), len(source)
    part = target.with_name(f"{target.name}.part")
    try:
        with _alone(part, target):
            with lmdb.open(str(part), subdir=False, map_size=_LARGEST_LMDB, lock=False) as environment:
                resumed = _put_records(environment, source, labels, part, progress)
            part.rename(target)
    except lmdb.Error as error:
        raise ParameterError(f"{part} cannot be written: {error}: name another file, or remove the cause") from None
    return Packed(samples, resumed, time.monotonic() - begun, target.stat().st_blocks * 512)


def _put_records(environment: Any, source: Any, labels: Sequence[int | None], part: Path, progress: Progress) -> int:
    """Return the number of records that were there before. All are read back."""
    resumed, samples = environment.stat()["entries"], len(source)
    if resumed > samples:
        raise SourceError(
            f"{part} holds {resumed:,} records of an earlier run, and there are {samples:,} samples: "
            f"remove {part}, and start again"
        )
    for start in range(resumed, samples, _RECORDS_AT_ONCE):
        end = min(start + _RECORDS_AT_ONCE, samples)
        with environment.begin(write=True) as transaction:
            for index in range(start, end):
                transaction.put(_key(index), _record(source, index, labels[index]), append=True)
        progress("packing", end, samples)
    with environment.begin() as transaction:
        for index in range(samples):
            if transaction.get(_key(index)) != _record(source, index, labels[index]):
                raise SourceError(
                    f"{part}: record {index} is not {source.where(index)}: remove {part}, and start again"
                )
            progress("checking", index + 1, samples)
    return int(resumed)


def _whole_labels(source: Source) -> list[int | None]:
    if "label" not in source.specs:
        return [None] * len(source)
    rows = allocate_rows({"label": source.specs["label"]}, len(source))
    source.read(np.arange(len(source)), rows)
    labels = np.asarray(rows["label"])
    with np.errstate(invalid="ignore"):
        whole = labels.astype(np.int32)
    if labels.ndim != 1 or (labels != whole).any():
        raise ParameterError(
            "a Datum record has one label, a whole number of 32 bits: pack the pictures into a .h5 file instead"
        )
    return list(whole.tolist())


def _key(index: int) -> bytes:
    return b"%010d" % index


def _record(source: Any, index: int, label: int | None) -> bytes:
    datum: Any = datum_class()(data=source.record("data", index), encoded=True, label=label)
    return bytes(datum.SerializeToString())
