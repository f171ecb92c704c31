"""What is wrong with HDF5 files or with the parameters is said at the start, with the names of file and data set."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.workers.base.errors import ParameterError, SampleTooLargeError, SourceError
from blobfeed.workers.sources.files.file import FileStamp
from blobfeed.workers.sources.hdf5 import examine as hdf5_examine
from blobfeed.workers.sources.stored import library_rows

from tests.support.stored import BY_MAP, BY_PREADV, assert_rows, bytes_read, in_loader, opened, rows_of, some_array


def write(path: Path, **arrays: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


def good(folder: Path, name: str = "good.h5", samples: int = 12) -> Path:
    return write(folder / name, data=some_array((samples, 3, 4), "f4"), label=np.arange(samples))


# ------------------------------------------------------------------------------------------------------- at the start


def nothing(folder: Path) -> None:
    (folder / "folder.h5").mkdir()


def not_hdf5(folder: Path) -> None:
    (folder / "picture.h5").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(1000))


def empty_file(folder: Path) -> None:
    (folder / "empty.h5").write_bytes(b"")


def half_copied(folder: Path) -> None:
    content = good(folder).read_bytes()
    (folder / "half.h5").write_bytes(content[: len(content) // 2])


def list_of_missing(folder: Path) -> None:
    good(folder)
    (folder / "train.txt").write_text("good.h5\nabsent.h5\n")


def list_of_pictures(folder: Path) -> None:
    good(folder)
    (folder / "train.txt").write_text("good.h5\n\ntrain.txt\n")


def list_in_latin_1(folder: Path) -> None:
    (folder / "train.txt").write_bytes("Bücher.h5".encode("latin-1"))


def several_kinds(folder: Path) -> None:
    with h5py.File(folder / "kinds.h5", "w") as file:
        file["data"] = np.zeros((12, 3))
        file["labels"] = np.arange(12)
        file["few"] = np.arange(11)
        file["one"] = 5
        file["none"] = np.zeros((0, 3))
        file["hollow"] = np.zeros((12, 0))
        file["null"] = h5py.Empty("f4")
        file["group/inner"] = np.zeros(12)
        file["table"] = np.zeros(12, [("x", "f4"), ("y", "i4")])
        file["opaque"] = np.zeros(12, "V7")
        file.create_dataset("references", (12,), h5py.ref_dtype)
        file.create_dataset("words", (12, 2), h5py.vlen_dtype("f4"))
        file.create_dataset("foreign", (12,), h5py.vlen_dtype(">f4"))
        file["dangling"] = h5py.SoftLink("/nowhere")
        file["elsewhere"] = h5py.ExternalLink("absent.h5", "data")


def unlike_each_other(folder: Path) -> None:
    good(folder, "a.h5")
    write(folder / "shape.h5", data=np.zeros((12, 4, 3), "f4"), label=np.arange(12))
    write(folder / "type.h5", data=np.zeros((12, 3, 4), "f8"), label=np.arange(12))
    write(folder / "lacking.h5", data=np.zeros((12, 3, 4), "f4"))


def virtual_with_a_gap(folder: Path) -> None:
    layout = h5py.VirtualLayout((12,), "f4")
    layout[:] = h5py.VirtualSource("absent.h5", "x", (12,))
    with h5py.File(folder / "virtual.h5", "w") as file:
        file.create_virtual_dataset("data", layout)


def lengths_differ(folder: Path) -> None:
    with h5py.File(folder / "xy.h5", "w") as file:
        file["X"], file["y"] = np.zeros((6, 2)), np.zeros(5)


def many_samples(folder: Path) -> None:
    with h5py.File(folder / "many.h5", "w") as file:
        for number in range(40):
            file[f"picture{number}"] = np.zeros((3, 4, 4))


@pytest.mark.parametrize(
    ("make", "tops", "path", "message"),
    [
        (nothing, None, "absent.h5", r"there is no file '.*absent\.h5'"),
        (nothing, None, "folder.h5", r"'.*folder\.h5' is no regular file"),
        (nothing, None, "/proc/self/mem", r"'/proc/self/mem' cannot be read: Invalid argument"),
        (nothing, None, "*.hdf", r"no file matches '.*\*\.hdf'"),
        (nothing, None, [], "'path' is an empty list"),
        (not_hdf5, None, "picture.h5", r"picture\.h5' is not an HDF5 file"),
        (empty_file, None, "empty.h5", r"empty\.h5' is empty"),
        (half_copied, None, "half.h5", r"half\.h5' cannot be opened as HDF5: .*truncated.*copied to its end"),
        (
            list_of_missing,
            None,
            "train.txt",
            r"train\.txt'.* its line 2 names a file that does not exist: 'absent\.h5'",
        ),
        (list_of_pictures, None, "train.txt", r"train\.txt' line 3: '.*train\.txt' is not an HDF5 file"),
        (list_in_latin_1, None, "train.txt", r"train\.txt' is neither an HDF5 file nor a list of files in UTF-8"),
        (
            several_kinds,
            None,
            "kinds.h5",
            r"kinds\.h5' has no data set 'label' \(did you mean 'labels'\?\); it holds data",
        ),
        (
            lengths_differ,
            None,
            "xy.h5",
            r"no data set 'data', and its arrays are not of one length; it holds X \(6, 2\), y",
        ),
        (many_samples, None, "many.h5", r"no data set 'data', and more than 16 others: .* source hdf5_samples"),
        (several_kinds, ["group"], "kinds.h5", r"kinds\.h5':group is a group, not a data set"),
        (several_kinds, ["dangling"], "kinds.h5", r"no data set 'dangling'.*; there is a link of that name"),
        (several_kinds, ["elsewhere"], "kinds.h5", r"no data set 'elsewhere'.*; there is a link of that name"),
        (several_kinds, ["data", "few"], "kinds.h5", r"kinds\.h5'.* differ in length: data has 12, few has 11"),
        (several_kinds, ["one"], "kinds.h5", r"kinds\.h5:one has no axis that counts samples \(its shape is \(\)\)"),
        (several_kinds, ["null"], "kinds.h5", r"kinds\.h5:null has no axis that counts samples"),
        (several_kinds, ["none"], "kinds.h5", r"no samples: .*kinds\.h5:none is empty"),
        (several_kinds, ["hollow"], "kinds.h5", r"samples of 'hollow' are empty: their shape is \(0,\)"),
        (several_kinds, ["foreign"], "kinds.h5", r"kinds\.h5:foreign .* varying length of the type >f4.* h5py .*wrong"),
        (
            several_kinds,
            ["table"],
            "kinds.h5",
            r"kinds\.h5:table holds .*'x'.*no array of numbers.*data set of its own",
        ),
        (several_kinds, ["opaque"], "kinds.h5", r"kinds\.h5:opaque holds \|V7"),
        (several_kinds, ["references"], "kinds.h5", r"kinds\.h5:references holds object"),
        (several_kinds, ["words"], "kinds.h5", r"kinds\.h5:words holds object"),
        (
            unlike_each_other,
            None,
            ["a.h5", "shape.h5"],
            r"a\.h5:data has \(3, 4\) float32, .*shape\.h5:data has \(4, 3\)",
        ),
        (
            unlike_each_other,
            None,
            ["a.h5", "type.h5"],
            r"a\.h5:data has \(3, 4\) float32, .*type\.h5:data has .* float64",
        ),
        (unlike_each_other, None, ["a.h5", "lacking.h5"], r"lacking\.h5' has no data set 'label'"),
        (
            virtual_with_a_gap,
            ["data"],
            "virtual.h5",
            r"virtual\.h5:data is partly stored in '.*absent\.h5', which is not",
        ),
    ],
)
def test_bad_files_are_named_before_training_starts(
    make: Callable[[Path], None], tops: list[str] | None, path: str | list[str], message: str, tmp_path: Path
) -> None:
    make(tmp_path)
    with pytest.raises(SourceError, match=message):
        opened("hdf5", tmp_path, tops, path=path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "path"),
        ({"path": "good.h5", "lock": False}, r"unknown parameter 'lock' \(did you mean 'locking'\?\)"),
        ({"path": 5}, "parameter 'path' is 5"),
        ({"path": "good.h5", "limit": 0}, "parameter 'limit' is 0"),
        ({"path": "good.h5", "dims": ["n", "h"]}, r"'dims' names 2 dimensions, \['n', 'h'\], but the array has 3"),
        (
            {"path": "good.h5", "dims": ["c", "h", "w"]},
            r"'dims' is \['c', 'h', 'w'\]: expected .* 'n' \(samples\) once",
        ),
        ({"path": "good.h5", "dims": ["n", "h", "h"]}, "at most once"),
        ({"path": "good.h5", "dims": ["n", "h", "x"]}, "'dims' is"),
        (
            {"path": "good.h5", "dims": {"datum": ["n", "h", "w"]}},
            "'dims': unknown top 'datum'.*; the known ones are data, label",
        ),
        ({"path": "good.h5", "num_dim": 4}, "unknown parameter 'num_dim'.*; the known ones are path, limit, dims,"),
        ({"path": "good.h5", "memory_map": True}, "unknown parameter 'memory_map'"),
    ],
)
def test_bad_options_are_named_with_what_is_allowed(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    good(tmp_path)
    with pytest.raises(ParameterError, match=message):
        opened("hdf5", tmp_path, **options)


def test_a_filter_that_is_not_available_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("data", data=np.zeros((9, 3)), chunks=(4, 3), compression="lzf")
    monkeypatch.setattr(library_rows, "_has_filter", lambda _: False)
    with pytest.raises(
        SourceError, match=r"a\.h5:data is stored with the HDF5 filter 32000, which is not available.*hdf5plugin"
    ):
        opened("hdf5", tmp_path, ["data"], path="a.h5")


@pytest.mark.parametrize("options", [{}, {"chunks": (4, 3)}])
def test_bytes_beyond_the_end_of_the_file_are_noticed(options: dict[str, Any], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("data", data=np.zeros((9, 3)), **options)
    stamp = FileStamp(str(tmp_path / "a.h5"), 2100, 0, 0, 0, 0)
    with (
        h5py.File(tmp_path / "a.h5") as file,
        pytest.raises(SourceError, match=r"a\.h5' is cut short: data reaches to"),
    ):
        hdf5_examine.find_layout(file["data"], stamp, "data")


@pytest.mark.parametrize(
    ("options", "size", "corner", "shifted"),
    [({}, 96, 0, 0), ({}, 96, 4, 8), ({}, 95, 4, 0), ({"shuffle": True}, 96, 0, 0), ({"shuffle": True}, 97, 4, 0)],
)
def test_a_damaged_index_of_chunks_does_not_give_other_bytes(
    options: dict[str, Any], size: int, corner: int, shifted: int, tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("data", data=some_array((12, 3), "f8"), chunks=(4, 3), **options)
        at = dataset.id.get_chunk_info_by_coord((4, 0)).byte_offset
    content, entry = (tmp_path / "a.h5").read_bytes(), struct.Struct("<2I4Q")  # size, mask, corner, place
    whole, damaged = entry.pack(96, 0, 4, 0, 0, at), entry.pack(size, 0, corner, 0, 0, at - shifted)
    assert content.count(whole) == 1
    (tmp_path / "a.h5").write_bytes(content.replace(whole, damaged))
    with pytest.raises(
        SourceError, match=r"a\.h5': data set 'data' cannot be read: the index of its chunks is damaged"
    ):
        opened("hdf5", tmp_path, ["data"], path="a.h5")


def test_an_unreadable_file_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good(tmp_path)

    def locked(*_args: object, **_options: object) -> None:
        raise OSError("unable to lock file, errno = 37")

    monkeypatch.setattr(h5py, "File", locked)
    with pytest.raises(SourceError, match=r"good\.h5' cannot be opened as HDF5: unable to lock.*set locking: false"):
        opened("hdf5", tmp_path, path="good.h5")


# ------------------------------------------------------------------------------------------------ while training runs


WAYS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunked": {"chunks": (4, 3, 4)},
    "gzip": {"chunks": (4, 3, 4), "compression": "gzip", "fletcher32": True},
    "library": {"chunks": (4, 3, 4), "compression": "lzf"},
}


def stored(folder: Path, way: str) -> Path:
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("data", data=some_array((12, 3, 4), "f4"), **WAYS[way])
    return folder / "a.h5"


@pytest.mark.parametrize("way", ["contiguous", "chunked", "gzip"])
@pytest.mark.parametrize("how", [BY_MAP, BY_PREADV])
def test_a_file_cut_short_under_way_is_an_error_that_names_it(way: str, how: str, tmp_path: Path) -> None:
    path = stored(tmp_path, way)
    source = in_loader(opened("hdf5", tmp_path, ["data"], path="a.h5", chunk_cache_bytes=0))
    with bytes_read(how):
        assert_rows(source, [11, 0], {"data": some_array((12, 3, 4), "f4")})
        os.truncate(path, 1200)
        with pytest.raises(SourceError, match=r"a\.h5"):
            rows_of(source, [11])
    source.close()


@pytest.mark.parametrize("chunk", [(4, 3, 4), (4, 2, 2)])
@pytest.mark.parametrize("way", ["gzip", "library"])
def test_a_corrupted_chunk_is_an_error_that_names_it_and_spares_the_others(
    way: str, chunk: tuple[int, ...], tmp_path: Path
) -> None:
    values = some_array((12, 3, 4), "f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("data", data=values, **{**WAYS[way], "chunks": chunk, "fletcher32": True})
        broken = dataset.id.get_chunk_info_by_coord((4, 0, 0))
    with (tmp_path / "a.h5").open("r+b") as stream:
        stream.seek(broken.byte_offset + 5)
        stream.write(b"\xff\x00\xff")
    source = in_loader(opened("hdf5", tmp_path, ["data"], path="a.h5"))
    with pytest.raises(SourceError, match=r"a\.h5:data: "):
        rows_of(source, [0, 5, 9])
    assert_rows(source, [0, 3, 8, 11], {"data": values})
    source.close()


def test_a_chunk_with_a_wrong_checksum_says_so(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("data", data=np.ones((8, 3)), chunks=(4, 3), fletcher32=True)
        offset = dataset.id.get_chunk_info_by_coord((4, 0)).byte_offset
    with (tmp_path / "a.h5").open("r+b") as stream:
        stream.seek(offset)
        stream.write(b"\x07")
    source = in_loader(opened("hdf5", tmp_path, ["data"], path="a.h5"))
    with pytest.raises(SourceError, match=rf"a\.h5:data: the chunk at byte {offset} of the file: .*checksum"):
        rows_of(source, [4])
    source.close()


def test_a_string_longer_than_declared_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("label", data=["ab", "abc", "abcdef"], dtype=h5py.string_dtype())
    source = in_loader(opened("hdf5", tmp_path, ["label"], path="a.h5", max_length=3))
    assert_rows(source, [1, 0], {"label": np.array([b"ab", b"abc", b"xyz"])})
    with pytest.raises(SampleTooLargeError, match=re.escape("6 bytes does not fit the declared maximum of 3")):
        rows_of(source, [2])
    source.close()


def test_an_index_beyond_the_samples_is_refused(tmp_path: Path) -> None:
    source = in_loader(opened("hdf5", tmp_path, path=str(good(tmp_path))))
    for bad in (-1, 12):
        with pytest.raises(IndexError, match=f"{bad} is not in 0 … 11"):
            rows_of(source, [3, bad])
        with pytest.raises(IndexError, match=f"{bad} is not in 0 … 11"):
            source.will_need(np.array([3, bad]))
    source.close()
