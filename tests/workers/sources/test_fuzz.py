"""Damaged copies of the formats that are read without a library; and that the study of them can fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from blobfeed.workers.base.errors import SourceError

from tests.faults import fuzz
from tests.faults.fuzz import TARGETS, Target, wrong_copies

_COPIES = 60


@pytest.mark.parametrize("name", TARGETS)
def test_a_damaged_file_is_read_or_refused_by_name(name: str, tmp_path: Path) -> None:
    assert list(wrong_copies(name, tmp_path, seed=2, count=_COPIES)) == []


def _raise(_path: Path) -> None:
    raise KeyError("label")


def test_a_raw_exception_is_wrong(tmp_path: Path) -> None:
    assert fuzz._what_is_wrong(Target(lambda folder: folder, _raise), tmp_path) == "KeyError: 'label'"


def _refuse(_path: Path) -> None:
    raise SourceError("something is damaged")


def test_an_error_that_does_not_name_the_file_is_wrong(tmp_path: Path) -> None:
    assert "does not name the file" in fuzz._what_is_wrong(Target(lambda folder: folder, _refuse), tmp_path)


def test_a_crash_and_a_hang_are_seen_and_the_other_copies_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "reader"
    script.write_text(
        "import os, signal, sys, time\n"
        "for number in range(int(sys.argv[-1]), int(sys.argv[-2])):\n"
        "    os.write(1, f'{number}\\n'.encode())\n"
        "    if number == 1: os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    if number == 3: time.sleep(600)\n"
    )
    monkeypatch.setattr(fuzz, "_COMMAND", (str(script),))
    monkeypatch.setattr(fuzz, "_PATIENCE_S", 2.0)
    found = list(wrong_copies("npy header", tmp_path, seed=1, count=6))
    assert [line.partition(": ")[2] for line in found] == ["the process ended with -11", "hung"]
    assert [line.split(", ")[1][:6] for line in found] == ["copy 1", "copy 3"]
