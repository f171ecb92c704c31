"""HDF5 data sets that are stored in less common ways, and elements of varying size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.sources.hdf5 import examine
from blobfeed.sources.stored import LIBRARY_MODULE
from blobfeed.workers.api import AnyArray

from blobfeed import ArraySpec, BatchReader, Source, SourceError
from tests.sources.hdf5.layouts import SAMPLES, write
from tests.support.stored import (
    assert_delivers,
    opened,
    patterns,
    rows_of,
    some_array,
)


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
    ("make", "by_the_library"),
    [
        (compact, True),
        (twelve_bits, True),
        (padded_with_spaces, True),
        (never_written, True),
        (external, True),
        (virtual, True),
        (linked_from_elsewhere, False),
        (soft_link, False),
        (named_values, False),
        (arrays_as_elements, False),
        (arrays_as_elements_in_chunks, True),
        (shuffled_only, True),
        (scaled, True),
    ],
)
def test_less_common_storage_is_right_too(
    make: Callable[[h5py.File], None], by_the_library: bool, tmp_path: Path
) -> None:
    source, stored = one_dataset(tmp_path, make)
    assert (LIBRARY_MODULE in source.modules) == by_the_library
    assert_delivers(source, {"data": stored}, patterns(len(source)))


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
    assert LIBRARY_MODULE not in source.modules
    assert_delivers(source, {"data": stored}, patterns(SAMPLES))


def test_chunks_written_past_the_filters_are_read_as_they_are(tmp_path: Path) -> None:
    def make(file: h5py.File) -> None:
        dataset = file.create_dataset("data", (40, 3), "i4", chunks=(8, 3), compression="gzip", shuffle=True)
        dataset[...] = some_array((40, 3), "i4")
        dataset.id.write_direct_chunk((16, 0), np.arange(24, dtype="i4").tobytes(), filter_mask=0b11)

    source, stored = one_dataset(tmp_path, make)
    assert stored[16:24].ravel().tolist() == list(range(24))
    assert LIBRARY_MODULE not in source.modules
    assert_delivers(source, {"data": stored}, patterns(40))


def test_a_data_set_that_grew_in_its_file_is_read_to_its_end(tmp_path: Path) -> None:
    def make(file: h5py.File) -> None:
        dataset = file.create_dataset("data", data=some_array((7, 3), "i4"), maxshape=(None, 3), chunks=(4, 3))
        file["between"] = np.zeros(1000)
        dataset.resize((SAMPLES, 3))
        dataset[7:] = some_array((SAMPLES - 7, 3), "i4", seed=1)

    source, stored = one_dataset(tmp_path, make)
    assert_delivers(source, {"data": stored}, patterns(SAMPLES))


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize(
    ("maxshape", "is_direct"),
    [((None, 9, 6), True), ((None, None, 6), True), ((SAMPLES, 9, 6), True), ((SAMPLES, None, 6), False)],
)
def test_chunks_lie_where_they_were_written_whichever_axes_are_unlimited(
    maxshape: tuple[int | None, ...], is_direct: bool, libver: str, tmp_path: Path
) -> None:
    def make(file: h5py.File) -> None:
        file.create_dataset("data", data=some_array((SAMPLES, 9, 6), "i4"), maxshape=maxshape, chunks=(8, 2, 6))

    source, stored = one_dataset(tmp_path, make, libver=libver)
    assert (LIBRARY_MODULE not in source.modules) == (is_direct or libver == "earliest")
    assert_delivers(source, {"data": stored}, patterns(SAMPLES))


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


@pytest.mark.parametrize("make", [compact, virtual, never_written])
def test_the_program_may_have_the_data_set_open_too(make: Callable[[h5py.File], None], tmp_path: Path) -> None:
    source, stored = one_dataset(tmp_path, make)
    with h5py.File(tmp_path / "a.h5") as file:
        held = file["data"]
        assert (rows_of(source, [3])["data"] == held[3]).all()
    with h5py.File(tmp_path / "a.h5") as file:
        assert (file["data"][()] == stored).all()


def test_two_sources_may_read_external_storage_at_a_time(tmp_path: Path) -> None:
    first, stored = one_dataset(tmp_path, external)
    second = opened("hdf5", tmp_path, ["data"], path="a.h5")
    for source in (first, second):
        assert (rows_of(source, [3])["data"] == stored[3]).all()


# ---- filters of plugins, and checksums


@pytest.mark.parametrize("plugin", ["Blosc", "LZ4", "Bitshuffle"])
def test_filters_of_hdf5plugin_are_undone_by_the_library(plugin: str, tmp_path: Path) -> None:
    hdf5plugin = pytest.importorskip("hdf5plugin")
    arrays = {"data": some_array((SAMPLES, 3, 4, 5), "f4"), "label": np.arange(SAMPLES)}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("data", data=arrays["data"], chunks=(8, 3, 4, 5), **getattr(hdf5plugin, plugin)())
        file["label"] = arrays["label"]
    source = opened("hdf5", tmp_path, path="a.h5")
    assert source.modules == (LIBRARY_MODULE, "hdf5plugin")
    assert source.chunk_samples == 8
    assert_delivers(source, arrays, patterns(SAMPLES))


def test_zstd_is_undone_without_its_plugin_which_gives_whatever_lay_in_memory_for_a_damaged_chunk(
    tmp_path: Path,
) -> None:
    hdf5plugin = pytest.importorskip("hdf5plugin")
    values = some_array((SAMPLES, 3, 4, 5), "f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        options = {"chunks": (8, 3, 4, 5), "shuffle": True, **hdf5plugin.Zstd()}
        damaged = file.create_dataset("data", data=values, **options).id.get_chunk_info(1)
    source = opened("hdf5", tmp_path, ["data"], path="a.h5")
    assert source.modules == ("numcodecs",)
    assert_delivers(source, {"data": values}, patterns(SAMPLES))
    with (tmp_path / "a.h5").open("r+b") as stream:
        stream.seek(damaged.byte_offset + damaged.size // 2)
        stream.write(bytes(damaged.size // 2))
    source = opened("hdf5", tmp_path, ["data"], path="a.h5")
    with pytest.raises(SourceError, match=rf"a\.h5:data.* {damaged.byte_offset} "):
        rows_of(source, [8])


def test_without_numcodecs_the_library_undoes_what_is_more_than_gzip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = {name: some_array((SAMPLES, 6), "i4") for name in ("plain", "shuffled", "checked")}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, values in arrays.items():
            options = {"shuffle": name == "shuffled", "fletcher32": name == "checked"}
            file.create_dataset(name, data=values, chunks=(8, 6), compression="gzip", **options)
    monkeypatch.setattr(examine, "is_installed", lambda library: library != "numcodecs")
    source = opened("hdf5", tmp_path, tuple(arrays), path="a.h5")
    assert source.modules == (LIBRARY_MODULE,)
    assert_delivers(source, arrays, patterns(SAMPLES))


@pytest.mark.parametrize("kind", ["hdf5", "hdf5_samples"])
def test_a_loader_undoes_the_filters_of_a_virtual_data_sets_parts(kind: str, tmp_path: Path) -> None:
    hdf5plugin = pytest.importorskip("hdf5plugin")
    values = some_array((SAMPLES, 4), "f4")
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(1, 4), **hdf5plugin.Bitshuffle())
    layout = h5py.VirtualLayout((SAMPLES, 4), "f4")
    layout[:] = h5py.VirtualSource("part.h5", "x", (SAMPLES, 4))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_virtual_dataset("data", layout)
    source = {kind: {"path": str(tmp_path / "a.h5")}}
    with BatchReader(source, tops=["data"], batch_size=1, num_loaders=1) as reader:
        assert (next(iter(reader))["data"][0] == (values[0] if kind == "hdf5" else values)).all()
