"""A long scan says on a terminal how far it has come."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.sources.hdf5_samples import Progress

_SCAN = """
import itertools, sys
from pathlib import Path
from blobfeed.sources import open_source
from blobfeed.sources.hdf5_samples import progress
seconds = itertools.count()  # each look at the clock is a second later
progress.Progress.__init__.__defaults__ = (None, seconds.__next__)
source = open_source({"hdf5_samples": {"path": sys.argv[1]}}, tops=None, base_dir=Path())
print(len(source))
"""


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_it_speaks_after_a_second_and_then_twice_a_second() -> None:
    terminal, now = _Terminal(), [100.0]
    with Progress(terminal, lambda: now[0]) as progress:
        for time in (100.5, 101.1, 101.2, 101.7):
            now[0] = time
            progress.tell("a.h5", int(1000 * (time - 100)))
    assert terminal.getvalue().split("\r\033[K") == [
        "",
        "looking for samples in a.h5: 1,099 found, 999 a second",
        "looking for samples in a.h5: 1,700 found, 1,000 a second",
        "",
    ]


def test_a_short_scan_says_nothing() -> None:
    terminal = _Terminal()
    with Progress(terminal, lambda: 0.0) as progress:
        progress.tell("a.h5", 10)
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("on_terminal", [True, False])
def test_a_scan_says_on_a_terminal_how_far_it_is(on_terminal: bool, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(600):
            file[f"sample_{number}"] = np.zeros(2, np.uint8)
    command = [sys.executable, "-P", "-c", _SCAN, str(tmp_path / "a.h5")]
    if not on_terminal:
        done = subprocess.run(command, check=True, capture_output=True, timeout=200)
        assert (done.stdout.split(), done.stderr) == ([b"600"], b"")
        return
    ours, theirs = pty.openpty()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=theirs, timeout=200)
    said = os.read(ours, 10_000).decode()
    os.close(theirs)
    os.close(ours)
    assert done.stdout.split() == [b"600"]
    assert "a.h5: 256 found" in said
    assert "a.h5: 512 found" in said
