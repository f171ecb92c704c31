"""Which Python runs the children: the trainer's own version, however little `sys.executable` can be trusted."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from blobfeed.workers.processes import child_environment, find_interpreter, interpreter
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import InterpreterError
from tests.support.part import examples, some_of

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

MakeProgram = Callable[[str, str], str]


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BLOBFEED_PYTHON", raising=False)


@pytest.fixture
def program(tmp_path: Path) -> MakeProgram:
    """Makes a shell script under a name; it may play a Python."""
    return lambda name, body: make_program(tmp_path / name, body)


def make_program(path: Path, body: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def no_prefixes(monkeypatch: pytest.MonkeyPatch, prefix: Path) -> None:
    """No Python but `sys.executable` is to be found."""
    monkeypatch.setattr(sys, "exec_prefix", str(prefix))
    monkeypatch.setattr(sys, "base_exec_prefix", str(prefix))


# ---- sys.executable


def test_the_trainers_own_program_is_taken_without_asking_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOBFEED_PYTHON", "")  # an empty choice is none

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started to ask for the version")

    monkeypatch.setattr(subprocess, "run", refuse)
    assert find_interpreter() == sys.executable


ANSWERS = {
    "right": f"echo {VERSION}",
    "older": "echo 2.7",
    "failing": "exit 3",
    "killed": "kill -9 $$",
    "silent": "echo",
    "none": "",  # there is no such program
}
FAULTS = {"older": "2.7", "failing": "exit status 3", "killed": "", "silent": ""}


@examples(40)
@given(st.lists(st.sampled_from(sorted(ANSWERS)), min_size=3, max_size=3))
def test_the_first_python_of_the_trainers_version_is_taken_or_every_candidate_named(answers: list[str]) -> None:
    """`sys.executable` comes first: in the `caffe train` binary it is the first python3 on PATH, or empty."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        candidates = [Path(folder, "python3"), *(Path(folder, each, "bin", f"python{VERSION}") for each in "ab")]
        for path, answer in zip(candidates, answers, strict=True):
            if answer != "none":
                make_program(path, ANSWERS[answer])
        patch.setattr(sys, "executable", "" if answers[0] == "none" else str(candidates[0]))
        patch.setattr(sys, "exec_prefix", str(Path(folder, "a")))
        patch.setattr(sys, "base_exec_prefix", str(Path(folder, "b")))
        if "right" in answers:
            assert find_interpreter() == str(candidates[answers.index("right")])
            return
        tried = [
            f"{path} .*{FAULTS[answer]}" for path, answer in zip(candidates, answers, strict=True) if answer != "none"
        ]
        with pytest.raises(InterpreterError, match=".*".join([VERSION, *tried, "BLOBFEED_PYTHON"])):
            find_interpreter()


def test_a_prefix_that_cannot_be_looked_into_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, program: MakeProgram, tmp_path: Path
) -> None:
    # As after setuid, if Python lies below /root. A name that no folder can have stands for it: root may look anywhere.
    monkeypatch.setattr(sys, "executable", program("python3", "exit 13"))
    no_prefixes(monkeypatch, tmp_path / ("d" * 300))
    with pytest.raises(InterpreterError):
        find_interpreter()


def test_a_program_that_never_answers_is_given_up(
    monkeypatch: pytest.MonkeyPatch, program: MakeProgram, tmp_path: Path
) -> None:
    monkeypatch.setattr(interpreter, "_ANSWER_S", 0.1)
    monkeypatch.setattr(sys, "executable", program("python3", "exec sleep 1000"))
    no_prefixes(monkeypatch, tmp_path)
    with pytest.raises(InterpreterError):
        find_interpreter()


