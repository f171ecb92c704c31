"""Bytes from files into rows: runs, ranges, the kept chunks, and what the filters of HDF5 did to a chunk."""

from __future__ import annotations

import os
import pickle
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.workers.base.errors import SourceError
from blobfeed.workers.sources.files import file as stored_file
from blobfeed.workers.sources.files.file import FileStamp, RawFile, by_group, merge_ranges, require_in_range, stretches
from blobfeed.workers.sources.files.lru import RecentlyUsed, Scratch
from blobfeed.workers.sources.files.paths import expand_paths, natural_key
from blobfeed.workers.sources.stored.chunk_decode import ChunkError, decode_chunk
from blobfeed.workers.sources.stored.layout import ChunkFilter
from hypothesis import given, settings
from hypothesis import strategies as st

from blobfeed import BatchReader
from tests.support.stored import BY_MAP, BY_PREADV, BY_SIZE, MAP_BELOW_BYTES, bytes_read

INDICES = st.lists(st.integers(0, 40), max_size=30)


@contextmanager
def raw_file(path: Path, way: str = BY_SIZE) -> Iterator[RawFile]:
    file = RawFile(FileStamp.of(str(path)))
    with bytes_read(way):
        yield file
    file.close()


def as_indices(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


# ------------------------------------------------------------------------------------------- arithmetic of indices


@given(INDICES, st.integers(1, 3))
def test_stretches_cover_everything_once_and_go_up_in_steps(values: list[int], step: int) -> None:
    indices, positions = as_indices(values) * step, np.arange(len(values))
    covered: list[int] = []
    for start, stop in stretches(indices, positions, step):
        assert indices[start:stop].tolist() == list(range(indices[start], indices[start] + (stop - start) * step, step))
        covered += range(start, stop)
    assert covered == list(range(len(values)))


def test_a_stretch_ends_where_the_rows_to_fill_jump() -> None:
    assert list(stretches(as_indices([4, 5, 6]), as_indices([0, 1, 7]), 1)) == [(0, 2), (2, 3)]


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)), min_size=1, max_size=20))
def test_merged_ranges_hold_the_same_bytes_and_lie_apart(ranges: list[tuple[int, int]]) -> None:
    offsets, sizes = (as_indices(list(column)) for column in zip(*ranges, strict=True))
    merged = list(merge_ranges(offsets, sizes))
    wanted = {byte for offset, size in ranges for byte in range(offset, offset + size)}
    assert [byte for offset, size in merged for byte in range(offset, offset + size)] == sorted(wanted)
    assert all(a + size < b for (a, size), (b, _) in pairwise(merged))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30))
def test_groups_name_each_position_once_in_ascending_order(groups: list[int]) -> None:
    found = {group: members.tolist() for group, members in by_group(as_indices(groups))}
    assert found == {group: [at for at, each in enumerate(groups) if each == group] for group in sorted(set(groups))}


@pytest.mark.parametrize("bad", [-1, 10, 2**62, -(2**63)])
def test_an_index_out_of_range_is_named(bad: int) -> None:
    with pytest.raises(IndexError, match=f"{bad} is not in 0 … 9"):
        require_in_range(as_indices([3, bad, 4]), 10)
    require_in_range(as_indices([0, 9]), 10)


@pytest.mark.parametrize("pattern", ["run[1]/*.h5", "run[1]/part_[12].h5", "**/*.h5"])
def test_a_glob_below_a_folder_with_brackets_in_its_name_finds_its_files(pattern: str, tmp_path: Path) -> None:
    folder = tmp_path / "data [of x]"
    files = [folder / "run[1]" / "part_1.h5", folder / "run[1]" / "part_2.h5"]
    files[0].parent.mkdir(parents=True)
    for file in files:
        file.touch()
    (tmp_path / "data [of x]" / "run1").mkdir()  # what the brackets would mean
    assert expand_paths(pattern, folder, "test") == list(map(str, files))
    assert expand_paths(str(folder / pattern), Path(), "test") == list(map(str, files))


def test_names_sort_by_the_numbers_in_them() -> None:
    names = ["t10/a", "t2/b", "t2/a", "s", "t1", "10", "9", "t2"]
    assert sorted(names, key=natural_key) == ["9", "10", "s", "t1", "t2", "t2/a", "t2/b", "t10/a"]


@given(st.permutations(["s1", "s01", "s001", "s2"]))
def test_names_with_equal_numbers_have_one_order_wherever_they_are_listed(names: list[str]) -> None:
    assert sorted(names, key=natural_key) == ["s001", "s01", "s1", "s2"]


