"""Records that are wrong: tar shards and LMDB databases; and what cannot be a stream."""

from __future__ import annotations

import io
import json
import sqlite3
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from blobfeed import ArraySpec, Field, RaggedRows, Records, Store, StreamSource, Table
from tests.support.catalogue import Scenario, scenario
from tests.support.datums import encoded_datum, float_datum, raw_datum, write_lmdb
from tests.support.pictures import encoded, noise, picture
from tests.support.stored import opened
from tests.support.tars import add, write_tar

PICTURE = encoded(picture(16, 24), ".png")


def array(value: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, value)
    return stream.getvalue()


@scenario
def tar(
    folder: Path,
    /,
    content: Iterable[tuple[str, bytes]],
    change: Callable[[bytes], bytes] = bytes,
    tops: Any = None,
    **options: Any,
) -> Any:
    write_tar(folder / "a.tar", content)
    (folder / "a.tar").write_bytes(change((folder / "a.tar").read_bytes()))
    return opened("tar", folder, tops, path="a.tar", **options)


def numbers(*values: Any) -> Scenario:
    """The top x, of a .json for each sample."""
    return tar(
        [(f"{n}.json", json.dumps({"x": value}).encode()) for n, value in enumerate(values)], members={"x": "json:x"}
    )


def arrays(*values: Any) -> Scenario:
    return tar([(f"{number}.npy", array(value)) for number, value in enumerate(values)])


def _linked(folder: Path) -> Any:
    with tarfile.open(folder / "a.tar", "w") as file:
        add(file, "0.cls", b"0")
        add(file, "4.cls", kind=tarfile.LNKTYPE, link="0.cls")
    return opened("tar", folder, path="a.tar")


@scenario
def _pax(folder: Path, /, attribute: bytes) -> Any:
    with tarfile.open(folder / "a.tar", "w", format=tarfile.USTAR_FORMAT) as file:
        for name, kind, content in (("a.cls", b"0", b"1"), ("pax", b"x", attribute), ("b.cls", b"Q", b"")):
            add(file, name, content, kind)
    return opened("tar", folder, path="a.tar")


@scenario
def _braces(folder: Path, /, path: str) -> Any:
    write_tar(folder / "a-011.tar", [("0.cls", b"1")])
    return opened("tar", folder, path=path)


_THREE = [(f"{n}.cls", b"%d" % n) for n in range(3)]
TAR = {
    "tar, a member is missing": tar([("a.cls", b"1"), ("b.txt", b"x")], members={"y": "cls"}),
    "tar, a member is missing everywhere": tar([("a.cls", b"1"), ("b.cls", b"1")], members={"y": "txt"}),
    "tar, members in no order": tar(
        [("a.cls", b"1"), ("b.txt", b"x"), ("a.txt", b"x"), ("b.cls", b"2")], members={"y": "cls"}
    ),
    "tar, a member twice": tar([("a.cls", b"1"), ("a.cls", b"2")]),
    "tar, a misspelt top": tar([("a.cls", b"1")], tops=["clas"]),
    "tar, no samples": tar([]),
    "tar, pictures without a size": tar([("a.jpg", b"1")]),
    "tar, no array": tar([("a.npy", b"1")]),
    "tar, an empty array": tar([("a.npy", b"")]),
    "tar, empty": tar([], lambda _: b""),
    "tar, no tar file": tar([], lambda _: b"x" * 600),
    "tar, damaged": tar(_THREE, lambda whole: whole[:1024] + b"\xff" * 512 + whole[1536:]),
    "tar, a second file behind the first": tar(_THREE, lambda whole: whole * 2),
    "tar, a hard link": _linked,
    "tar, a negative size": _pax(b"14 size=-1536\n"),  # the next member is the one before
    "tar, braces within braces": _braces("a-{011,0{09..10}}.tar"),
    "tar, a longer string": arrays(np.bytes_("ox"), np.bytes_("cat")),
    "tar, an integer that a float rounds": numbers(0.5, 2**53, 2**53 + 1),
    "tar, an integer beside floats": numbers([0.5, 2**60], [0.5, 2**53 + 1]),
    "tar, signed and not": numbers([0.5, 2**60], [2**63 + 1, -1]),
    "tar, a word for a class": tar([("a.cls", b"1"), ("b.cls", b"one")]),
    "tar, a bad picture of another extension": tar(
        [("0.jpg", PICTURE), ("1.jpg", PICTURE), ("2.png", b"no picture")],
        members={"data": "jpg;png"},
        equal_sizes=True,
    ),
}

RAW = np.random.default_rng(0).integers(0, 256, (7, 3, 5, 4), np.uint8)


