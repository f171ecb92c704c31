"""HDF5, one data set per top: whatever the layout, the samples are those that h5py reads."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.workers.base.specs import AnyArray, ArraySpec
from blobfeed.workers.sources import Source
from blobfeed.workers.sources.hdf5 import examine as hdf5_examine
from blobfeed.workers.sources.hdf5.source import HDF5Source
from blobfeed.workers.sources.stored import chunk_decode
from blobfeed.workers.sources.stored import rows as stored_rows
from blobfeed.workers.sources.stored.layout import Chunked, StoredArray, ThroughLibrary
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.stored import (
    BY_MAP,
    BY_PREADV,
    assert_delivers,
    assert_rows,
    bytes_read,
    in_loader,
    opened,
    patterns,
    rows_of,
    some_array,
)

SAMPLES = 41
DTYPES = ["u1", "<f4", ">f4", ">i2", "<f2", "?", "<c16", "S5", "u8"]
SHAPES: list[tuple[int, ...]] = [(), (1,), (7,), (3, 4, 5)]
RING = {"data": (SAMPLES, 3, 4, 5), "label": (SAMPLES,)}


class Contiguous:
    """Stands for the layout of an array in one piece: a single chunk of the array's own shape."""


def halved(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(max(1, (extent + 1) // 2) for extent in shape)


STORED: dict[str, tuple[Callable[[tuple[int, ...]], dict[str, Any]], type]] = {
    "contiguous": (lambda _: {}, Contiguous),
    "whole_chunks": (lambda shape: {"chunks": (8, *shape)}, Chunked),
    "tiles": (lambda shape: {"chunks": (5, *halved(shape))}, Chunked),
    "gzip": (lambda shape: {"chunks": (8, *shape), "compression": "gzip"}, Chunked),
    "gzip_tiles": (
        lambda shape: {"chunks": (8, *halved(shape)), "compression": "gzip", "shuffle": True, "fletcher32": True},
        Chunked,
    ),
    "one_chunk": (lambda shape: {"chunks": (SAMPLES, *shape), "compression": "gzip", "shuffle": True}, Chunked),
    "lzf": (lambda shape: {"chunks": (7, *shape), "compression": "lzf"}, ThroughLibrary),
}


def layouts(source: Source) -> dict[str, type]:
    assert isinstance(source, HDF5Source)
    return {top: kind_of(column.arrays[0]) for top, column in source._columns.items()}


def kind_of(array: StoredArray) -> type:
    layout = array.layout
    in_one_piece = isinstance(layout, Chunked) and layout.chunk == array.shape and not layout.filters
    return Contiguous if in_one_piece else type(layout)


def write(path: Path, arrays: Mapping[str, AnyArray], **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, **options)
    return path


@contextlib.contextmanager
def through_the_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(hdf5_examine, "_is_direct", lambda _: False)
        yield


# ------------------------------------------------------------------------------------- the grid: layout, type, shape


@pytest.mark.parametrize("layout", STORED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_short_way_gives_the_same_bytes_as_the_library(
    layout: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, expected_layout = STORED[layout]
    arrays = {f"group/{n}": some_array((SAMPLES, *shape), dtype, n) for n, shape in enumerate(SHAPES)}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for (name, array), shape in zip(arrays.items(), SHAPES, strict=True):
            file.create_dataset(name, data=array, **options(shape))
    source = opened("hdf5", tmp_path, tuple(arrays), path="a.h5")
    assert set(layouts(source).values()) == {expected_layout}
    assert_delivers(source, arrays, patterns(SAMPLES))
    with through_the_library(monkeypatch):
        slow = opened("hdf5", tmp_path, tuple(arrays), path="a.h5")
    assert set(layouts(slow).values()) == {ThroughLibrary}
    assert_delivers(slow, arrays, patterns(SAMPLES))


@pytest.mark.parametrize("way", [BY_MAP, BY_PREADV])
@pytest.mark.parametrize("layout", ["contiguous", "whole_chunks", "tiles", "gzip"])
def test_map_and_preadv_give_the_same_bytes(layout: str, way: str, tmp_path: Path) -> None:
    arrays = {name: some_array(shape, ">i4" if name == "label" else "f4") for name, shape in RING.items()}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, **STORED[layout][0](array.shape[1:]))
    source = opened("hdf5", tmp_path, path="a.h5")
    with bytes_read(way):
        assert_delivers(source, arrays, patterns(SAMPLES))


@pytest.mark.parametrize("plugin", ["Blosc", "LZ4", "Zstd", "Bitshuffle"])
def test_filters_of_hdf5plugin_are_undone_by_the_library(plugin: str, tmp_path: Path) -> None:
    hdf5plugin = pytest.importorskip("hdf5plugin")
    arrays = {"data": some_array(RING["data"], "f4"), "label": np.arange(SAMPLES)}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("data", data=arrays["data"], chunks=(8, 3, 4, 5), **getattr(hdf5plugin, plugin)())
        file["label"] = arrays["label"]
    source = opened("hdf5", tmp_path, path="a.h5")
    assert layouts(source) == {"data": ThroughLibrary, "label": Contiguous}
    assert source.modules == ("h5py", "hdf5plugin")
    assert source.chunk_samples == 8
    assert_delivers(source, arrays, patterns(SAMPLES))


@pytest.fixture(scope="module")
def several_layouts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Source, dict[str, AnyArray]]]:
    folder = tmp_path_factory.mktemp("several")
    whole = {
        "plain": some_array((60, 3, 2), "u2"),
        "swapped": some_array((60, 5), ">f8"),
        "chunks": some_array((60, 6), "f4"),
        "gzip": some_array((60, 2, 7), "i4"),
        "lzf": some_array((60,), "i8"),
    }
    ways = {
        "plain": "contiguous",
        "swapped": "contiguous",
        "chunks": "whole_chunks",
        "gzip": "gzip_tiles",
        "lzf": "lzf",
    }
    for number, (start, stop) in enumerate([(0, 25), (25, 26), (26, 60)]):
        with h5py.File(folder / f"part{number}.h5", "w") as file:
            for name, array in whole.items():
                options = STORED[ways[name]][0](array.shape[1:])
                # Only what can grow may have chunks larger than itself.
                maxshape = (None, *array.shape[1:]) if "chunks" in options else None
                file.create_dataset(name, data=array[start:stop], maxshape=maxshape, **options)
    source = in_loader(opened("hdf5", folder, tuple(whole), path="part*.h5", chunk_cache_bytes=200))
    yield source, whole
    source.close()


@given(indices=st.lists(st.integers(0, 59), max_size=30))
@settings(deadline=None, max_examples=60)
def test_any_indices_give_their_samples_over_files_and_layouts(
    indices: list[int], several_layouts: tuple[Source, dict[str, AnyArray]]
) -> None:
    source, whole = several_layouts
    source.will_need(np.array(indices, np.int64))
    assert_rows(source, indices, whole)


# -------------------------------------------------------------------------------------- less common ways of storing


def one_dataset(tmp_path: Path, make: Callable[[h5py.File], None], **options: Any) -> tuple[Source, AnyArray]:
    with h5py.File(tmp_path / "a.h5", "w", **options) as file:
        make(file)
    with h5py.File(tmp_path / "a.h5") as file:
        stored = file["data"][()]
    return opened("hdf5", tmp_path, ["data"], path="a.h5"), stored


def low_level(file: h5py.File, datatype: Any, layout: int, values: AnyArray) -> None:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(layout)
    dataset = h5py.h5d.create(file.id, b"data", datatype, h5py.h5s.create_simple(values.shape), dcpl=plist)
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, values)


def compact(file: h5py.File) -> None:
    low_level(file, h5py.h5t.NATIVE_INT32, h5py.h5d.COMPACT, np.arange(SAMPLES, dtype=np.int32))


def twelve_bits(file: h5py.File) -> None:
    datatype = h5py.h5t.NATIVE_UINT16.copy()
    datatype.set_precision(12)
    datatype.set_offset(3)
    low_level(file, datatype, h5py.h5d.CONTIGUOUS, np.arange(SAMPLES, dtype=np.uint16))


def padded_with_spaces(file: h5py.File) -> None:
    datatype = h5py.h5t.C_S1.copy()
    datatype.set_size(6)
    datatype.set_strpad(h5py.h5t.STR_SPACEPAD)
    low_level(file, datatype, h5py.h5d.CONTIGUOUS, np.array([b"ab", b"c"] * 20, "S6"))


def never_written(file: h5py.File) -> None:
    file.create_dataset("data", (SAMPLES, 3), "f4", fillvalue=2.5)


def external(file: h5py.File) -> None:
    storage = [(str(Path(file.filename).with_suffix(".bin")), 0, h5py.h5f.UNLIMITED)]
    file.create_dataset("data", (SAMPLES, 3), "f4", external=storage)[...] = some_array((SAMPLES, 3), "f4")


def virtual(file: h5py.File) -> None:
    other = Path(file.filename).with_suffix(".other.h5")
    write(other, {"source": some_array((SAMPLES, 4), "i2")})
    layout = h5py.VirtualLayout((SAMPLES, 4), "i2")
    layout[:] = h5py.VirtualSource(str(other), "source", (SAMPLES, 4))
    file.create_virtual_dataset("data", layout)


def linked_from_elsewhere(file: h5py.File) -> None:
    other = Path(file.filename).with_suffix(".other.h5")
    write(other, {"pad": np.zeros(9), "x": some_array((SAMPLES, 4), "i2")})
    file["data"] = h5py.ExternalLink(other.name, "x")


def soft_link(file: h5py.File) -> None:
    file["deep/in/here"] = some_array((SAMPLES, 4), "i2")
    file["data"] = h5py.SoftLink("/deep/in/here")


def named_values(file: h5py.File) -> None:
    dtype = h5py.enum_dtype({"CAT": 1, "DOG": 7}, ">i2")
    file.create_dataset("data", data=np.where(np.arange(SAMPLES) % 2, 1, 7).astype(">i2"), dtype=dtype)


def arrays_as_elements(file: h5py.File) -> None:
    element = np.dtype(("<f4", (2, 3)))
    file.create_dataset("data", (SAMPLES,), dtype=element)[...] = some_array((SAMPLES, 2, 3), "f4")


def arrays_as_elements_in_chunks(file: h5py.File) -> None:
    element = np.dtype(("<f4", (2, 3)))
    made = file.create_dataset("data", (SAMPLES,), dtype=element, chunks=(4,), compression="gzip")
    made[...] = some_array((SAMPLES, 2, 3), "f4")


def shuffled_only(file: h5py.File) -> None:
    file.create_dataset("data", data=some_array((SAMPLES, 3), "f4"), chunks=(4, 3), shuffle=True)


def scaled(file: h5py.File) -> None:
    file.create_dataset("data", data=some_array((SAMPLES, 3), "i4"), chunks=(4, 3), scaleoffset=0)


@pytest.mark.parametrize(
    ("make", "layout"),
    [
        (compact, ThroughLibrary),
        (twelve_bits, ThroughLibrary),
        (padded_with_spaces, ThroughLibrary),
        (never_written, ThroughLibrary),
        (external, ThroughLibrary),
        (virtual, ThroughLibrary),
        (linked_from_elsewhere, Contiguous),
        (soft_link, Contiguous),
        (named_values, Contiguous),
        (arrays_as_elements, Contiguous),
        (arrays_as_elements_in_chunks, ThroughLibrary),
        (shuffled_only, ThroughLibrary),
        (scaled, ThroughLibrary),
    ],
)
def test_less_common_storage_is_right_too(make: Callable[[h5py.File], None], layout: type, tmp_path: Path) -> None:
    source, stored = one_dataset(tmp_path, make)
    assert layouts(source) == {"data": layout}
    assert_delivers(source, {"data": stored}, patterns(len(source)))


@pytest.mark.parametrize("options", [{}, {"chunks": (4, 3)}, {"chunks": (4, 3), "compression": "gzip"}])
def test_a_user_block_before_the_data_does_not_shift_it(options: dict[str, Any], tmp_path: Path) -> None:
    values = some_array((SAMPLES, 3), "f4")
    source, stored = one_dataset(
        tmp_path, lambda file: file.create_dataset("data", data=values, **options), userblock_size=1024
    )
    assert_delivers(source, {"data": stored}, patterns(SAMPLES))


@pytest.mark.parametrize("options", [{}, {"compression": "gzip", "shuffle": True}])
@pytest.mark.parametrize("chunk", [(4, 3, 5), (4, 2, 2)])
def test_chunks_that_were_never_written_have_the_fill_value(
    chunk: tuple[int, ...], options: dict[str, Any], tmp_path: Path
) -> None:
    def make(file: h5py.File) -> None:
        dataset = file.create_dataset("data", (SAMPLES, 3, 5), ">i4", chunks=chunk, fillvalue=-7, **options)
        dataset[9:17] = some_array((8, 3, 5), "i4")

    source, stored = one_dataset(tmp_path, make)
    assert (stored[0] == -7).all()
    assert layouts(source) == {"data": Chunked}
    assert_delivers(source, {"data": stored}, patterns(SAMPLES))


def test_chunks_written_past_the_filters_are_read_as_they_are(tmp_path: Path) -> None:
    def make(file: h5py.File) -> None:
        dataset = file.create_dataset("data", (40, 3), "i4", chunks=(8, 3), compression="gzip", shuffle=True)
        dataset[...] = some_array((40, 3), "i4")
        dataset.id.write_direct_chunk((16, 0), np.arange(24, dtype="i4").tobytes(), filter_mask=0b11)

    source, stored = one_dataset(tmp_path, make)
    assert stored[16:24].ravel().tolist() == list(range(24))
    assert layouts(source) == {"data": Chunked}
    assert_delivers(source, {"data": stored}, patterns(40))


def test_a_data_set_that_grew_in_its_file_is_read_to_its_end(tmp_path: Path) -> None:
    def make(file: h5py.File) -> None:
        dataset = file.create_dataset("data", data=some_array((7, 3), "i4"), maxshape=(None, 3), chunks=(4, 3))
        file["between"] = np.zeros(1000)
        dataset.resize((SAMPLES, 3))
        dataset[7:] = some_array((SAMPLES - 7, 3), "i4", seed=1)

    source, stored = one_dataset(tmp_path, make)
    assert_delivers(source, {"data": stored}, patterns(SAMPLES))


# ------------------------------------------------------------------------------------------- elements of varying size


def test_strings_of_any_length_become_rows_of_bytes_for_the_longest(tmp_path: Path) -> None:
    words = ["a", "", "grün", "a longer caption"] * 5
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("label", data=words, dtype=h5py.string_dtype())
    source = opened("hdf5", tmp_path, ["label"], path="a.h5")
    assert source.specs["label"] == ArraySpec((), np.dtype("S16"))
    assert_delivers(source, {"label": np.array([word.encode() for word in words])}, patterns(len(words)))


def test_arrays_of_any_length_become_ragged_rows(tmp_path: Path) -> None:
    lengths = [3, 0, 7, 1]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("data", (4,), h5py.vlen_dtype("f4"))
        for number, length in enumerate(lengths):
            dataset[number] = np.arange(length)
    source = opened("hdf5", tmp_path, ["data"], path="a.h5")
    assert source.specs["data"] == ArraySpec((7,), np.dtype("f4"), varies=True)
    rows = rows_of(source, [2, 1, 0, 2])["data"]
    assert [rows.get(row).tolist() for row in range(4)] == [list(range(n)) for n in (7, 0, 3, 7)]
    source.close()


# ------------------------------------------------------------------------------------------------ the order of axes


CANONICAL = "ncdhw"


@pytest.mark.parametrize("names", [*itertools.permutations("nchw"), ("n", "h", "w"), ("w", "n"), tuple("whdcn")])
@pytest.mark.parametrize("options", [{}, {"chunks": True}, {"chunks": True, "compression": "gzip"}])
def test_any_stored_order_of_dimensions_is_delivered_as_nchw(
    names: tuple[str, ...], options: dict[str, Any], tmp_path: Path
) -> None:
    extents = {"n": 9, "c": 3, "d": 2, "h": 4, "w": 5}
    order = [name for name in CANONICAL if name in names]
    delivered = some_array([extents[name] for name in order], "f4")
    stored = delivered.transpose([order.index(name) for name in names])
    write(tmp_path / "a.h5", {"data": stored}, **options)
    source = opened("hdf5", tmp_path, ["data"], path="a.h5", dims=list(names))
    assert source.specs["data"].shape == delivered.shape[1:]
    assert_delivers(source, {"data": delivered}, patterns(9))


def test_dims_of_a_single_top_can_be_named(tmp_path: Path) -> None:
    images, masks = some_array((9, 3, 4, 5), "f4"), some_array((9, 4, 5), "u1")
    write(tmp_path / "a.h5", {"data": images, "mask": masks.transpose(1, 2, 0)})
    source = opened("hdf5", tmp_path, ["data", "mask"], path="a.h5", dims={"mask": ["h", "w", "n"]})
    assert_delivers(source, {"data": images, "mask": masks}, patterns(9))


# ------------------------------------------------------------------------------------------------------ several files


def three_files(folder: Path) -> dict[str, AnyArray]:
    whole = {"data": some_array((30, 3, 4), "f4"), "label": np.arange(30)}
    for number, (start, stop) in {2: (0, 4), 10: (4, 5), 11: (5, 30)}.items():
        write(folder / f"part{number}.h5", {name: array[start:stop] for name, array in whole.items()})
    return whole


def test_files_are_put_end_to_end_as_named_globbed_or_listed(tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    whole = three_files(tmp_path)
    names = ["part2.h5", "part10.h5", "part11.h5"]
    (tmp_path / "lists" / "train.txt").write_text("part2.h5\n\n" + f"  {tmp_path / 'part10.h5'} \n../part11.h5\n")
    for path in (names, "part*.h5", "lists/train.txt", tmp_path / "lists" / "train.txt", [tmp_path / n for n in names]):
        assert_delivers(opened("hdf5", tmp_path, path=path), whole, patterns(30))


def test_a_list_is_known_by_what_it_holds_and_not_by_its_name(tmp_path: Path) -> None:
    whole = three_files(tmp_path)
    (tmp_path / "list.h5").write_text("part2.h5\npart10.h5\npart11.h5")
    (tmp_path / "part2.h5").rename(tmp_path / "part2.txt")
    (tmp_path / "list.h5").write_text("part2.txt\npart10.h5\npart11.h5")
    assert_delivers(opened("hdf5", tmp_path, path="list.h5"), whole, patterns(30))


def test_a_sample_is_named_by_its_file_and_its_number_in_it(tmp_path: Path) -> None:
    three_files(tmp_path)
    source = opened("hdf5", tmp_path, path="part*.h5")
    assert source.where(0) == f"{tmp_path}/part2.h5:data[0]"
    assert source.where(4) == f"{tmp_path}/part10.h5:data[0]"
    assert source.where(29) == f"{tmp_path}/part11.h5:data[24]"


def test_no_more_files_than_allowed_are_open_at_a_time(tmp_path: Path) -> None:
    whole = {"data": some_array((40, 3), "f4"), "label": np.arange(40)}
    for number in range(40):
        write(tmp_path / f"{number}.h5", {name: array[number : number + 1] for name, array in whole.items()})
    source = in_loader(opened("hdf5", tmp_path, path="*.h5", open_files=5))
    before = open_descriptors()
    assert_rows(source, list(range(40)), whole)
    assert len(open_descriptors() - before) == 10  # Python's mmap keeps a copy of the file's descriptor
    source.close()
    assert open_descriptors() == before


def open_descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink() and entry.exists()}


@pytest.mark.parametrize("limit", [1, 4, 5, 30, 1000])
def test_a_limit_takes_the_first_samples(limit: int, tmp_path: Path) -> None:
    whole = three_files(tmp_path)
    source = opened("hdf5", tmp_path, path="part*.h5", limit=limit)
    assert len(source) == min(limit, 30)
    assert_delivers(source, {name: array[:limit] for name, array in whole.items()}, patterns(len(source))[:3])
    with pytest.raises(IndexError, match=str(len(source))):
        rows_of(source, [len(source)])


def test_strings_are_as_long_as_the_longest_of_all_files(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", {"label": np.array([b"abc"] * 3)})
    write(tmp_path / "b.h5", {"label": np.array([b"defgh"] * 2)})
    source = opened("hdf5", tmp_path, ["label"], path="*.h5")
    assert_delivers(source, {"label": np.array([b"abc"] * 3 + [b"defgh"] * 2)}, patterns(5))


# --------------------------------------------------------------------------------------- chunks, modules, fingerprint


def test_each_chunk_is_decoded_once_in_a_read_and_kept_as_far_as_it_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = some_array((64, 10), "f4")
    write(tmp_path / "a.h5", {"data": values}, chunks=(8, 10), compression="gzip")
    decoded = 0
    decode = chunk_decode.decode_chunk

    def counting(*args: Any) -> Any:
        nonlocal decoded
        decoded += 1
        return decode(*args)

    monkeypatch.setattr(stored_rows, "decode_chunk", counting)
    shuffled = np.random.default_rng(0).permutation(64).tolist()
    for cache_bytes, in_two_reads in ((0, 16), (8 * 320, 8), (4 * 320, 16)):
        source = opened("hdf5", tmp_path, ["data"], path="a.h5", chunk_cache_bytes=cache_bytes)
        decoded = 0
        assert_rows(source, shuffled, {"data": values})
        assert decoded == 8
        assert_rows(source, shuffled, {"data": values})
        assert decoded == in_two_reads
        source.close()


def test_chunk_samples_tells_of_the_largest_top_alone(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("data", data=np.zeros((64, 10)), chunks=(8, 5), compression="gzip")
        file.create_dataset("plain", data=np.zeros((64, 10)), chunks=(8, 10))
        file.create_dataset("label", data=np.zeros(64), chunks=(32,), compression="gzip")
    assert opened("hdf5", tmp_path, ["data", "label"], path="a.h5").chunk_samples == 8
    assert opened("hdf5", tmp_path, ["plain", "label"], path="a.h5").chunk_samples is None
    assert opened("hdf5", tmp_path, ["label"], path="a.h5").chunk_samples == 32


def test_a_loader_of_uncompressed_data_imports_no_h5py(tmp_path: Path) -> None:
    import pickle

    write(tmp_path / "a.h5", {"data": np.zeros((9, 3)), "label": np.arange(9)})
    source = opened("hdf5", tmp_path, path="a.h5")
    assert source.modules == ()
    (tmp_path / "source.pickle").write_bytes(pickle.dumps(source))
    script = (
        "import pickle, sys, numpy as np, pathlib\n"
        "from blobfeed.workers.base.specs import allocate_rows\n"
        "source = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "out = allocate_rows(source.specs, 2)\n"
        "source.read(np.array([8, 2]), out)\n"
        "assert out['label'].tolist() == [8, 2]\n"
        "assert 'h5py' not in sys.modules and 'torch' not in sys.modules, 'too much is imported'\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "source.pickle")], check=True)


def test_the_fingerprint_changes_with_the_files_and_with_what_is_read_of_them(tmp_path: Path) -> None:
    import os

    three_files(tmp_path)

    def fingerprint(**options: Any) -> str:
        return opened("hdf5", tmp_path, **{"path": "part*.h5", **options}).fingerprint()

    first = fingerprint()
    assert first == fingerprint()
    assert first == in_loader(opened("hdf5", tmp_path, path="part*.h5")).fingerprint()
    others = {fingerprint(limit=3), fingerprint(tops=["data"]), fingerprint(path="part2.h5")}
    others.add(fingerprint(tops=["data"], dims=["n", "w", "h"]))
    os.utime(tmp_path / "part10.h5", ns=(0, 0))
    others.add(fingerprint())
    assert len(others | {first}) == 6


@pytest.mark.parametrize("locking", [True, False, "best-effort"])
def test_files_are_locked_or_not_as_wished(locking: bool | str, tmp_path: Path) -> None:
    values = some_array((9, 3), "f4")
    write(tmp_path / "a.h5", {"data": values}, chunks=(4, 3), compression="lzf")
    assert_delivers(opened("hdf5", tmp_path, ["data"], path="a.h5", locking=locking), {"data": values}, patterns(9))