# --------------------------------------------------------------------------------------------- the bytes of a file


@pytest.fixture
def thousand_bytes(tmp_path: Path) -> Path:
    path = tmp_path / "bytes.bin"
    path.write_bytes(bytes(np.arange(1000) % 251))
    return path


@pytest.mark.parametrize("way", [BY_MAP, BY_PREADV])
@given(data=st.data())
@settings(max_examples=50)
def test_rows_are_gathered_from_any_offsets_into_any_rows(
    way: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "gathered.bin"
    content = bytes(np.arange(1000) % 251)
    path.write_bytes(content)
    row_bytes = data.draw(st.integers(1, 50))
    offsets = data.draw(st.lists(st.integers(0, 1000 - row_bytes), min_size=1, max_size=12))
    positions = sorted(data.draw(st.permutations(range(20)))[: len(offsets)])
    rows = np.full((20, row_bytes), 255, np.uint8)
    with raw_file(path, way) as file:
        file.gather_at(as_indices(offsets), as_indices(positions), rows)
    for offset, position in zip(offsets, positions, strict=True):
        assert rows[position].tobytes() == content[offset : offset + row_bytes]
    untouched = [row for row in range(20) if row not in positions]
    assert (rows[untouched] == 255).all()


@pytest.mark.parametrize("way", MAP_BELOW_BYTES)
def test_a_file_cut_short_while_open_is_an_error_and_no_bus_error(way: str, thousand_bytes: Path) -> None:
    rows = np.zeros((1, 100), np.uint8)
    with raw_file(thousand_bytes, way) as file:
        file.gather_at(as_indices([900]), as_indices([0]), rows)
        os.truncate(thousand_bytes, 950)
        with pytest.raises(SourceError, match=r"bytes\.bin"):
            file.require_intact()
        with pytest.raises(SourceError, match=r"bytes\.bin"):
            file.stamp.require_unchanged(file.descriptor)
        with pytest.raises(SourceError, match=r"ends at byte 950, 50 bytes short"):
            file.read(900, 100)


@pytest.mark.parametrize("change", ["longer", "gone", "rewritten"])
def test_a_file_that_is_another_one_by_now_is_not_read(change: str, thousand_bytes: Path) -> None:
    stamp = FileStamp.of(str(thousand_bytes))
    if change == "gone":
        thousand_bytes.unlink()
    elif change == "longer":
        thousand_bytes.write_bytes(bytes(1001))
    else:
        os.utime(thousand_bytes, ns=(stamp.mtime_ns, stamp.mtime_ns + 1))
    with pytest.raises(SourceError, match=r"bytes\.bin"):
        RawFile(stamp)


def test_large_rows_are_read_and_small_ones_mapped() -> None:
    stamp = FileStamp.of(__file__)
    assert stamp.maps(150_528)
    assert not stamp.maps(1 << 20)


def test_mounted_file_systems_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_bytes(
        b"30 22 0:30 / /a\x0b\xe2\x80\xa8\xff rw shared:5 - nfs4 server:/export rw\n"
        b"31 22 0:31 / /b\\040c rw - ext4 x rw\n"
    )
    assert [*stored_file.mounted(tmp_path / "mountinfo")] == [
        ("0:30", "/a\x0b\u2028\udcff", "nfs4 server:/export"),
        ("0:31", "/b c", ""),
    ]


@pytest.mark.parametrize("files", [1, 3])
def test_files_of_a_network_are_read_and_not_mapped(
    files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"30 22 {os.major(device)}:{os.minor(device)} / {tmp_path} rw shared:5 - fuse.sshfs server rw\n")
    monkeypatch.setattr(stored_file, "MOUNTS", mounts)
    stored_file.is_network.cache_clear()
    whole = np.arange(60, dtype=">i4").reshape(30, 2)
    for number, part in enumerate(np.split(whole, files)):
        np.save(tmp_path / f"x{number}.npy", part)
        np.save(tmp_path / f"y{number}.npy", part.astype(np.int64))
    source = {"npy": {"data": f"{tmp_path}/x*.npy", "label": f"{tmp_path}/y*.npy"}}
    try:
        with BatchReader(source, batch_size=30, num_loaders=0, epochs=1) as reader:
            batch = next(iter(reader))
            assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    finally:
        stored_file.is_network.cache_clear()
    np.testing.assert_array_equal(batch["data"], whole)
    np.testing.assert_array_equal(batch["label"], whole)


# ------------------------------------------------------------------------------------------------- the kept chunks


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), max_size=40), st.integers(1, 12))
def test_the_last_used_values_that_fit_are_kept(uses: list[tuple[int, int]], limit: int) -> None:
    kept: RecentlyUsed[int, bytes] = RecentlyUsed(limit, weigh=len)
    model: dict[int, bytes] = {}
    for key, size in uses:
        value = bytes(size)
        kept.put(key, value)
        model.pop(key, None)
        model[key] = value
        while sum(map(len, model.values())) > limit:
            model.pop(next(iter(model)))
        assert {each: kept.get_or_make(each, pytest.fail, "it is gone") for each in model} == model
        assert kept.weight == sum(map(len, model.values()))
    kept.clear()
    assert (kept.weight, kept.get(0)) == (0, None)


