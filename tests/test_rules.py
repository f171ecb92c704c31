"""The rules that tests are held to: each of them is seen to fail."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from .support import purity

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
