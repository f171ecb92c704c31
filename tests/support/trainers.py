"""Trainers in processes of their own, to be ended in every way there is, and the search for what they leave behind."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .leftovers import Belongings, describe, marked
from .waiting import DEADLINE_S, is_gone, readable, wait_until, wait_until_none

PRELUDE = '''
import os, resource, signal, subprocess, sys, time
from pathlib import Path

import numpy as np
from blobfeed import ArraySpec, BatchReader, Source
from blobfeed.workers.base.errors import *
from blobfeed.workers.api import Hooks
from blobfeed.workers.api import Parameters
from blobfeed.readers.opening import open_pipeline
from blobfeed.workers.pipeline import Pipeline

HERE = Path(__file__).parent


class Numbers(Source):
    """Sample i holds `items` times the number i."""

    kind = "numbers"

    def __init__(self, items=1000):
        self.items = items

    def __len__(self):
        return 40

    @property
    def specs(self):
        return {"data": ArraySpec((self.items,), np.dtype(np.uint8))}

    def read(self, indices, out):
        out["data"][...] = indices[:, None]


def pipeline(decode=None, source=None, **values):
    given = {"batch_size": 4, "num_loaders": 2, "timeout_s": 60.0}
    return open_pipeline(Parameters(**given | values), Hooks(decode), source=source or Numbers())


def steps(feed, count):
    """Take and check so many batches."""
    for _ in range(count):
        batch = feed.take()
        expected = (batch.number * 4 + np.arange(4)) % 40
        assert (batch.tops["data"] == expected[:, None]).all(), batch.number
        feed.release(batch)


def say(text):
    print(text, flush=True)


def hear():
    return sys.stdin.readline()
'''


class Trainer:
    """`body`, after PRELUDE, as a main script in `folder`, with a temporary directory and a mark of its own.

    `shell`: a command line that runs it, with `{}` in its place; else it is started directly. It gets a session of its
    own either way, so that signals to its process group reach nobody else.
    """

    def __init__(self, folder: Path, body: str, *, shell: str = "", env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self._mark = f"BLOBFEED_TEST_TRAINER={secrets.token_hex(8)}"
        # Not under `folder`: the paths of sockets have to be short.
        self._temporary = tempfile.TemporaryDirectory(prefix="t-")
        self._before = Belongings.now(Path(self._temporary.name))
        script = folder / "trainer.py"
        script.write_text(PRELUDE + body)
        command = [sys.executable, "-P", str(script)]
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        name, _, value = self._mark.partition("=")
        with (folder / "stderr").open("wb") as stderr:
            self.process = subprocess.Popen(
                ["sh", "-c", shell.format(" ".join(command))] if shell else command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**inherited, name: value, "TMPDIR": self._temporary.name, **(env or {})},
                start_new_session=True,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    # ---- talking with it

    def expect(self, text: str, limit_s: float = DEADLINE_S) -> None:
        """Wait for the line `text`."""
        assert self.next_line(limit_s) == text, self.stderr

    def next_line(self, limit_s: float = DEADLINE_S) -> str:
        assert readable(self.stdout.fileno(), limit_s), f"the trainer says nothing; {self.stderr}"
        return self.stdout.readline().decode().rstrip("\n")

    def tell(self, text: str = "") -> None:
        self.stdin.write(f"{text}\n".encode())

    # ---- its end

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """Wait for it; the code that it ended with."""
        return self.process.wait(DEADLINE_S)

    def family(self) -> list[int]:
        """All processes that carry the mark, the trainer's own among them."""
        return marked(self._mark)

    def children(self) -> list[int]:
        return [pid for pid in self.family() if pid != self.pid]

    def wait_for_children(self, count: int) -> list[int]:
        wait_until(lambda: len(self.children()) >= count, f"{count} children of the trainer")
        return self.children()

    def left_behind(self, recorded: list[int], spared: int = 0) -> list[str]:
        alive = {*self.family(), *(pid for pid in recorded if not is_gone(pid))} - {spared}
        survivors = [describe(pid) for pid in sorted(alive)]
        return survivors + Belongings.now(Path(self._temporary.name)).added_since(self._before)

    def assert_nothing_is_left(self, recorded: list[int], *, spared: int = 0) -> None:
        """Before long; `recorded`: children that were seen."""
        assert wait_until_none(lambda: self.left_behind(recorded, spared), DEADLINE_S) == [], self.stderr

    def tidy(self) -> None:
        """Whatever the test has come to: end what still runs."""
        for pid in {*self.family(), *([] if self.process.poll() is not None else [self.pid])}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.stdin.close()
        self.stdout.close()
        wait_until_none(lambda: [str(pid) for pid in self.family()], DEADLINE_S)
        self._temporary.cleanup()


@contextmanager
def trainer(folder: Path, body: str, *, shell: str = "", env: dict[str, str] | None = None) -> Iterator[Trainer]:
    started = Trainer(folder, body, shell=shell, env=env)
    try:
        yield started
    finally:
        started.tidy()
