"""The cache folder of indices: bounded in size, what is used stays, and nothing but blobfeed's own files goes."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.sources.files import kept_indices as kept_module

from tests.support.stored import opened, rows_of
from tests.support.tars import write_tar

_KILLED_WHILE_WRITING = """
import os, signal
from pathlib import Path
from blobfeed.sources import open_source

def killed(path, content):
    with path.open("wb") as file:
        file.write(content[:50])
    os.kill(os.getpid(), signal.SIGKILL)

Path.write_bytes = killed
open_source({"tar": {"path": "killed.tar"}}, tops=None, base_dir=Path.cwd())
"""


@pytest.fixture(autouse=True)
def _a_cache_folder_for_each_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in "abcd":
        write_tar(tmp_path / f"{name}.tar", [(f"{n}.cls", b"%d" % n) for n in range(3)])
    return tmp_path / "cache" / "blobfeed"


def _open(tmp_path: Path, name: str) -> Path:
    """Open a tar file; return the file of its index, which is the one touched last."""
    source = opened("tar", tmp_path, path=f"{name}.tar")
    assert rows_of(source, [2, 0])["cls"].tolist() == [2, 0]
    return max((tmp_path / "cache" / "blobfeed").glob("*.index"), key=lambda path: path.stat().st_mtime_ns)


def _age(path: Path, seconds: int) -> None:
    os.utime(path, ns=(0, path.stat().st_mtime_ns - seconds * 10**9))


@pytest.mark.parametrize("kind", ["tar", "hdf5_samples"])
def test_a_file_that_is_rewritten_with_its_size_and_time_has_no_old_index(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "data"
    for name in "xyy":
        if kind == "tar":
            write_tar(path, [(f"{name}.cls", b"0")])
        else:
            with h5py.File(path, "w") as file:
                file[name] = np.zeros(3)
        os.utime(path, ns=(0, 0))
        for _ in range(2):
            with closing(opened(kind, tmp_path, path="data")) as source:
                assert source.where(0).endswith(f":{name}")


def test_of_too_many_indices_those_used_longest_ago_go(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {}
    for name, seconds in {"a": 300, "b": 200, "c": 100}.items():
        files[name] = _open(tmp_path, name)
        _age(files[name], seconds)
    assert _open(tmp_path, "a") == files["a"]  # used again
    monkeypatch.setattr(kept_module, "_FOLDER_BYTES", 3 * files["a"].stat().st_size)
    files["d"] = _open(tmp_path, "d")
    assert set(folder.iterdir()) == {files[name] for name in "acd"}


def test_an_index_above_the_bound_stays_until_another_one_is_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_module, "_FOLDER_BYTES", 1)
    for name in "ab":
        file = _open(tmp_path, name)
        assert list(folder.iterdir()) == [file]
        _age(file, 100)


def test_what_killed_writers_left_goes_and_files_of_others_stay(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tar(tmp_path / "killed.tar", [("0.cls", b"1")])
    killed = subprocess.run([sys.executable, "-c", _KILLED_WHILE_WRITING], cwd=tmp_path, check=False, timeout=200)
    assert killed.returncode == -9
    (left,) = folder.iterdir()
    _age(left, 100)
    others = [folder / "notes.txt", folder / "a.index", folder / f"{'0' * 64}.index"]
    for path in others[:2]:
        path.write_bytes(bytes(1000))
        _age(path, 1000)
    others[2].mkdir()
    monkeypatch.setattr(kept_module, "_FOLDER_BYTES", 50)
    kept = _open(tmp_path, "a")
    assert set(folder.iterdir()) == {kept, *others}


def test_a_damaged_index_is_made_again_with_a_warning(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = _open(tmp_path, "a")
    whole = file.read_bytes()
    header = whole.index(b"\n") + 1
    for damaged in (b"", b"notes", whole[:-1], whole[:header] + b"?" + whole[header + 1 :], whole + b"?"):
        file.write_bytes(damaged)
        caplog.clear()
        _open(tmp_path, "a")
        assert "cannot be read and is made again" in caplog.text
        assert file.read_bytes() == whole
    caplog.clear()
    _open(tmp_path, "a")
    assert caplog.text == ""


def test_a_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    write_tar(tmp_path / "a.tar", [("0.cls", b"7")])
    options: dict[str, Any] = {"path": "a.tar"}
    assert rows_of(opened("tar", tmp_path, **options), [0])["cls"].tolist() == [7]
    assert "cannot be kept: Not a directory" in caplog.text
