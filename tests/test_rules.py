"""The rules that tests are held to: each of them is seen to fail."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from .support import own_process, purity

HERE = Path(__file__).parent


def test_a_pure_test_that_starts_a_process_fails() -> None:
    with purity.held_to_it(), pytest.raises(AssertionError, match=r"starts a process \(subprocess.Popen\)"):
        subprocess.run(["true"], check=True)
    subprocess.run(["true"], check=True)


def test_a_pure_test_that_imports_a_framework_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    with purity.held_to_it(), pytest.raises(AssertionError, match="imports tensorflow"):
        importlib.import_module("tensorflow")


def test_the_tests_of_whole_rooms_are_pure() -> None:
    assert purity.is_in_pure_room(HERE / "workers" / "order" / "test_permutation.py")
    assert not purity.is_in_pure_room(HERE / "workers" / "pipeline" / "test_pipeline.py")
    assert all((HERE / room).is_dir() for room in purity.ROOMS)


def test_a_process_that_holds_torch_and_tensorflow_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    assert not own_process.both_frameworks()
    monkeypatch.setitem(sys.modules, "tensorflow", ModuleType("tensorflow"))
    assert own_process.both_frameworks()


@pytest.mark.parametrize(
    ("named", "file", "another"),
    [
        ("readers", "readers/test_keras_feed.py", True),
        ("readers/test_tensorflow.py readers/test_torch.py", "readers/test_tensorflow.py", True),
        ("readers/test_tensorflow.py", "readers/test_tensorflow.py", False),
        ("readers/test_tensorflow.py::test_one", "readers/test_tensorflow.py", False),
        ("readers", "readers/test_torch.py", False),
    ],
)
def test_files_of_tensorflow_and_keras_get_a_process_unless_they_have_one(named: str, file: str, another: bool) -> None:
    arguments = [str(HERE / argument) for argument in named.split()]
    assert own_process.needs_own_process(HERE / file, arguments) == another