@scenario
def records(folder: Path, /, *content: bytes, change: Callable[[Path], object] = lambda _: None, **options: Any) -> Any:
    """A database `a` of these records; `change` gets its folder."""
    change(write_lmdb(folder / "a", content))
    return opened("lmdb", folder, path="a", **options)


def bad_record(record: bytes) -> Scenario:
    return records(raw_datum(RAW[0]), record)


def _beside(make: Callable[[Path], object]) -> Scenario:
    return lambda folder: (make(folder / "a") and None) or opened("lmdb", folder, path="a")


def _level(path: Path) -> None:
    path.mkdir()
    (path / "CURRENT").write_text("MANIFEST-000002\n")


def _open_already(folder: Path) -> Any:
    if lmdb.__version__ < "3":
        pytest.skip("an older lmdb opens a database twice")
    write_lmdb(folder / "a", [raw_datum(RAW[0])])
    with lmdb.open(str(folder / "a"), readonly=True, lock=False):
        return opened("lmdb", folder, path="a")


def _cut(path: Path) -> None:
    (path / "data.mdb").write_bytes((path / "data.mdb").read_bytes()[:8192])


_PICTURE = encoded_datum(encoded(noise(5, 4), ".png"))
_LARGE = [encoded_datum(encoded(noise(6, 5), ".png")), raw_datum(noise(8, 3).transpose(2, 0, 1).copy())]
LMDB = {
    "lmdb, absent": _beside(lambda _: None),
    "lmdb, an empty folder": _beside(Path.mkdir),
    "lmdb, a LevelDB": _beside(_level),
    "lmdb, text": _beside(lambda path: path.write_text("text" * 5000)),
    "lmdb, no records": records(),
    "lmdb, open already": _open_already,
    "lmdb, cut short": records(*map(raw_datum, RAW), change=_cut),
    "lmdb, no protobuf": bad_record(b"no protobuf"),
    "lmdb, an empty record": bad_record(b""),
    "lmdb, no picture": records(_PICTURE, encoded_datum(b"no picture")),
    "lmdb, an encoded one behind a raw one": bad_record(_PICTURE),
    "lmdb, one channel": bad_record(raw_datum(RAW[0][:1].copy())),
    "lmdb, floats among bytes": bad_record(float_datum(RAW[0])),
    "lmdb, raw pixels as RGB": records(raw_datum(RAW[0]), color="rgb"),
    "lmdb, raw pixels beside RGB": records(
        encoded_datum(encoded(RAW[0].transpose(1, 2, 0).copy(), ".png")), raw_datum(RAW[1])
    ),
    "lmdb, larger than declared": records(*_LARGE, max_height=7),
    "lmdb, unequal sizes": records(*_LARGE),
    "lmdb, a first JPEG that ends early": records(
        *map(encoded_datum, (encoded(picture(24, 32))[:-20], encoded(picture(24, 32)))), strict=False
    ),
}


# ---- a table of the user's own


class _Bytes(Store[int]):
    def read(self, place: int) -> bytes:
        return bytes(place)


def _put(record: bytes, row: int, rows: RaggedRows) -> None:
    rows.put(row, np.frombuffer(record, np.uint8))


def _own_table(_: Path) -> Table:
    field = Field[bytes](ArraySpec((3,), np.dtype(np.uint8), varies=True), _put)
    return Table("bytes", [Records(_Bytes(), 5, {"data": field})], held_in="memory")


OWN = {"a table, larger than declared": _own_table}


# ---- streams


def _row_of_a_database() -> Iterator[sqlite3.Row]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.row_factory = sqlite3.Row
        yield from connection.execute("select 1 as number, 'one' as name")


def stream(*given: Any, **options: Any) -> Scenario:
    return lambda _: StreamSource(*given, **options)


STREAM = {
    "stream, a generator": stream(number for number in [1]),
    "stream, no sample": stream([]),
    "stream, a list in two shards": stream([1], shards=2),
    "stream, less than nothing": stream([1], capacity=-1),
    "stream, None": stream([{"a": None}]),
    "stream, bytes that end with zero": stream([{"a": b"ab\0"}]),
    "stream, a number beside text": stream([{"a": [1, "b"]}]),
    "stream, a database's row": stream(_row_of_a_database),
    "stream, a path": stream("train.txt"),
    "stream, a dict": stream({"x": [1, 2]}),
    "stream, a number": stream(5),
    **{
        f"stream, {name}": stream(make)
        for name, make in {
            "an argument": lambda path: [1],
            "one shard": lambda shard=0: [1],
            "a keyword": lambda shard, num_shards, *, path: [1],
        }.items()
    },
}

SCENARIOS = TAR | LMDB | OWN | STREAM
