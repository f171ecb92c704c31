"""Damaged copies of the formats that are read without a library; and that the study of them can fail."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from blobfeed import SourceError
from tests.faults import fuzz
from tests.faults.fuzz import TARGETS, Target, wrong_copies


@pytest.mark.parametrize("name", TARGETS)
def test_a_damaged_file_is_read_or_refused_by_name(name: str, tmp_path: Path) -> None:
    assert list(wrong_copies(name, tmp_path, seed=2, count=4 if TARGETS[name].alone else 20)) == []


def _raise(_path: Path) -> None:
    raise KeyError("label")


def test_a_raw_exception_is_wrong(tmp_path: Path) -> None:
    assert fuzz.what_is_wrong(Target(lambda folder: folder, _raise), tmp_path) == "KeyError: 'label'"


def _refuse(_path: Path) -> None:
    raise SourceError("something is damaged")


def test_an_error_that_does_not_name_the_file_is_wrong(tmp_path: Path) -> None:
    assert "does not name the file" in fuzz.what_is_wrong(Target(lambda folder: folder, _refuse), tmp_path)


@pytest.mark.parametrize("alone", [False, True])
def test_a_crash_and_a_hang_are_seen_and_the_other_copies_are_tried(
    alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "whole").write_bytes(b"content")

    def read(_path: Path) -> None:
        with (tmp_path / "tried").open("a+") as tried:
            tried.write("x")
        match (tmp_path / "tried").stat().st_size:
            case 2:
                os.kill(os.getpid(), signal.SIGKILL)
            case 4:
                signal.pause()

    monkeypatch.setitem(fuzz.TARGETS, "any", Target(lambda folder: folder / "whole", read, alone=alone))
    monkeypatch.setattr(fuzz, "_PATIENCE_S", 2.0)
    found = list(wrong_copies("any", tmp_path, seed=1, count=6))
    assert [line.partition(": ")[2] for line in found] == ["the process ended with -9", "hung"]
    assert [line.split(", ")[1][:6] for line in found] == ["copy 1", "copy 3"]
    assert (tmp_path / "tried").stat().st_size == 6
