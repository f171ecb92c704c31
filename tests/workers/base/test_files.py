"""Small files are written whole or not at all, and never through a link that somebody has put there."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from blobfeed.workers.base import read_whole, write_whole


def test_a_link_at_the_temporary_name_is_not_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "victim").write_text("precious")
    monkeypatch.setattr("os.urandom", lambda size: b"guessed!")
    (tmp_path / f".a.index.{b'guessed!'.hex()}").symlink_to("victim")
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "a.index", b"new")
    assert (tmp_path / "victim").read_text() == "precious"
    assert (tmp_path / f".a.index.{b'guessed!'.hex()}").is_symlink()


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match=re.escape(str(tmp_path / "a"))):
        write_whole(tmp_path / "a", b"new")
    assert os.listdir(tmp_path) == ["a"]  # noqa: PTH208


def test_nothing_is_written_through_a_link_with_a_name_that_can_be_guessed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / f".a.index.{os.getpid()}.new").symlink_to("victim")
    write_whole(tmp_path / "a.index", b"new")
    assert (tmp_path / "victim").read_text() == "precious"
    assert read_whole(tmp_path / "a.index") == b"new"


def test_what_is_no_regular_file_stays_what_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "link").symlink_to("victim")
    (tmp_path / "dangling").symlink_to("nothing")
    before = {path.name: path.lstat() for path in tmp_path.iterdir()}
    for name in ("pipe", "link", "dangling"):
        with pytest.raises(OSError, match=name):
            write_whole(tmp_path / name, b"new")
    assert {path.name: path.lstat() for path in tmp_path.iterdir()} == before
