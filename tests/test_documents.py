"""Every Python block of README.md and docs/ runs as it is written, in a folder with the files that it names; and so do
the examples of frameworks, in the same processes. Those of TensorFlow run in tests/readers/test_tensorflow_dataset.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .support.documents import BLOCKS, EXAMPLES, ROOT, Block, documents_files, right_in_percent
from .support.forks import Forks, forks_with

__all__ = ["documents_files"]


def test_all_blocks_are_found() -> None:
    pages = (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    fences = sum(page.read_text().count("```python") for page in pages)
    marks = sum(page.read_text().count("<!-- not run: ") for page in pages)
    assert len(BLOCKS) == fences - marks > 15


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """Keras would take TensorFlow along."""
    modules = ("blobfeed.readers.batch_reader", "h5py", "keras")
    with forks_with(*modules, hidden="tensorflow", KERAS_BACKEND="torch") as forks:
        yield forks


@pytest.mark.parametrize("block", [block for block in BLOCKS if not block.is_of_tensorflow], ids=str)
def test_a_block_runs_as_it_is_written(documents_files: Path, forks: Forks, block: Block) -> None:
    ended, output, errors = forks.run(documents_files, block.write(documents_files))
    assert ended == 0, f"{block}: {(output + errors)[-3000:]}"


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
