"""HDF5 files that are wrong: a data set for each top, or for each sample."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np

from tests.support.catalogue import Scenario, scenario
from tests.support.stored import opened, some_array

Fill = Callable[[h5py.File], object]


@scenario
def hdf5(
    folder: Path, /, path: Any = "a.h5", tops: Any = None, fill: Fill | None = None, kind: str = "hdf5", **options: Any
) -> Any:
    """`fill` writes a.h5, at first with nothing in it; the other files of `_several` lie beside."""
    _several(folder)
    with h5py.File(folder / "a.h5", "w") as file:
        (fill or _good)(file)
    return opened(kind, folder, tops, **({} if path is None else {"path": path}), **options)


def _good(file: h5py.File) -> None:
    file["data"], file["label"] = some_array((12, 3, 4), "f4"), np.arange(12)


def _several(folder: Path) -> None:
    (folder / "folder.h5").mkdir()
    os.mkfifo(folder / "fifo")
    for name in ("picture.h5", "picture.png"):
        (folder / name).write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(1000))
    (folder / "empty.h5").write_bytes(b"")
    (folder / "missing.txt").write_text("good.h5\nabsent.h5\n")
    (folder / "itself.txt").write_text("good.h5\n\nitself.txt\n")
    (folder / "latin.txt").write_bytes("Bücher.h5".encode("latin-1"))
    with h5py.File(folder / "good.h5", "w") as file:
        _good(file)
    whole = (folder / "good.h5").read_bytes()
    (folder / "half.h5").write_bytes(whole[: len(whole) // 2])


def _kinds(file: h5py.File) -> None:
    file["data"] = np.zeros((12, 3))
    file["labels"] = np.arange(12)
    file["few"] = np.arange(11)
    file["one"] = 5
    file["null"] = h5py.Empty("f4")
    file["group/inner"] = np.zeros(12)
    file["table"] = np.zeros(12, [("x", "f4"), ("y", "i4")])
    file.create_dataset("words", (12, 2), h5py.vlen_dtype("f4"))
    file.create_dataset("foreign", (12,), h5py.vlen_dtype(">f4"))
    file["dangling"] = h5py.SoftLink("/nowhere")


def _many(file: h5py.File) -> None:
    for number in range(40):
        file[f"picture{number}"] = np.zeros((3, 4, 4))


def _virtual(part: str) -> Fill:
    def fill(file: h5py.File) -> None:
        layout = h5py.VirtualLayout((12,), "f4")
        layout[:] = h5py.VirtualSource(part, "x", (12,))
        file.create_virtual_dataset("data", layout)

    return fill


def _short_storage(rest: int) -> Fill:
    def fill(file: h5py.File) -> None:
        Path(file.filename).with_name("b.bin").write_bytes(bytes(90))
        file.create_dataset("data", (8, 3), "f4", external=[("b.bin", 0, 40), ("b.bin", 40, rest)])

    return fill


def _unknown_filter(file: h5py.File) -> None:
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_chunk((4,))
    creation.set_filter(300, h5py.h5z.FLAG_OPTIONAL)
    space = h5py.h5s.create_simple((9,))
    h5py.h5d.create(file.id, b"data", h5py.h5t.NATIVE_INT32, space, creation).write(space, space, np.zeros(9, "i4"))


def _long_string(file: h5py.File) -> None:
    file.create_dataset("label", data=["ab", "abc", "abcdef"], dtype=h5py.string_dtype())


def _locked(folder: Path) -> Any:
    with h5py.File(folder / "a.h5", "w") as file:
        _good(file)
    with (folder / "a.h5").open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        return opened("hdf5", folder, path="a.h5", locking=True)


@scenario
def _damaged_index(folder: Path, /, size: int, corner: int, shifted: int, **options: Any) -> Any:
    path, entry = folder / "a.h5", struct.Struct("<2I4Q")  # size, mask, corner, place
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("data", data=some_array((12, 3), "f8"), chunks=(4, 3), **options)
        at = dataset.id.get_chunk_info_by_coord((4, 0)).byte_offset
    content = path.read_bytes()
    whole, damaged = entry.pack(96, 0, 4, 0, 0, at), entry.pack(size, 0, corner, 0, 0, at - shifted)
    assert content.count(whole) == 1
    path.write_bytes(content.replace(whole, damaged))
    return opened("hdf5", folder, ["data"], path="a.h5")


@scenario
def _damaged_chunk(folder: Path, /, kind: str, **options: Any) -> Any:
    """One chunk of the file is damaged; of hdf5_samples, that of the second sample."""
    values = np.random.default_rng(0).random((8, 3, 4), np.float32)
    with h5py.File(folder / "a.h5", "w") as file:
        if kind == "hdf5":
            dataset = file.create_dataset("data", data=values, fletcher32=True, **options)
        else:
            file["s0"] = values
            dataset = file.create_dataset("s1", data=values, fletcher32=True, **options)
        chunk = dataset.id.get_chunk_info(1)
    with (folder / "a.h5").open("r+b") as stream:
        stream.seek(chunk.byte_offset + 5)
        stream.write(b"\xff\x00\xff")
    return opened(kind, folder, ["data"], path="a.h5")


_CHUNKS = {"chunks": (4, 3, 4)}
TOPS = {
    "hdf5, absent": hdf5("absent.h5"),
    "hdf5, a folder": hdf5("folder.h5"),
    "hdf5, no file to read": hdf5("/proc/self/mem"),
    "hdf5, an empty list": hdf5([]),
    "hdf5, a picture": hdf5("picture.h5"),
    "hdf5, a picture by its own name": hdf5("picture.png"),
    "hdf5, an empty file": hdf5("empty.h5"),
    "hdf5, half a file": hdf5("half.h5"),
    "hdf5, a list with a missing file": hdf5("missing.txt"),
    "hdf5, a list that names itself": hdf5("itself.txt"),
    "hdf5, a list in Latin-1": hdf5("latin.txt"),
    "hdf5, no label": hdf5(fill=_kinds),
    "hdf5, no data, and a data set for each sample": hdf5(fill=_many),
    "hdf5, a group": hdf5(tops=["group"], fill=_kinds),
    "hdf5, a dangling link": hdf5(tops=["dangling"], fill=_kinds),
    "hdf5, unequal lengths": hdf5(tops=["data", "few"], fill=_kinds),
    "hdf5, a scalar": hdf5(tops=["one"], fill=_kinds),
    "hdf5, null": hdf5(tops=["null"], fill=_kinds),
    "hdf5, varying lengths in foreign byte order": hdf5(tops=["foreign"], fill=_kinds),
    "hdf5, a table": hdf5(tops=["table"], fill=_kinds),
    "hdf5, words in rows": hdf5(tops=["words"], fill=_kinds),
    "hdf5, a virtual data set with a gap": hdf5(tops=["data"], fill=_virtual("absent.h5")),
    "hdf5, a virtual data set over a FIFO": hdf5(tops=["data"], fill=_virtual("fifo")),
    "hdf5, no path": hdf5(None),
    "hdf5, a misspelt option": hdf5(lock=False),
    "hdf5, a number for a path": hdf5(5),
    "hdf5, no limit": hdf5(limit=0),
    "patch, no size": hdf5(patch={}),
    "patch, an unknown axis": hdf5(patch={"size": {"depth": 3}}),
    "patch, larger than the arrays": hdf5(patch={"size": {1: 5}}),
    "patch, longer than the steps with its shift": hdf5(patch={"size": {0: 8}, "shift": {0: 5}}),
    "patch, a stride of another axis": hdf5(patch={"size": {1: 2}, "stride": {2: 2}}),
    "patch, a selection beyond the axis": hdf5(patch={"size": {0: 2}, "select": {1: 3}}),
    "patch, a selection of its own axis": hdf5(patch={"size": {1: 2}, "select": {1: [0]}}),
    "patch, none with enough": hdf5(patch={"size": {0: 12}, "where": {"variable": "label", "at_least": 1}}),
    "patch, an absent mask": hdf5(patch={"size": {0: 2}, "where": {"variable": "mask", "at_least": 1}}),
    "patch, arrays over other grids": hdf5(tops=["data", "few"], fill=_kinds, patch={"size": {0: 2}}),
    "patch, and windows": hdf5(patch={"size": {0: 2}}, window={"length": 2}),
    "patch, texts": hdf5(tops=["label"], fill=_long_string, patch={"size": {0: 2}}),
    "hdf5, dims that there are not": hdf5(dims=["n", "h", "x"]),
    "hdf5, dims of an unknown top": hdf5(dims={"datum": ["n", "h", "w"]}),
    "hdf5, an unknown option": hdf5(num_dim=4),
    "hdf5, an unknown filter": hdf5(tops=["data"], fill=_unknown_filter),
    "hdf5, a file that is locked": _locked,
    "hdf5, storage that ends early": hdf5(tops=["data"], fill=_short_storage(56)),
    "hdf5, the index gives a chunk twice": _damaged_index(96, 0, 0),
    "hdf5, the index gives a place twice": _damaged_index(96, 4, 8),
    "hdf5, the index gives a short chunk": _damaged_index(95, 4, 0),
    "hdf5, the index gives a filtered chunk twice": _damaged_index(96, 0, 0, shuffle=True),
    "hdf5, the index gives a long chunk": _damaged_index(97, 4, 0, shuffle=True),
    "hdf5, a damaged chunk": _damaged_chunk("hdf5", **_CHUNKS),
    "hdf5, a damaged gzip chunk": _damaged_chunk("hdf5", compression="gzip", **_CHUNKS),
    "hdf5, a damaged tile": _damaged_chunk("hdf5", compression="gzip", chunks=(4, 2, 2)),
    "hdf5, a damaged chunk for the library": _damaged_chunk("hdf5", compression="lzf", **_CHUNKS),
    "hdf5, a string longer than declared": hdf5(tops=["label"], fill=_long_string, max_length=3),
}


# ---- a data set for each sample


def samples(fill: Fill, tops: Any = None, **options: Any) -> Scenario:
    return hdf5(tops=tops, fill=fill, kind="hdf5_samples", **options)


def labelled(*values: Any, name: str = "label") -> Fill:
    def fill(file: h5py.File) -> None:
        for number, value in enumerate(values):
            file[str(number)] = np.zeros(2)
            file[str(number)].attrs[name] = value

    return fill


def held(*values: Any) -> Fill:
    def fill(file: h5py.File) -> None:
        for number, value in enumerate(values):
            file[str(number)] = value

    return fill


def _label_missing(file: h5py.File) -> None:
    labelled(1)(file)
    file["1"] = np.zeros(2)
    file["1"].attrs["labels"] = 1


def _label_is_a_reference(file: h5py.File) -> None:
    file["0"] = np.zeros(2)
    file["0"].attrs["label"] = file["0"].ref


def _name_without_utf_8(folder: Path) -> Any:
    path = os.fsdecode(os.fsencode(folder) + b"/\xff.h5")
    with h5py.File(path, "w") as file:
        held(np.zeros(2, "f4"), np.zeros(2, "f8"))(file)
    return opened("hdf5_samples", folder, path=path)


@scenario
def _changed_link(folder: Path, /, changed: Any) -> Any:
    """A sample of another shape or type than was scanned, behind two links."""
    for name, value in {"before.h5": np.arange(3), "after.h5": changed}.items():
        with h5py.File(folder / name, "w") as file:
            file["0"] = value
    for name, target in {"m.h5": "link.h5", "link.h5": "before.h5"}.items():
        with h5py.File(folder / name, "w") as file:
            file["0"] = h5py.ExternalLink(target, "0")
    source = opened("hdf5_samples", folder, path="m.h5")
    with h5py.File(folder / "link.h5", "w") as file:
        file["0"] = h5py.ExternalLink("after.h5", "0")
    return source


_LABEL = {"labels": ["label"]}
SAMPLES = {
    "hdf5_samples, a label is missing": samples(_label_missing, **_LABEL),
    "hdf5_samples, labels of unequal shapes": samples(labelled(1, [1, 2]), **_LABEL),
    "hdf5_samples, a number and a word": samples(labelled(1, "one"), **_LABEL),
    "hdf5_samples, a reference as label": samples(_label_is_a_reference, **_LABEL),
    "hdf5_samples, an integer that a float rounds": samples(labelled(np.int64(2**53 + 1), 0.5), **_LABEL),
    "hdf5_samples, signed and not": samples(labelled(2**62, np.uint64(7)), **_LABEL),
    "hdf5_samples, the last of many": samples(labelled(*[0.5] * 600, np.int64(2**53 + 1)), **_LABEL),
    "hdf5_samples, unequal types": samples(held(np.zeros(2, "f4"), np.zeros(2, "f8"))),
    "hdf5_samples, unequal axes": samples(held(np.zeros(2), np.zeros((2, 2)))),
    "hdf5_samples, empty samples": samples(held(np.zeros((0, 2)), np.zeros((0, 2)))),
    "hdf5_samples, a dangling link": samples(held(h5py.SoftLink("/nowhere"))),
    "hdf5_samples, no samples": samples(lambda file: file.create_group("group")),
    "hdf5_samples, no groups": samples(lambda file: file.create_group("group"), datasets=["x", "y"]),
    "hdf5_samples, a misspelt group": samples(lambda file: file.create_group("group"), groups=["grup"]),
    "hdf5_samples, a data set is missing": samples(
        lambda file: held()(file) or file.create_dataset("demo/x", data=1), datasets=["x", "y"]
    ),
    "hdf5_samples, a group in place of a data set": samples(lambda file: file.create_group("demo/x"), datasets=["x"]),
    "hdf5_samples, a name that is no UTF-8": _name_without_utf_8,
    "hdf5_samples, a word for labels": samples(labelled(1), labels="label"),
    "hdf5_samples, a label named data": samples(labelled(1), labels={"data": "label"}),
    "hdf5_samples, a damaged chunk": _damaged_chunk("hdf5_samples", compression="gzip", **_CHUNKS),
    "hdf5_samples, a link to another shape": _changed_link(np.array([9])),
    "hdf5_samples, a link to another type": _changed_link(np.arange(3) + 0.75),
}

SCENARIOS = TOPS | SAMPLES
