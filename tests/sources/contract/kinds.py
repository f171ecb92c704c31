"""One writer for each kind of source: the same content as files of that kind, and the samples that must come back."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import struct
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import h5py  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import zarr
from blobfeed.sources import open_source
from blobfeed.workers.api import AnyArray
from hypothesis import strategies as st
from numpy.typing import NDArray
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec

from blobfeed import Source
from tests.support.datums import raw_datum, write_lmdb
from tests.support.object_servers import RangeServer
from tests.support.pictures import encoded
from tests.support.tars import add

SIDE = 6
"""The largest height and width of the content, in pixels."""

FIRST = 9
"""The number of the first file: the order of numbers is not that of the alphabet."""

Sample = Mapping[str, AnyArray]


@dataclass(frozen=True)
class Content:
    """`data`: shape (3, height, width) each, the first one the largest; `labels`: one each, 1 … 255.

    `cuts`: the numbers of those samples that begin another file, in kinds that take several.
    """

    data: Sequence[NDArray[np.uint8]]
    labels: Sequence[int]
    cuts: Sequence[int] = ()

    @property
    def parts(self) -> Iterator[range]:
        """The samples of each file."""
        yield from (range(*edges) for edges in pairwise([0, *self.cuts, len(self.data)]))

    def rows(self, part: range) -> dict[str, AnyArray]:
        """Both tops of these samples, if all have one shape."""
        return {"data": np.stack([self.data[n] for n in part]), "label": np.array([self.labels[n] for n in part])}

    def changed(self, number: int) -> Content:
        """The same content with another sample `number`, which differs by one bit."""
        data = [array.copy() for array in self.data]
        data[number].reshape(-1)[-1] ^= 1
        return Content(data, self.labels, self.cuts)


def content_of(samples: int, *, size: tuple[int, int] = (5, 4), ragged: bool = False, seed: int = 0) -> Content:
    """Random content in two files; `size`: (height, width); if `ragged`, the largest."""
    rng = np.random.default_rng(seed)
    least = (1, 1) if ragged else size
    sizes = [size] + [tuple(rng.integers(least, size, endpoint=True)) for _ in range(samples - 1)]
    data = [rng.integers(0, 256, (3, *each), np.uint8) for each in sizes]
    labels = rng.permutation(np.arange(1, 256))[:samples].tolist()
    return Content(data, labels, (samples // 2,) if samples > 1 else ())


@st.composite
def contents(draw: st.DrawFn, *, ragged: bool = False) -> Content:
    """Content of 1 to 12 samples of any size, in up to four files."""
    samples = draw(st.integers(1, 12))
    size = draw(st.tuples(st.integers(1, SIDE), st.integers(1, SIDE)))
    content = content_of(samples, size=size, ragged=ragged, seed=draw(st.integers(0, 1 << 16)))
    cuts = draw(st.sets(st.integers(1, samples - 1), max_size=3)) if samples > 1 else set()
    return Content(content.data, content.labels, sorted(cuts))


@dataclass(frozen=True)
class Written:
    """`spec`: the parameter `source`. `samples`: by top, each in its own shape. `places`: the answers of `where`.

    `files`: those that hold samples. `checked`: the parts of them, (file, offset, bytes), in which a checksum finds a
    changed bit.
    """

    folder: Path
    spec: Mapping[str, Any]
    samples: Sequence[Sample]
    places: Sequence[str]
    files: Sequence[Path] = ()
    checked: Sequence[tuple[Path, int, int]] = ()

    def on(self, server: RangeServer) -> Mapping[str, Any]:
        """The spec of the same files, put on a server."""
        for path in self.folder.rglob("*"):
            if path.is_file():
                server.objects[str(path.relative_to(self.folder))] = path.read_bytes()
        ((kind, options),) = self.spec.items()
        on_server = {
            name: glob for name, glob in options.items() if isinstance(glob, str) and kind + name != "fileslabels"
        }
        paths = {name: self.folder.glob(glob) for name, glob in on_server.items()}
        ordered = {name: sorted(found, key=lambda path: (len(path.name), path.name)) for name, found in paths.items()}
        urls = {name: [server.url(path.name) for path in found] for name, found in ordered.items()}
        return {kind: {**options, **urls}}

    def open(self, tops: Sequence[str] | None = None, **options: Any) -> Source:
        """The source, with more options than those of `spec`."""
        ((kind, given),) = self.spec.items()
        return open_source({kind: {**given, **options} if options else given}, tops=tops, base_dir=self.folder)


@dataclass(frozen=True)
class Kind:
    """`files` says what becomes of a file that is changed behind the source's back.

    "stamped": the next read refuses it. "closed": the same, once the source was closed. "whole": its content is read as
    it is by then, and refused if it is damaged. "memory": it was read into memory, so nothing changes.
    """

    write: Callable[[Path, Content], Written]
    files: Literal["stamped", "closed", "whole", "memory"]
    ragged: Callable[[Path, Content], Written] | None = None
    """Writes samples whose shapes differ."""
    has_limit: bool = False
    remote: bool = False
    """The files may lie in object storage."""
    named_instead: str = ""
    """The file that an error may name in place of the one that holds the samples."""


def _samples(content: Content, label: str = "int64") -> list[Sample]:
    return [
        {"data": data, "label": np.array(number, label)}
        for data, number in zip(content.data, content.labels, strict=True)
    ]


def _checked(files: Sequence[Path]) -> list[tuple[Path, int, int]]:
    return [(file, 0, file.stat().st_size) for file in files]


# ---- arrays


Part = Mapping[str, AnyArray]
"""The arrays of one file, by top."""


def write_npy(folder: Path, parts: Sequence[Part]) -> dict[str, Any]:
    """Write a file for each array; return the source that they are."""
    for number, part in enumerate(parts, FIRST):
        for top, values in part.items():
            np.save(folder / f"{top}_{number}.npy", values)
    return {"npy": {top: f"{top}_*.npy" for top in parts[0]}}


def _npy(folder: Path, content: Content, **options: Any) -> Written:
    spec = {"npy": {**write_npy(folder, [content.rows(part) for part in content.parts])["npy"], **options}}
    files = [folder / f"data_{number}.npy" for number, _ in enumerate(content.parts, FIRST)]
    places = [f"{file}[{index}]" for file, part in zip(files, content.parts, strict=True) for index in range(len(part))]
    return Written(folder, spec, _samples(content), places, [*files, *sorted(folder.glob("label_*.npy"))])


def _npz(folder: Path, content: Content) -> Written:
    path = folder / "a.npz"
    rows = content.rows(range(len(content.data)))
    np.savez(path, data=rows["data"], label=rows["label"])
    places = [f"{path}[{index}]" for index in range(len(content.data))]
    return Written(folder, {"npz": {"path": "a.npz"}}, _samples(content), places, [path], _checked([path]))


def _arrays(folder: Path, content: Content) -> Written:
    places = [f"arrays[{index}]" for index in range(len(content.data))]
    return Written(folder, {"arrays": content.rows(range(len(content.data)))}, _samples(content), places)


def _idx(folder: Path, content: Content) -> Written:
    rows = content.rows(range(len(content.data)))
    files = []
    for top, array in rows.items():
        files.append(folder / f"{top}.gz")
        head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        files[-1].write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes(), mtime=0))
    options = {top: f"{top}.gz" for top in rows}
    places = [f"idx[{index}]" for index in range(len(content.data))]
    return Written(folder, {"idx": options}, _samples(content, "uint8"), places, files, _checked(files))


# ---- HDF5 and zarr


def write_hdf5(folder: Path, parts: Sequence[Part], name: str = "part", **how: Any) -> dict[str, Any]:
    """Write a file for each part; return the source that they are.

    If `how` says more, in chunks of up to three rows; in every other file, of parts of rows.
    """
    for number, part in enumerate(parts, FIRST):
        with h5py.File(folder / f"{name}_{number}.h5", "w") as file:
            for top, values in part.items():
                row = [-(-extent // 2) for extent in values.shape[1:]] if number % 2 else values.shape[1:]
                chunks = {"chunks": (min(3, len(values)), *row)} if how else {}
                file.create_dataset(top, data=values, **how, **chunks)
    return {"hdf5": {"path": f"{name}_*.h5"}}


def _hdf5(folder: Path, content: Content, **how: Any) -> Written:
    spec = write_hdf5(folder, [content.rows(part) for part in content.parts], **how)
    files = [folder / f"part_{number}.h5" for number, _ in enumerate(content.parts, FIRST)]
    places = [
        f"{file}:data[{index}]" for file, part in zip(files, content.parts, strict=True) for index in range(len(part))
    ]
    checked = [chunk for file in files for chunk in _chunks_of(file)] if "fletcher32" in how else []
    return Written(folder, spec, _samples(content), places, files, checked)


def _chunks_of(path: Path) -> Iterator[tuple[Path, int, int]]:
    with h5py.File(path) as file:
        for dataset in file.values():
            infos = map(dataset.id.get_chunk_info, range(dataset.id.get_num_chunks()))
            yield from [(path, info.byte_offset, info.size) for info in infos]


def _hdf5_gzip(folder: Path, content: Content) -> Written:
    return _hdf5(folder, content, compression="gzip", fletcher32=True)


def _hdf5_virtual(folder: Path, content: Content) -> Written:
    stored = _hdf5(folder, content)
    with h5py.File(folder / "view.h5", "w") as view:
        for top, rows in content.rows(range(len(content.data))).items():
            layout = h5py.VirtualLayout(rows.shape, rows.dtype)
            for file, part in zip(stored.files, content.parts, strict=True):
                layout[part.start : part.stop] = h5py.VirtualSource(file.name, top, (len(part), *rows.shape[1:]))
            view.create_virtual_dataset(top, layout)
    places = [f"{folder}/view.h5:data[{index}]" for index in range(len(content.data))]
    return Written(folder, {"hdf5": {"path": "view.h5"}}, stored.samples, places, stored.files)


def _hdf5_samples(folder: Path, content: Content, **how: Any) -> Written:
    files, places, checked = [], [], []
    for number, part in enumerate(content.parts, FIRST):
        files.append(folder / f"part_{number}.h5")
        with h5py.File(files[-1], "w") as file:
            for index in part:
                stored = file.create_dataset(f"sample_{index}", data=content.data[index], **how)
                stored.attrs["label"] = content.labels[index]
                places.append(f"{files[-1]}:sample_{index}")
        checked += [*_chunks_of(files[-1])] if how else []
    options = {"path": "part_*.h5", "labels": ["label"]}
    return Written(folder, {"hdf5_samples": options}, _samples(content), places, files, checked)


def _hdf5_samples_by_links(folder: Path, content: Content) -> Written:
    """One file, whose external links lead to the data sets of the others."""
    made = _hdf5_samples(folder, content)
    with h5py.File(folder / "links.h5", "w") as links:
        for place in made.places:
            file, _, name = place.rpartition(":")
            links[name] = h5py.ExternalLink(Path(file).name, name)
    places = [f"{folder}/links.h5:{place.rpartition(':')[2]}" for place in made.places]
    spec = {"hdf5_samples": {"path": "links.h5", "labels": ["label"]}}
    return Written(folder, spec, made.samples, places, made.files)


def _hdf5_samples_outside(folder: Path, content: Content) -> Written:
    """The values lie in files of bytes, as external storage."""
    files = [folder / f"part_{number}.bin" for number, _ in enumerate(content.parts, FIRST)]
    with h5py.File(folder / "outside.h5", "w") as outside:
        for file, part in zip(files, content.parts, strict=True):
            file.write_bytes(b"".join(content.data[index].tobytes() for index in part))
            for row, index in enumerate(part):
                data = content.data[index]
                storage = [(file.name, row * data.nbytes, data.nbytes)]
                made = outside.create_dataset(f"sample_{index}", data.shape, "u1", external=storage)
                made.attrs["label"] = content.labels[index]
    places = [f"{folder}/outside.h5:sample_{index}" for index in range(len(content.data))]
    spec = {"hdf5_samples": {"path": "outside.h5", "labels": ["label"]}}
    return Written(folder, spec, _samples(content), places, files)


def _hdf5_samples_windows(folder: Path, content: Content) -> Written:
    made = _hdf5_samples(folder, content)
    options = {**made.spec["hdf5_samples"], "window": {"length": 3, "labels": "last"}}
    places = [f"{place}[0:3]" for place in made.places]
    return Written(folder, {"hdf5_samples": options}, made.samples, places, made.files)


def write_zarr(folder: Path, parts: Sequence[Part], *, sharded: bool = False) -> dict[str, Any]:
    """Write a group for each part, in chunks of up to three rows; return the source that they are.

    Shards have up to two chunks, and their index at the end; in every other group, at the beginning.
    """
    for number, part in enumerate(parts, FIRST):
        shutil.rmtree(folder / f"part_{number}.zarr", ignore_errors=True)
        group = zarr.open_group(folder / f"part_{number}.zarr", mode="w")
        for top, values in part.items():
            chunk = (min(3, len(values)), *values.shape[1:])
            codecs: Any = [BytesCodec(), ZstdCodec(), Crc32cCodec()]
            shard = ShardingCodec(chunk_shape=chunk, codecs=codecs, index_location="start" if number % 2 else "end")
            how: Any = {"compressors": codecs[1:]}
            if sharded:
                chunk, how = (2 * chunk[0], *chunk[1:]), {"serializer": shard, "compressors": None}
            # A chunk that holds the fill value alone is not stored.
            array = group.create_array(top, shape=values.shape, chunks=chunk, dtype=values.dtype, fill_value=0, **how)
            array[...] = values
    return {"zarr": {"path": "part_*.zarr"}}


def _zarr(folder: Path, content: Content, *, sharded: bool = False) -> Written:
    spec = write_zarr(folder, [content.rows(part) for part in content.parts], sharded=sharded)
    files, places = [], []
    for number, part in enumerate(content.parts, FIRST):
        array = folder / f"part_{number}.zarr" / "data"
        places += [f"{array}/zarr.json:data[{index}]" for index in range(len(part))]
        files += sorted(path for path in (array / "c").rglob("*") if path.is_file())
    return Written(folder, spec, _samples(content), places, files, _checked(files))


def _in_windows(write: Callable[[Path, Content], Written], folder: Path, content: Content) -> Written:
    """Each sample is a window of three steps, of which the middle one has the label."""
    planes = [plane for data in content.data for plane in data]
    labels = [label for number in content.labels for label in (0, number, 0)]
    made = write(folder, Content(planes, labels, [3 * cut for cut in content.cuts]))
    ((kind, options),) = made.spec.items()
    window = {"length": 3, "stride": 3, "labels": "middle"}
    starts = [place.rpartition("[") for place in made.places[::3]]
    places = [f"{held_in}[{step[:-1]}:{int(step[:-1]) + 3}]" for held_in, _, step in starts]
    spec = {kind: {**options, "window": window}}
    return Written(folder, spec, _samples(content), places, made.files, made.checked)


# ---- records


def _pictures(folder: Path, content: Content) -> list[Path]:
    files = [folder / f"{number}.png" for number in range(len(content.data))]
    for file, data in zip(files, content.data, strict=True):
        file.write_bytes(encoded(np.ascontiguousarray(data[::-1].transpose(1, 2, 0)), ".png"))  # OpenCV writes BGR
    return files


def _files(folder: Path, content: Content, ending: str, compressed: bool = False, **options: Any) -> Written:
    """A file a sample; an archive has the label, too, and the name of another file."""
    write: Any = np.savez_compressed if compressed else np.savez
    files = [folder / f"{number}-{label:03}.{ending}" for number, label in enumerate(content.labels, FIRST)]
    for file, data, label in zip(files, content.data, content.labels, strict=True):
        match ending:
            case "npz":
                write(file, data=data, label=label)
            case "npy":
                np.save(file, np.asfortranarray(data) if label % 2 else data)
            case _:
                file.write_bytes(encoded(np.ascontiguousarray(data[::-1].transpose(1, 2, 0)), ".png"))
    how = {} if ending == "npz" else {"labels": r"-(\d+)\."}
    spec = {"files": {"path": f"*.{ending}", **how, **options}}
    return Written(folder, spec, _samples(content), [*map(str, files)], files, _checked(files))


def _image_list(folder: Path, content: Content, **size: Any) -> Written:
    files = _pictures(folder, content)
    lines = [f"{file.name} {label}\n" for file, label in zip(files, content.labels, strict=True)]
    (folder / "list.txt").write_text("".join(lines))
    places = [f"{folder}/list.txt line {line}: {file}" for line, file in enumerate(files, 1)]
    options = {"path": "list.txt", **(size or {"equal_sizes": True})}
    return Written(folder, {"image_list": options}, _samples(content), places, files)


def _lmdb(folder: Path, content: Content, **size: Any) -> Written:
    shutil.rmtree(folder / "a", ignore_errors=True)
    path = write_lmdb(folder / "a", map(raw_datum, content.data, content.labels))
    places = [f"{path} key '{number:08}'" for number in range(len(content.data))]
    return Written(folder, {"lmdb": {"path": "a", **size}}, _samples(content), places, [path / "data.mdb"])


def _tar(folder: Path, content: Content, data: str = "npy") -> Written:
    files, places = [], []
    for number, part in enumerate(content.parts, FIRST):
        files.append(folder / f"part_{number}.tar")
        with tarfile.open(files[-1], "w") as tar:
            for index in part:
                array = io.BytesIO()
                np.save(array, content.data[index])
                add(tar, f"{index:03}.{data}", array.getvalue() if data == "npy" else content.data[index].tobytes())
                add(tar, f"{index:03}.cls", b"%d" % content.labels[index])
                places.append(f"{files[-1]}:{index:03}")
    options = {"path": "part_*.tar", "members": {"data": data, "label": "cls"}}
    return Written(folder, {"tar": options}, _samples(content), places, files)


def _ragged_tar(folder: Path, content: Content) -> Written:
    return _tar(folder, Content([each.reshape(-1) for each in content.data], content.labels, content.cuts), "bin")


def _parquet(folder: Path, content: Content, **lists: Any) -> Written:
    """Row groups of up to three samples; checksums for all pages."""
    files, places, checked = [], [], []
    kind = pa.uint8()
    for extent in reversed(content.data[0].shape):
        kind = pa.list_(kind, **(lists or {"list_size": extent}))
    for number, part in enumerate(content.parts, FIRST):
        files.append(folder / f"part_{number}.parquet")
        data = pa.array([content.data[index].tolist() for index in part], kind)
        table = pa.table({"data": data, "label": [content.labels[index] for index in part]})
        pq.write_table(table, files[-1], row_group_size=3, write_page_checksum=True)
        places += [f"{files[-1]} row group {row // 3} row {row % 3}" for row in range(len(part))]
        groups = pq.read_metadata(files[-1])
        for group in map(groups.row_group, range(groups.num_row_groups)):
            chunks = [group.column(column) for column in range(group.num_columns)]
            begins = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
            checked += [
                (files[-1], begin, chunk.total_compressed_size) for begin, chunk in zip(begins, chunks, strict=True)
            ]
    return Written(folder, {"parquet": {"path": "part_*.parquet"}}, _samples(content), places, files, checked)


def _hugging_face(folder: Path, content: Content, **size: Any) -> Written:
    """A folder of PNG pictures as `save_to_disk` of Hugging Face's library writes it; two samples in a batch."""
    files, places = [], []
    for number, part in enumerate(content.parts, FIRST):
        files.append(folder / f"data-{number:05}-of-{len([*content.parts]):05}.arrow")
        pictures = [encoded(np.ascontiguousarray(content.data[n][::-1].transpose(1, 2, 0)), ".png") for n in part]
        table = pa.table(
            {
                "data": [{"bytes": picture, "path": None} for picture in pictures],
                "label": [content.labels[index] for index in part],
            }
        )
        with pa.ipc.new_stream(files[-1], table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
        places += [f"{files[-1]} row group {row // 2} row {row % 2}" for row in range(len(part))]
    state = {"_data_files": [{"filename": file.name} for file in files], "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    options = {"path": ".", **(size or {"equal_sizes": True})}
    return Written(folder, {"parquet": options}, _samples(content), places, files)


def _concat(folder: Path, content: Content) -> Written:
    """The first file's samples in a .npy file, each other's in memory."""
    first, *others = content.parts
    stored = _npy(folder, Content(content.data[: first.stop], content.labels[: first.stop]))
    parts = [stored.spec, *({"arrays": content.rows(part)} for part in others)]
    places = [*stored.places, *(f"arrays[{index}]" for part in others for index in range(len(part)))]
    return Written(folder, {"concat": parts}, _samples(content), places, stored.files)


def _zip(folder: Path, content: Content) -> Written:
    """The data in .npy files, the labels in memory, under another name."""
    stored = _npy(folder, content)
    parts = [{**stored.spec, "tops": "data"}, {"arrays": {"class": content.labels}, "tops": {"label": "class"}}]
    places = [f"{place} and arrays[{index}]" for index, place in enumerate(stored.places)]
    files = stored.files[: len([*content.parts])]  # the data's
    return Written(folder, {"zip": parts}, _samples(content), places, files)


SHAPES: Mapping[str, Any] = {"max_shapes": {"data": [3, 75, SIDE * 5]}}

KINDS: Mapping[str, Kind] = {
    "npy": Kind(_npy, "stamped", remote=True, has_limit=True),
    "npy, one file open": Kind(partial(_npy, open_files=1), "stamped", has_limit=True),
    "npz": Kind(_npz, "memory"),
    "arrays": Kind(_arrays, "memory"),
    "idx": Kind(_idx, "memory"),
    "hdf5": Kind(_hdf5, "stamped", remote=True, has_limit=True),
    "hdf5 gzip": Kind(_hdf5_gzip, "stamped", remote=True, has_limit=True),
    "hdf5 lzf": Kind(partial(_hdf5, compression="lzf", fletcher32=True), "stamped", remote=True, has_limit=True),
    "hdf5 virtual": Kind(_hdf5_virtual, "stamped", has_limit=True, named_instead="view.h5"),
    "hdf5_samples": Kind(_hdf5_samples, "stamped", _hdf5_samples, remote=True, has_limit=True),
    "hdf5_samples gzip": Kind(
        partial(_hdf5_samples, chunks=True, compression="gzip", fletcher32=True), "stamped", remote=True, has_limit=True
    ),
    "hdf5_samples by links": Kind(_hdf5_samples_by_links, "stamped", has_limit=True),
    "hdf5_samples outside": Kind(_hdf5_samples_outside, "stamped", has_limit=True),
    "zarr": Kind(_zarr, "whole", remote=True, has_limit=True),
    "zarr shards": Kind(partial(_zarr, sharded=True), "whole", remote=True, has_limit=True),
    "npy windows": Kind(partial(_in_windows, _npy), "stamped", remote=True, has_limit=True),
    "arrays windows": Kind(partial(_in_windows, _arrays), "memory"),
    "hdf5 chunks windows": Kind(
        partial(_in_windows, partial(_hdf5, fillvalue=0)), "stamped", remote=True, has_limit=True
    ),
    "hdf5 gzip windows": Kind(partial(_in_windows, _hdf5_gzip), "stamped", has_limit=True),
    "hdf5_samples windows": Kind(_hdf5_samples_windows, "stamped", has_limit=True),
    "zarr windows": Kind(partial(_in_windows, _zarr), "whole", has_limit=True),
    "image_list": Kind(_image_list, "whole", partial(_image_list, max_height=SIDE, max_width=SIDE)),
    "files npz": Kind(
        partial(_files, ending="npz"), "whole", partial(_files, ending="npz", **SHAPES), remote=True, has_limit=True
    ),
    "files npz compressed": Kind(partial(_files, ending="npz", compressed=True), "whole", has_limit=True),
    "files npy": Kind(
        partial(_files, ending="npy"), "whole", partial(_files, ending="npy", **SHAPES), remote=True, has_limit=True
    ),
    "files of pictures": Kind(
        partial(_files, ending="png", equal_sizes=True),
        "whole",
        partial(_files, ending="png", max_height=SIDE, max_width=SIDE),
        has_limit=True,
    ),
    "lmdb": Kind(_lmdb, "closed", partial(_lmdb, max_height=SIDE, max_width=SIDE)),
    "tar": Kind(_tar, "stamped", _ragged_tar, remote=True, has_limit=True),
    "parquet": Kind(_parquet, "stamped", partial(_parquet, list_size=-1), remote=True, has_limit=True),
    "Hugging Face": Kind(
        _hugging_face, "stamped", partial(_hugging_face, max_height=SIDE, max_width=SIDE), has_limit=True
    ),
    "concat": Kind(_concat, "stamped"),
    "zip": Kind(_zip, "stamped"),
}
