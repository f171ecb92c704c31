"""A trainer is killed while its children start: at each step of their start, held there, and however slow they are.

A `sitecustomize` in the children's path stops one of them at a step, or makes it wait there: by an audit hook, so the
code under test knows nothing of it. The trainer is killed while the child stands still; then the child goes on.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.part import some_of
from tests.support.trainers import trainer
from tests.support.waiting import is_gone, wait_until

HOOK = """
import os, signal, sys, time

step, what, where = os.environ["HOLD_STEP"], os.environ["HOLD_HOW"], os.environ["HOLD_FILE"]
event, _, detail = step.partition(" ")
role, seen = "", 0

def hold():
    global seen
    seen += 1
    mine = f"{where}.{os.getpid()}"  # two loaders may come here at once
    with open(mine, "w") as file:
        file.write(str(os.getpid()))
    os.replace(mine, where + ".there")
    if what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        while not os.path.exists(where + ".on"):
            time.sleep(0.01)

def watch(name, arguments):
    if seen or name != event.partition("@")[0]:
        return
    if detail and not any(detail in str(argument) for argument in arguments):
        return
    if event.partition("@")[2] != role:
        return
    hold()

if any("blobfeed.workers.fork_server_main" in argument for argument in sys.orig_argv):
    def forked():
        global role
        role = {"": "assembler", "assembler": "nursery", "nursery": "loader"}[role]
        # A function of the C library that the parent has looked up already would not be looked up again.
        if kernel := sys.modules.get("blobfeed.workers.transport.linux"):
            vars(kernel.libc).pop("prctl", None)
        if event == "forked@" + role:
            hold()
    os.register_at_fork(after_in_child=forked)
    if event == "interpreter":
        hold()
    sys.addaudithook(watch)
"""

_LISTING = "os.listdir" if sys.version_info < (3, 13) else "os.scandir"
"""How Path.iterdir reads a folder."""

STEPS = {
    "its interpreter is up": "interpreter",
    "importing ZeroMQ": "import zmq",
    "importing numpy": "import numpy",
    "importing the last module": "import blobfeed.workers.processes.nursery",
    "forking the assembler": "os.fork",
    "the assembler is there": "forked@assembler",
    "unpickling the config": "pickle.find_class@assembler Plan",
    "forking the nursery": "os.fork@assembler",
    "the nursery is there": "forked@nursery",
    "the nursery asks to die with its parent": "ctypes.dlsym@nursery prctl",
    "the nursery closes descriptors": f"{_LISTING}@nursery /proc/self/fd",
    "forking a loader": "os.fork@nursery",
    "a loader is there": "forked@loader",
    "a loader asks to die with its parent": "ctypes.dlsym@loader prctl",
    "a loader maps the ring": "mmap.__new__@loader",
}

BODY = """
feed = pipeline()
feed.start()
say("started")
feed.peek()
say("has a batch")
hear()
"""


def _environment(folder: Path, step: str, how: str) -> dict[str, str]:
    hooks = folder / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(HOOK)
    return {"PYTHONPATH": str(hooks), "HOLD_STEP": step, "HOLD_HOW": how, "HOLD_FILE": str(folder / "held")}


@pytest.mark.parametrize("step", some_of(STEPS.values(), 3), ids=STEPS)
def test_a_child_held_at_a_step_of_its_start_is_gone_soon_after_it_goes_on(tmp_path: Path, step: str) -> None:
    with trainer(tmp_path, BODY, env=_environment(tmp_path, step, "stop")) as run:
        held = _held(tmp_path)
        wait_until(
            lambda: Path(f"/proc/{held}/stat").read_text().rpartition(")")[2].split()[0] == "T", "it stands still"
        )
        run.expect("started")
        children = run.children()
        assert held in children
        run.kill()
        if not is_gone(held):
            os.kill(held, signal.SIGCONT)
        run.assert_nothing_is_left(children)


@pytest.mark.parametrize("step", some_of(list(STEPS.values())[1:5], 4), ids=list(STEPS)[1:5])
def test_an_assembler_that_imports_ends_when_it_has_done_so(tmp_path: Path, step: str) -> None:
    """A trainer that dies meanwhile leaves nothing, neither processes nor the folder of the sockets."""
    with trainer(tmp_path, BODY, env=_environment(tmp_path, step, "linger")) as run:
        held = _held(tmp_path)
        run.expect("started")
        run.kill()
        assert not is_gone(held)
        (tmp_path / "held.on").touch()
        run.assert_nothing_is_left([held])


def test_a_trainer_that_blocks_all_signals_does_not_make_its_children_deaf(tmp_path: Path) -> None:
    body = "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n" + BODY
    with trainer(tmp_path, body) as run:
        run.expect("started")
        run.expect("has a batch")
        children = run.wait_for_children(5)
        # A child is forked with all of them blocked, and lets them through at its first steps.
        wait_until(lambda: not any(_blocked(pid) for pid in children), "all children hear signals")
        run.kill()
        run.assert_nothing_is_left([])


def _blocked(pid: int) -> int:
    """The mask of signals that the process blocks."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("SigBlk:")), 16)


def _held(folder: Path) -> int:
    there = folder / "held.there"
    wait_until(there.exists, "a child has come to that step")
    return int(there.read_text())
