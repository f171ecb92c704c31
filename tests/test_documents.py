"""Every Python block of docs/ runs as it is written, in a folder with the files that it names; and so do the examples
of frameworks, in the same processes. Blocks of TensorFlow run in tests/readers/test_tensorflow_dataset.py, and those of
README.md in tests/test_readme.py.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .support.documents import BLOCKS, EXAMPLES, PAGES, Block, Step, documents_files, right_in_percent, steps
from .support.forks import Forks, forks_with

__all__ = ["documents_files"]


def test_all_blocks_are_found() -> None:
    fences = sum(page.read_text().count("```python") for page in PAGES)
    marks = sum(page.read_text().count("<!-- not run: ") for page in PAGES)
    assert len(BLOCKS) == fences - marks > 15


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """Keras would take TensorFlow along."""
    modules = ("blobfeed.readers.batch_reader", "h5py", "keras")
    with forks_with(*modules, hidden="tensorflow", KERAS_BACKEND="torch") as forks:
        yield forks


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.page != "README.md" and not block.is_of_tensorflow], ids=str
)
def test_a_block_runs_as_it_is_written(documents_files: Path, forks: Forks, block: Block) -> None:
    ended, output, errors = forks.run(documents_files, block.write(documents_files))
    assert ended == 0, f"{block}: {(output + errors)[-3000:]}"


def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    around = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    output = before = ""
    batches: list[int] = []
    for step in steps():
        if step.language == "python":
            (tmp_path / step.file).write_text(step.text)
        elif step.language == "sh" and not step.mark.startswith("not run"):
            before, output = output, printed_by(step, tmp_path, around)
            batches += map(int, re.findall(r"^batch (\d+):", output, re.MULTILINE))
        elif step.language == "":
            assert [line for line in lines_of(step.text) if line not in lines_of(before + output)] == []
    # Twice only the one after which the run was stopped, if that was before its state was saved.
    assert sorted(set(batches)) == list(range(9, 100, 10))
    assert len(batches) <= 11


def printed_by(step: Step, folder: Path, around: dict[str, str]) -> str:
    """Return what a step's commands print; `stopped: TEXT` presses Ctrl-C once TEXT is there."""
    command = ["bash", "-ec", "exec " * step.mark.startswith("stopped") + step.text]
    with subprocess.Popen(command, cwd=folder, env=around, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        lines = []
        for line in run.stdout:
            lines.append(line)
            if step.mark and line.startswith(step.mark.removeprefix("stopped: ")):
                run.send_signal(signal.SIGINT)
        assert (run.wait(100) == 0) is (step.mark == ""), "".join(lines)
    return "".join(lines)


def lines_of(text: str) -> list[str]:
    """Return lines with one number for all that a machine or an hour changes: rates and losses."""
    return [re.sub(r"[\d,]*[.,]\d+|\d+$", "#", " ".join(line.split())) for line in text.splitlines()]


@pytest.mark.parametrize("example", ["torch", "keras", "feedback"])
def test_an_example_over_torch_tells_digits_apart(tmp_path: Path, forks: Forks, example: str) -> None:
    ended, output, errors = forks.run(tmp_path, EXAMPLES / f"{example}_digits" / "train.py")
    assert ended == 0, errors
    found = right_in_percent(output)
    if example == "feedback":
        without, with_feedback = found
        assert with_feedback > without + 1
    else:
        assert found[-1] > 94
