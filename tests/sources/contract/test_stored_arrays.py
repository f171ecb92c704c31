"""Any array that is stored in any way is delivered as NumPy has it: types, axes, chunks, files by chance."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numcodecs  # type: ignore[import-untyped]
import numpy as np
import pytest
import zarr
from blobfeed.sources import open_source
from blobfeed.sources.stored import LIBRARY_MODULE
from blobfeed.workers.api import AnyArray
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec

from blobfeed import ArraySpec, RaggedRows, Source
from tests.support.part import examples
from tests.support.stored import assert_delivers, assert_rows, bytes_read, in_loader, opened, rows_of, some_array

from .kinds import write_hdf5, write_npy

NUMBERS = ["u1", "<f4", ">f4", ">i2", "<f2", "?", "<c16"]
AXES = ["n", "nw", "nhw", "nchw", "ncdhw"]
"""In the order in which they are delivered."""


@dataclass(frozen=True)
class Top:
    """`values`: shape (samples, …), as delivered; `axes`: their order in the file, a letter each."""

    values: AnyArray
    axes: str

    def stored(self, part: slice) -> AnyArray:
        delivered = AXES[self.values.ndim - 1]
        return self.values[part].transpose([delivered.index(axis) for axis in self.axes])


@st.composite
def some_tops(draw: st.DrawFn, dtypes: Sequence[str]) -> dict[str, Top]:
    samples = draw(st.integers(1, 20))
    tops = {}
    for seed, name in enumerate(["data", "label", "group/mask"][: draw(st.integers(1, 3))]):
        row = draw(st.lists(st.integers(1, 5), max_size=4))
        values = some_array((samples, *row), draw(st.sampled_from(dtypes)), seed)
        tops[name] = Top(values, "".join(draw(st.permutations(AXES[len(row)]))))
    return tops


def parts_of(data: st.DataObject, tops: Mapping[str, Top]) -> Iterator[slice]:
    """The samples of each of up to four files."""
    samples = len(tops["data"].values)
    cuts = data.draw(st.sets(st.integers(1, samples - 1), max_size=3)) if samples > 1 else set()
    yield from (slice(*edges) for edges in itertools.pairwise([0, *sorted(cuts), samples]))


def chunks_of(data: st.DataObject, shape: Sequence[int]) -> tuple[int, ...]:
    return data.draw(st.tuples(*(st.integers(1, extent) for extent in shape)))


def dims_of(tops: Mapping[str, Top]) -> dict[str, list[str]]:
    return {name: list(top.axes) for name, top in tops.items()}


def check(data: st.DataObject, source: Source, stored: Mapping[str, AnyArray]) -> None:
    """A loader delivers any samples of it, twice."""
    with closing(source), closing(in_loader(source)) as arrived:
        assert list(arrived.specs) == list(stored)
        samples = len(next(iter(stored.values())))
        for _ in range(2):
            indices = data.draw(st.lists(st.integers(0, samples - 1), max_size=2 * samples))
            arrived.will_need(np.array(indices, np.int64))
            assert_rows(arrived, indices, stored)


def values_of(tops: Mapping[str, Top]) -> dict[str, AnyArray]:
    return {name: top.values for name, top in tops.items()}


@contextmanager
def own_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@examples(25)
@given(data=st.data())
def test_arrays_in_memory(data: st.DataObject) -> None:
    tops = data.draw(some_tops([*NUMBERS, "<i8", "S5", "U3"]))
    arrays: dict[str, Any] = {}
    for name, top in tops.items():
        array = np.asarray(top.values, order=data.draw(st.sampled_from(["C", "F"])))
        array = np.flip(np.flip(array).copy()) if data.draw(st.booleans(), "reversed") else array
        is_list = top.values.dtype == np.int64 and data.draw(st.booleans(), "list")
        arrays[name] = array.tolist() if is_list else array
    source = open_source({"arrays": arrays}, tops=list(arrays), base_dir=Path())
    check(data, source, values_of(tops))


@examples(60)
@given(data=st.data())
def test_npy_files(data: st.DataObject) -> None:
    tops = data.draw(some_tops([*NUMBERS, "S5", "U3"]))
    tops = {name.rpartition("/")[2]: top for name, top in tops.items()}
    with own_folder() as folder:
        for name, top in tops.items():  # the files of one top need not be those of another
            for number, part in enumerate(parts_of(data, tops)):
                array = np.asarray(top.stored(part), order=data.draw(st.sampled_from(["C", "F"])))
                array = array.astype(array.dtype.newbyteorder(data.draw(st.sampled_from("<>"))))
                with (folder / f"{name}_{number}.npy").open("wb") as file:
                    np.lib.format.write_array(file, array, version=(data.draw(st.integers(1, 3)), 0))
        paths = {name: f"{name}_*.npy" for name in tops}
        source = opened("npy", folder, **paths, dims=dims_of(tops))
        assert source.modules == ()
        check(data, source, values_of(tops))


FILTERS: list[dict[str, Any]] = [
    {},
    {"fletcher32": True},
    {"compression": "gzip"},
    {"compression": "gzip", "shuffle": True},
    {"compression": "gzip", "fletcher32": True},
    {"compression": "gzip", "shuffle": True, "fletcher32": True},
    {"compression": "lzf"},
]


@examples(60)
@given(data=st.data())
def test_hdf5_files(data: st.DataObject) -> None:
    tops, is_plain, is_decoded = data.draw(some_tops([*NUMBERS, "S5", "u8"])), True, False
    with own_folder() as folder:
        for number, part in enumerate(parts_of(data, tops)):
            how: dict[str, Any] = {"libver": data.draw(st.sampled_from(["earliest", "latest"]))}
            block = how["userblock_size"] = data.draw(st.sampled_from([0, 0, 0, 1024]))
            with h5py.File(folder / f"{number}.h5", "w", **how) as file:
                for name, top in tops.items():
                    stored, filters = top.stored(part), {}
                    if data.draw(st.booleans(), "chunked"):
                        filters = data.draw(st.sampled_from(FILTERS))
                        filters = {"chunks": chunks_of(data, stored.shape), **filters}
                    dataset = file.create_dataset(name, data=stored, **filters)
                    file.flush()
                    is_plain &= filters.keys() <= {"chunks"} and not block
                    is_decoded |= filters.get("compression") == "lzf" or bool(block)
                    is_decoded |= filters.keys() > {"chunks"} and _edges_may_be_unfiltered(dataset)
        cache_bytes = data.draw(st.sampled_from([0, 200, 1 << 20]))
        source = opened("hdf5", folder, list(tops), path="*.h5", dims=dims_of(tops), chunk_cache_bytes=cache_bytes)
        assert not (is_plain and source.modules)
        assert (LIBRARY_MODULE in source.modules) == is_decoded, (
            "a loader needs h5py only for lzf, blocks and such edges"
        )
        check(data, source, values_of(tops))


def _edges_may_be_unfiltered(dataset: h5py.Dataset) -> bool:
    """Return true if a chunk that extends past the array takes as many bytes as it holds: only the library can tell."""
    whole = math.prod(dataset.chunks) * dataset.dtype.itemsize
    stored = map(dataset.id.get_chunk_info, range(dataset.id.get_num_chunks()))
    ends = [np.add(chunk.chunk_offset, dataset.chunks) for chunk in stored if chunk.size == whole]
    return any((end > dataset.shape).any() for end in ends)


def _zarr_2(data: st.DataObject, shape: Sequence[int]) -> dict[str, Any]:
    return {
        "chunks": chunks_of(data, shape),
        "order": data.draw(st.sampled_from("CF")),
        "chunk_key_encoding": {"name": "v2", "separator": data.draw(st.sampled_from("./"))},
        "filters": data.draw(st.sampled_from([None, [numcodecs.Delta("f4")]])),
        "compressors": data.draw(st.sampled_from([None, numcodecs.LZ4(), numcodecs.Zlib()])),
    }


def _zarr_3(data: st.DataObject, shape: Sequence[int]) -> dict[str, Any]:
    chunks = chunks_of(data, shape)
    keys = {"name": data.draw(st.sampled_from(["default", "v2"])), "separator": data.draw(st.sampled_from("./"))}
    codecs = data.draw(st.sampled_from([None, [ZstdCodec()], [GzipCodec(level=1), Crc32cCodec()]]))
    how: dict[str, Any] = {"chunks": chunks, "chunk_key_encoding": keys, "compressors": codecs}
    shards = tuple(data.draw(st.integers(1, 3)) * extent for extent in chunks)
    match data.draw(st.sampled_from(["chunks", "shards", "shards with their index first"])):
        case "chunks":
            how["filters"] = [TransposeCodec(order=tuple(data.draw(st.permutations(range(len(shape))))))]
            how["serializer"] = BytesCodec(endian=data.draw(st.sampled_from(["big", "little"])))
        case "shards":
            how["shards"] = shards
        case _:
            inner = ShardingCodec(chunk_shape=chunks, index_location="start", index_codecs=[BytesCodec()])
            how |= {"chunks": shards, "serializer": inner, "compressors": None}
    return how


@examples(40)
@given(data=st.data())
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_zarr_groups(data: st.DataObject) -> None:
    tops = data.draw(some_tops(["<f4"]))
    with own_folder() as folder:
        for number, part in enumerate(parts_of(data, tops)):
            version, options = data.draw(st.sampled_from([(2, _zarr_2), (3, _zarr_3)]))
            group = zarr.open_group(folder / f"{number}.zarr", mode="w", zarr_format=version)
            for name, top in tops.items():
                stored = top.stored(part)
                made = group.create_array(name, shape=stored.shape, dtype=stored.dtype, **options(data, stored.shape))
                made[...] = stored
        source = opened("zarr", folder, list(tops), path="*.zarr", dims=dims_of(tops))
        check(data, source, values_of(tops))


@examples(50)
@given(data=st.data())
def test_hdf5_files_with_a_data_set_for_each_sample(data: st.DataObject) -> None:
    count, dtype = data.draw(st.integers(1, 25)), data.draw(st.sampled_from([*NUMBERS, "S5"]))
    largest = data.draw(st.lists(st.integers(1, 5), max_size=3))
    varies = data.draw(st.booleans())
    shapes = [
        data.draw(st.tuples(*(st.integers(0, extent) for extent in largest))) if varies and number else tuple(largest)
        for number in range(count)
    ]
    samples = [np.asarray(some_array(shape, dtype, number), dtype) for number, shape in enumerate(shapes)]
    chunked = data.draw(st.booleans()) and all(all(shape) and shape for shape in shapes)
    block = data.draw(st.sampled_from([0, 0, 0, 512]))
    with own_folder() as folder:
        cut = data.draw(st.integers(0, count - 1))
        for name, part in {"p9.h5": range(cut), "p10.h5": range(cut, count)}.items():
            if part:
                with h5py.File(folder / name, "w", userblock_size=block) as file:
                    for number in part:
                        how = {"chunks": chunks_of(data, shapes[number]), "compression": "gzip"} if chunked else {}
                        attributes = file.create_dataset(f"s{number}", data=samples[number], **how).attrs
                        attributes.update(
                            {"label": number % 7, "pose": np.arange(3.0) + number, "name": f"no. {number}"}
                        )
        wanted: dict[str, AnyArray] = {
            "label": np.arange(count) % 7,
            "pose": np.arange(count)[:, np.newaxis] + np.arange(3.0),
            "name": np.array([f"no. {number}".encode() for number in range(count)]),
        }
        options: dict[str, Any] = {"path": "p*.h5", "open_files": data.draw(st.sampled_from([None, 1]))}
        tops = None
        match data.draw(st.sampled_from(["by tops", "by labels", "renamed"])):
            case "by tops":
                tops = data.draw(st.permutations(["data", *wanted]))[: data.draw(st.integers(1, 4))]
                tops = tops if "data" in tops else ["data", *tops]
            case "by labels":
                options["labels"] = list(wanted)
            case _:
                options["labels"] = {f"my {name}": name for name in wanted}
                wanted = {f"my {name}": values for name, values in wanted.items()}
        source = opened("hdf5_samples", folder, tops, **options)
        assert list(source.specs) == list(tops or ["data", *wanted])
        is_ragged = len(set(shapes)) > 1
        spec = ArraySpec(tuple(largest), np.dtype(dtype).newbyteorder("="), varies=is_ragged)
        assert source.specs["data"] == spec
        if all(map(all, shapes)):
            assert (LIBRARY_MODULE in source.modules) == (chunked or block > 0)
        with closing(source), closing(in_loader(source)) as arrived:
            indices = data.draw(st.lists(st.integers(0, count - 1), max_size=30))
            arrived.will_need(np.array(indices, np.int64))
            rows = rows_of(arrived, indices)
        for name, values in wanted.items():
            assert name not in rows or rows[name].tolist() == values[indices].tolist()
        for row, index in enumerate(indices):
            found = rows["data"].get(row) if isinstance(rows["data"], RaggedRows) else rows["data"][row, ...]
            np.testing.assert_array_equal(found, samples[index].astype(spec.dtype), strict=True)


@pytest.mark.parametrize(("write", "kind"), [(write_npy, "S"), (write_npy, "U"), (write_hdf5, "S")])
def test_strings_are_as_long_as_the_longest_of_all_files(write: Any, kind: str, tmp_path: Path) -> None:
    words = ["cat", "elephant", "ox"]
    parts = [{"label": np.array([word], f"{'<>'[number % 2]}{kind}")} for number, word in enumerate(words)]
    source = open_source(write(tmp_path, parts), tops=["label"], base_dir=tmp_path)
    assert_delivers(source, {"label": np.array(words, kind)}, [[0, 1, 2], [2, 0, 1, 0]])


LARGE = some_array((5, 3, 200_000), "u1")
"""Rows of 600 kB, which are read, while smaller ones are mapped."""


@pytest.mark.parametrize("how", ["npy", "hdf5", "gzip", "samples"])
def test_large_rows(how: str, tmp_path: Path) -> None:
    if how == "npy":
        np.save(tmp_path / "a.npy", LARGE)
        source = opened("npy", tmp_path, data="a.npy")
    else:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            for name, values in (
                {f"s{n}": LARGE[n] for n in range(5)}.items() if how == "samples" else [("data", LARGE)]
            ):
                file.create_dataset(name, data=values, compression="gzip" if how == "gzip" else None)
        source = opened("hdf5_samples" if how == "samples" else "hdf5", tmp_path, ["data"], path="a.h5")
    with closing(source), closing(in_loader(source)) as arrived:
        for indices in ([0, 1, 2, 3, 4], [4, 3, 1, 1], [2]):
            arrived.will_need(np.array(indices))
            assert_rows(arrived, indices, {"data": LARGE})


@pytest.mark.parametrize(("chunks", "rows"), [((4, 3, 200_000), 2), ((5, 3, 100_000), 5)])
def test_of_chunks_with_large_rows_no_byte_is_read_twice(chunks: tuple[int, ...], rows: int, tmp_path: Path) -> None:
    """Two samples that are converted: each is read alone if it lies whole, and else with its chunks."""
    values = LARGE.astype(">u2")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("data", data=values, chunks=chunks)
    source = opened("hdf5", tmp_path, ["data"], path="a.h5", chunk_cache_bytes=1)
    with closing(source), closing(in_loader(source)) as arrived:
        before = bytes_read()
        for index in (3, 1):
            assert_rows(arrived, [index], {"data": values})
        assert bytes_read() - before < (rows + 0.5) * values[0].nbytes
