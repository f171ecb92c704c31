"""The table of kinds: each entry names parts that there are, and files are told by their looks."""

from __future__ import annotations

import gzip
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import h5py  # type: ignore[import-untyped]
import msgspec
import numpy as np
import pytest
from blobfeed.sources.kinds import KINDS, imported, kind_of, kind_of_name

from blobfeed import Source, StreamSource
from tests.support.datums import raw_datum, write_lmdb
from tests.support.tars import write_tar


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_names_parts_that_there_are(kind: str) -> None:
    entry = KINDS[kind]
    opener = imported(entry.opener)
    if isinstance(opener, type):
        assert issubclass(opener, Source | StreamSource)
        assert opener.kind == kind
    assert callable(opener)
    if entry.options:
        assert issubclass(imported(entry.options), msgspec.Struct)
    else:
        assert entry.about


INSTALLED = """
import numpy as np
from blobfeed import BatchReader
from blobfeed.sources.kinds import KINDS

with BatchReader({"squares": {"path": "9"}}, batch_size=9, num_loaders=1) as reader:
    print([batch["data"].tolist() for batch in reader])
for kind in ("broken", "sqares"):
    try:
        BatchReader({kind: "9"}, batch_size=1)
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_an_installed_package_adds_a_kind(tmp_path: Path) -> None:
    (tmp_path / "squares.py").write_text(
        "from blobfeed.sources.arrays import open_arrays\n"
        "def open_squares(options, *, tops, base_dir):\n"
        "    return open_arrays({'data': [n * n for n in range(int(options['path']))]}, tops=tops)\n"
    )
    (info := tmp_path / "squares-1.0.dist-info").mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: squares\nVersion: 1.0\n")
    entries = "squares = squares:open_squares\nbroken = squares:open_it\nnpy = squares:open_it\n"
    (info / "entry_points.txt").write_text(f"[blobfeed.sources]\n{entries}")
    run = subprocess.run([sys.executable, "-c", INSTALLED], cwd=tmp_path, capture_output=True, text=True, check=True)
    read, broken, unknown = run.stdout.splitlines()
    assert read == str([[n * n for n in range(9)]])
    assert broken.startswith("ParameterError source broken: 'squares:open_it', which an installed package names")
    assert "unknown kind 'sqares' (did you mean 'squares'?)" in unknown


def _hdf5(path: Path, block: int = 0) -> None:
    with h5py.File(path, "w", userblock_size=block) as file:
        file["data"] = np.zeros(3)


def test_files_are_told_by_their_content_whatever_their_name(tmp_path: Path) -> None:
    path = tmp_path / "data"
    made: dict[str, Callable[[], object]] = {
        "hdf5": lambda: _hdf5(path),
        "npz": lambda: path.write_bytes(b"PK\3\4 and more"),
        "lmdb": lambda: write_lmdb(path, [raw_datum(np.zeros((1, 2, 2), np.uint8), 0)], subdir=False),
        "tar": lambda: write_tar(path, [("0.h5", b"1")]),
        "parquet": lambda: path.write_bytes(b"PAR1 and more"),
        "": lambda: path.write_text("photos/a.jpg 1\n"),
    }
    for kind, make in made.items():
        path.unlink(missing_ok=True)
        make()
        assert kind_of(path) == kind
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    assert kind_of(path) == "npy"
    path.write_bytes(b"")
    assert kind_of(path) == ""


@pytest.mark.parametrize("block", [512, 4096, 1 << 20])
def test_an_hdf5_file_is_seen_behind_other_bytes(block: int, tmp_path: Path) -> None:
    _hdf5(tmp_path / "a.mat", block)
    assert kind_of(tmp_path / "a.mat") == "hdf5"


def test_a_tar_file_that_begins_with_an_hdf5_file_is_a_tar_file(tmp_path: Path) -> None:
    _hdf5(tmp_path / "a")
    member = (tmp_path / "a").read_bytes()
    write_tar(tmp_path / "shard", [("0.h5", member)], tarfile.USTAR_FORMAT)
    assert (tmp_path / "shard").read_bytes()[512:].startswith(member)
    assert kind_of(tmp_path / "shard") == "tar"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.h5", "hdf5"),
        ("a.h5.npy", "npy"),
        ("a.tar.gz", "tar"),
        ("a.gz", ""),
        ("train-images-idx3-ubyte", "idx"),
        ("train-images-idx3-ubyte.gz", "idx"),
        ("a.idx.txt", ""),
        ("part-0.parquet", "parquet"),
        ("data-00000-of-00001.arrow", "parquet"),
        ("h5", ""),
    ],
)
def test_the_end_of_a_name_decides_before_the_content(name: str, kind: str, tmp_path: Path) -> None:
    assert kind_of_name(name) == kind
    (tmp_path / name).write_bytes(gzip.compress(b"damaged"))
    assert kind_of(tmp_path / name) == kind


@pytest.mark.parametrize(
    ("marker", "kind"),
    [("data.mdb", "lmdb"), ("CURRENT", "lmdb"), (".zgroup", "zarr"), ("state.json", "parquet"), ("a.h5", "")],
)
def test_a_folder_is_told_by_a_file_in_it(marker: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / marker).touch()
    assert kind_of(tmp_path) == kind
