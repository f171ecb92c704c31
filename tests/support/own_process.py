"""Test files that get a process to themselves: TensorFlow does not stand torch beside it.

With a torch for CUDA, a process that imports TensorFlow and then torch's compiler ends in a segmentation fault. Keras,
which imports one or the other, goes the same way as TensorFlow. JAX starts threads, and warns at each later fork of
the process that imported it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

_FILES = ("test_jax*.py", "test_keras*.py", "test_tensorflow*.py")


def needs_own_process(path: Path, arguments: Sequence[str]) -> bool:
    """Whether the file is one of those, and pytest's arguments name more than it: else this process is its own."""
    named = {Path(argument.partition("::")[0]).resolve() for argument in arguments}
    return any(path.match(pattern) for pattern in _FILES) and named != {path.resolve()}


def both_frameworks() -> bool:
    """Whether this process holds torch and TensorFlow; a module that was made impossible to import is None."""
    return all(sys.modules.get(name) is not None for name in ("torch", "tensorflow"))


class FileInItsOwnProcess(pytest.Module):
    """Collected without being imported, as one test: pytest in another process, which runs all that the file holds."""

    def collect(self) -> Iterator[pytest.Item]:
        yield _RunFile.from_parent(self, name="in_a_process_of_its_own")


class _RunFile(pytest.Item):
    def runtest(self) -> None:
        command = [sys.executable, "-P", "-m", "pytest", "-rs", "-m", self.config.option.markexpr, str(self.path)]
        run = subprocess.run(
            command,
            cwd=self.config.rootpath,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if run.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
            pytest.skip(f"there is no test that could run: {run.stdout}")
        if run.returncode:
            pytest.fail(run.stdout, pytrace=False)