@pytest.mark.parametrize("chosen", ["", sys.executable])
def test_a_frozen_program_is_not_started_again_and_again(monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    # As PyInstaller has it: sys.executable is the program itself, which takes no -m.
    monkeypatch.setenv("BLOBFEED_PYTHON", chosen)
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(InterpreterError, match="num_loaders: 0"):
        find_interpreter()


@pytest.mark.parametrize("frozen", [False, True])
def test_a_python_that_the_user_names_is_taken(
    monkeypatch: pytest.MonkeyPatch, program: MakeProgram, frozen: bool
) -> None:
    monkeypatch.setattr(sys, "frozen", frozen, raising=False)
    monkeypatch.setenv("BLOBFEED_PYTHON", chosen := program("my-python", f"echo {VERSION}"))
    assert find_interpreter() == chosen


def _without_packages(folder: Path) -> str:
    venv.create(folder, symlinks=True)
    return str(folder / "bin" / f"python{VERSION}")


def test_a_python_of_the_right_version_without_blobfeed_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # As after setuid, if the environment lies below /root: the Python that it was made of runs, and has no packages.
    bare = _without_packages(tmp_path / "bare")
    no_prefixes(monkeypatch, tmp_path / "bare")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "out" / "of" / "reach"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(InterpreterError) as caught:
        find_interpreter()
    assert f"{bare} ({VERSION}, which does not find blobfeed, cloudpickle, msgspec, numpy, xxhash, zmq)" in str(
        caught.value
    )
    assert "out/of/reach (does not run: " in str(caught.value)


def test_such_a_one_is_taken_if_pythonpath_leads_to_the_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare = _without_packages(tmp_path / "bare")
    monkeypatch.setenv("BLOBFEED_PYTHON", bare)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(site.getsitepackages()))
    assert find_interpreter() == bare


# ---- the children's environment


def test_a_child_finds_the_package_from_anywhere(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", "import blobfeed.workers.processes.interpreter as i; print(i.__file__)"]
    child = subprocess.run(command, cwd=tmp_path, env=child_environment(), capture_output=True, text=True, check=True)
    assert child.stdout.strip() == interpreter.__file__


def test_a_child_has_the_trainers_environment_its_search_path_its_role_and_one_thread_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"SOME_SETTING": "seven", "PYTHONPATH": "/one:/two", "OPENBLAS_NUM_THREADS": "4"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = dict(os.environ)
    environment = child_environment()
    assert dict(os.environ) == before
    assert environment["PYTHONPATH"].endswith("/one:/two")
    assert (environment["BLOBFEED_ROLE"], environment["OMP_NUM_THREADS"]) == ("assembler", "1")
    assert {**environment, "PYTHONPATH": "/one:/two"}.items() >= before.items()


# ---- what it finds


AFTER_CHDIR = """
import os, sys
import numpy as np
from blobfeed import BatchReader
from my_hooks import decode

os.chdir(sys.argv[1])
{then}
source = {{"arrays": {{"data": np.zeros((8, 2))}}}}
for _ in BatchReader(source, batch_size=4, num_loaders=1, epochs=1, decode=decode, base_dir="/"):
    pass
"""


@pytest.mark.parametrize("then", some_of(["os.rmdir(os.getcwd())", ""], 2))
def test_a_module_from_where_the_program_began_is_found_after_chdir(tmp_path: Path, then: str) -> None:
    (tmp_path / "my_hooks.py").write_text("def decode(sample, rng):\n    return sample['data']\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [sys.executable, "-c", AFTER_CHDIR.format(then=then), str(elsewhere)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


IGNORING = """
import numpy as np
from blobfeed import BatchReader

source = {"arrays": {"data": np.zeros((8, 2))}}
for _ in BatchReader(source, batch_size=4, num_loaders=1, epochs=1):
    pass
"""


@pytest.mark.parametrize("flag", some_of(["-I", "-E"], 2))
def test_a_search_path_that_the_trainer_ignores_is_ignored_by_its_children(flag: str, tmp_path: Path) -> None:
    (tmp_path / "zmq.py").write_text("raise ImportError('of another Python')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-P", flag, "-c", IGNORING]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


UTF8 = """
import numpy as np
from blobfeed import BatchReader

np.save("\u6570.npy", np.zeros((8, 2)))
for _ in BatchReader({"npy": {"data": "\u6570.npy"}}, batch_size=4, num_loaders=1, epochs=1):
    pass
"""


def test_the_children_name_files_in_utf_8_if_the_trainer_does(tmp_path: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    command = [sys.executable, "-X", "utf8", "-c", UTF8]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