def test_scratch_memory_is_used_again_and_each_thread_has_its_own() -> None:
    scratch = Scratch()
    memory = scratch.take((4, 3))
    with ThreadPoolExecutor(1) as thread:
        assert not np.shares_memory(memory, thread.submit(scratch.take, (12,)).result())
    assert np.shares_memory(memory, scratch.take((2, 5)))
    assert not np.shares_memory(memory, scratch.take((13,))), "it is too small for that"
    assert pickle.loads(pickle.dumps(scratch)).memory.size == 0, "it is sent to loaders with its source"


# ----------------------------------------------------------------------------------------------------- the filters


FLETCHER = ChunkFilter("numcodecs", codec='{"id": "fletcher32"}')


def shuffle(element_bytes: int) -> ChunkFilter:
    return ChunkFilter("numcodecs", codec=f'{{"id": "shuffle", "elementsize": {element_bytes}}}')


def library_chunk(path: Path, data: bytes, itemsize: int, **filters: object) -> tuple[bytes, int]:
    """What the HDF5 library stores for a chunk of `data`, and the mask of filters that it left out."""
    elements = np.frombuffer(data, f"V{itemsize}")
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("d", data=elements, chunks=elements.shape, **filters)
        mask, stored = dataset.id.read_direct_chunk((0,))
    return stored, mask


@given(data=st.binary(min_size=1, max_size=5000), itemsize=st.sampled_from([1, 2, 3, 4, 8, 16]))
@settings(max_examples=40)
def test_a_chunk_decodes_to_what_was_stored(
    data: bytes, itemsize: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = data * itemsize
    path = tmp_path_factory.getbasetemp() / "chunk.h5"
    stored, mask = library_chunk(path, data, itemsize, shuffle=True, compression="gzip", fletcher32=True)
    filters = (shuffle(itemsize), ChunkFilter("deflate"), FLETCHER)
    assert decode_chunk(stored, filters, mask, len(data)).tobytes() == data


def test_a_sum_is_that_of_the_library_for_many_blocks_and_extreme_words(tmp_path: Path) -> None:
    for number, data in enumerate([bytes(40_000), b"\xff" * 50_001, np.random.default_rng(1).bytes(99_999), b"\x01"]):
        stored, _ = library_chunk(tmp_path / f"{number}.h5", data, 1, fletcher32=True)
        assert decode_chunk(stored, [FLETCHER], 0, len(data)).tobytes() == data


def test_filters_that_were_left_out_for_a_chunk_are_not_undone() -> None:
    data = bytes(range(24))
    filters = (shuffle(4), ChunkFilter("deflate"))
    assert decode_chunk(zlib.compress(data), filters, 0b01, 24).tobytes() == data
    assert decode_chunk(data, filters, 0b11, 24).tobytes() == data


def test_bytes_that_make_no_whole_element_stay_at_the_end() -> None:
    for stored, data in ((b"acbdX", b"abcdX"), (b"X", b"X"), (b"", b"")):
        assert decode_chunk(stored, [shuffle(2)], 0, len(data)).tobytes() == data


@pytest.mark.parametrize(
    ("stored", "applied", "message"),
    [
        (zlib.compress(bytes(1000))[:-3], ChunkFilter("deflate"), "gzip stream is damaged"),
        (b"no such stream", ChunkFilter("deflate"), "gzip stream is damaged"),
        (zlib.compress(bytes(999)), ChunkFilter("deflate"), "999 bytes instead of 1000"),
        (zlib.compress(bytes(1001)), ChunkFilter("deflate"), "1001 bytes instead of 1000"),
        (bytes(1000) + b"\x01\0\0\0", FLETCHER, "fletcher32 checksum of the data .* did not match"),
    ],
)
def test_damaged_chunks_are_told_from_good_ones(stored: bytes, applied: ChunkFilter, message: str) -> None:
    with pytest.raises(ChunkError, match=message):
        decode_chunk(stored, [applied], 0, 1000)
