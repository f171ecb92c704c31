"""A file that the trainer's host examined, seen from another host: the same one, a copy, or a wrong one."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
from pathlib import Path

import pytest
from blobfeed.sources.files import FileStamp
from blobfeed.workers.base import AnotherHost, files

from blobfeed import SourceError


def arrive(stamp: FileStamp, monkeypatch: pytest.MonkeyPatch, host: AnotherHost) -> FileStamp:
    monkeypatch.setattr(files, "_another_host", host)
    found: FileStamp = pickle.loads(pickle.dumps(stamp))
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "there" / "train.h5"
    path.parent.mkdir()
    path.write_bytes(b"x" * 100)
    return path


def test_on_the_same_host_a_stamp_stays_as_it_is(file: Path) -> None:
    stamp = FileStamp.of(str(file))
    file.write_bytes(b"changed")
    assert pickle.loads(pickle.dumps(stamp)) == stamp


def test_a_copy_with_its_times_is_taken_as_it_is(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stamp = FileStamp.of(str(file))
    shutil.copy2(file, file.with_name("copy"))
    file.with_name("copy").replace(file)
    with pytest.raises(SourceError):
        stamp.require_unchanged()
    arrive(stamp, monkeypatch, AnotherHost()).require_unchanged()


@pytest.mark.parametrize(("there", "here"), [(5_900_000_001, 5_000_000_000), (5_000_000_000, 5_900_000_001)])
def test_a_copy_may_have_its_time_in_whole_seconds(
    there: int, here: int, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(file, ns=(0, there))
    stamp = FileStamp.of(str(file))
    os.utime(file, ns=(0, here))
    arrive(stamp, monkeypatch, AnotherHost()).require_unchanged()
    os.utime(file, ns=(0, here + 10**9))
    with pytest.raises(SourceError, match=r"train\.h5"):
        arrive(stamp, monkeypatch, AnotherHost())


def test_another_file_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stamp = FileStamp.of(str(file))
    os.utime(file, ns=(0, 5))
    with pytest.raises(SourceError, match=r"train\.h5.*\b100 .*rsync -a"):
        arrive(stamp, monkeypatch, AnotherHost())
    file.unlink()
    with pytest.raises(SourceError, match=rf"train\.h5.*{os.strerror(errno.ENOENT)}"):
        arrive(stamp, monkeypatch, AnotherHost())


def test_what_was_shipped_is_looked_for_where_it_was_brought(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stamp, copy = FileStamp.of(str(file)), file.parent.parent / "here"
    copy.mkdir()
    (copy / "train.h5").write_bytes(b"x" * 100)
    found = arrive(stamp, monkeypatch, AnotherHost(str(file.parent), str(copy)))
    assert found.path == str(copy / "train.h5")
    found.require_unchanged()


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("/data/a/x.h5", "/copy/a/x.h5"),
        ("/data", "/copy"),
        ("/database/x.h5", "/database/x.h5"),
        ("/other/data/x.h5", "/other/data/x.h5"),
    ],
)
def test_only_what_lies_in_the_shipped_folder_is_elsewhere(there: str, here: str) -> None:
    assert AnotherHost("/data", "/copy/").path(there) == here
    assert AnotherHost().path(there) == there
