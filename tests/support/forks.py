"""Programs that run in forks of one process: to import a framework takes longer than most of them do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from .waiting import readable

_PATIENCE_S = 200
_SERVER = """
import atexit, json, os, runpy, sys
hidden, *modules = sys.argv[1:]
if hidden:
    sys.modules[hidden] = None
for module in modules:
    __import__(module)

def traceback_of(error, program):
    frames = error.__traceback__
    while frames.tb_next and frames.tb_frame.f_code.co_filename != program:
        frames = frames.tb_next  # those of this server
    return frames

for line in sys.stdin:
    folder, program, *arguments = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(folder)
        for stream, (path, flags) in enumerate((
            (os.devnull, os.O_RDONLY),
            ("fork.stdout", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            ("fork.stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        )):
            os.dup2(os.open(path, flags), stream)
        ended = 1
        try:
            sys.argv = [program, *arguments]
            if program:
                runpy.run_path(program, run_name="__main__")
            else:
                runpy.run_module("blobfeed", run_name="__main__", alter_sys=True)
            ended = 0
        except SystemExit as error:
            ended = error.code if isinstance(error.code, int) else int(error.code is not None)
            if isinstance(error.code, str):
                print(error.code, file=sys.stderr)
        except BaseException as error:
            sys.excepthook(type(error), error.with_traceback(frames := traceback_of(error, program)), frames)
        finally:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(ended)  # to tear down a framework and what is under it can take two seconds
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Forks:
    process: subprocess.Popen[str]

    def run(self, folder: Path, program: Path | str, *arguments: str) -> tuple[int, str, str]:
        """Run the program as a main script in `folder`; return its exit code, standard output and standard error.

        An empty name is the command `blobfeed`. As under `python -P`, no folder is put on the path.
        """
        assert self.process.stdout is not None
        print(json.dumps([str(folder), str(program), *arguments]), file=self.process.stdin, flush=True)
        if not readable(self.process.stdout.fileno(), _PATIENCE_S):
            self.process.kill()  # the next programs would wait for this one, too
            pytest.fail(f"{program or arguments} goes on and on")
        ended = int(self.process.stdout.readline())
        return ended, (folder / "fork.stdout").read_text(), (folder / "fork.stderr").read_text()


@contextmanager
def forks_with(*modules: str, hidden: str = "", **environment: str) -> Iterator[Forks]:
    """Start a process that imports the modules and then runs programs, one after the other.

    The module `hidden` is found nowhere there.
    """
    # One thread: those that wait for work spin, and take the time of others.
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    with subprocess.Popen(
        [sys.executable, "-P", "-c", _SERVER, hidden, *modules],
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield Forks(process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # a program that hangs is in the group, too
