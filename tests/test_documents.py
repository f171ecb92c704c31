"""Every Python block of README.md and docs/ runs as it is written, in a folder with the files that it names; and so do
the examples of frameworks, in the same processes.

A block is a program of its own. `<!-- continues -->` on the line before it puts the block before it in front;
`<!-- not run: reason -->` leaves it out.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest

from .support.forks import Forks, forks_with
from .support.pictures import encoded, picture, write_list

ROOT = Path(__file__).resolve().parent.parent
_MARKED_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>continues|not run: .+?) -->\n+)?```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)

_AROUND_IT = """
class Model:
    def __call__(self, data):
        return data
    def fit(self, train, validation_data=None, epochs=1):
        for epoch in range(epochs):
            for part in (train, validation_data):
                assert [len(part[number]) for number in range(len(part))]
    def state_dict(self):
        return {}

class Graph:
    __enter__ = __exit__ = replay = lambda *_: None

class Training:
    steps = 5
    def __bool__(self):
        self.steps -= 1
        return self.steps >= 0

def train(*arrays):
    assert all(len(array) for array in arrays)

model, training, criterion = Model(), Training(), train
parse = features_of = lambda line: [float(len(line))]
label_of = len
"""
"""What the documents take for granted: a trainer with a model, and data that somebody understands."""


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> Iterator[Block]:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text, before = page.read_text(), ""
        for found in _MARKED_BLOCK.finditer(text):
            mark, code = found["mark"] or "", found["code"]
            before = before + code if mark == "continues" else code
            if not mark.startswith("not run"):
                yield Block(page.name, text[: found.start("code")].count("\n") + 1, before)


BLOCKS = list(blocks())


def test_all_blocks_are_found() -> None:
    pages = (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    fences = sum(page.read_text().count("```python") for page in pages)
    marks = sum(page.read_text().count("<!-- not run: ") for page in pages)
    assert len(BLOCKS) == fences - marks > 15


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the documents name, small ones."""
    folder = tmp_path_factory.mktemp("documents")
    rng = np.random.default_rng(0)
    with h5py.File(folder / "train.h5", "w") as file:
        file["data"] = rng.integers(0, 256, (200, 3, 32, 32), np.uint8)
        file["label"] = file["labels"] = np.arange(200) % 10
    for name in ("x", "x_valid"):
        np.save(folder / f"{name}.npy", rng.random((200, 3, 8, 8), np.float32))
        np.save(folder / f"{name.replace('x', 'y')}.npy", np.arange(200) % 10)
    np.save(folder / "colours.npy", np.arange(256, dtype=np.float32))
    (folder / "train.txt").write_text("".join(f"line {number}\n" for number in range(300)))
    write_list(folder, {f"{number}.jpg": encoded(picture(300, 400)) for number in range(12)}).rename(
        folder / "photos.txt"
    )
    for name in ("trajectories", "logs"):
        (folder / name).mkdir()
    for number in range(2):
        with h5py.File(folder / "trajectories" / f"part_{number}.h5", "w") as file:
            for sample in range(70):
                file[f"t{sample}"] = rng.random((4, 4), np.float32)
                file[f"t{sample}"].attrs["success"] = sample % 2
        (folder / "logs" / f"{number}.txt").write_text("one\ntwo\nthree\n" * 50)
    shutil.copy(ROOT / "prototxt_examples" / "digits" / "digits_train.h5", folder)
    shutil.copytree(ROOT / "prototxt_examples", folder / "prototxt_examples")
    return folder


_IMPORTED = ("blobfeed.readers.batch_reader", "h5py", "keras")


@pytest.fixture(scope="module")
def over_torch() -> Iterator[Forks]:
    with forks_with(*_IMPORTED, KERAS_BACKEND="torch") as forks:
        yield forks


@pytest.fixture(scope="module")
def over_tensorflow() -> Iterator[Forks]:
    """TensorFlow must not find torch beside it: see tests/support/own_process.py."""
    with forks_with(*_IMPORTED, KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3") as forks:
        yield forks


@pytest.mark.parametrize("block", [block for block in BLOCKS if "TensorFlow" not in block.code], ids=str)
def test_a_block_runs_as_it_is_written(files: Path, over_torch: Forks, block: Block) -> None:
    _run(block, files, over_torch)


@pytest.mark.parametrize("block", [block for block in BLOCKS if "TensorFlow" in block.code], ids=str)
def test_a_block_of_tensorflow_runs_as_it_is_written(files: Path, over_tensorflow: Forks, block: Block) -> None:
    _run(block, files, over_tensorflow)


def _run(block: Block, files: Path, forks: Forks) -> None:
    program = files / f"{block.page.removesuffix('.md')}_{block.line}.py"
    # Not every machine has a GPU.
    code = block.code.replace('device="cuda"', 'device="cpu"')
    code = code.replace("torch.cuda.CUDAGraph()", "Graph()").replace("torch.cuda.graph(graph)", "graph")
    program.write_text(_AROUND_IT + code)
    ended, output, errors = forks.run(files, program)
    assert ended == 0, f"{block}: {(output + errors)[-3000:]}"


@pytest.mark.parametrize("example", ["torch", "keras", "feedback"])
def test_an_example_over_torch_tells_digits_apart(tmp_path: Path, over_torch: Forks, example: str) -> None:
    found = _percentages(example, tmp_path, over_torch)
    if example == "feedback":
        without, with_feedback = found
        assert with_feedback > without + 1
    else:
        assert found[-1] > 94


def test_the_example_of_tensorflow_tells_digits_apart(tmp_path: Path, over_tensorflow: Forks) -> None:
    assert _percentages("tensorflow", tmp_path, over_tensorflow)[-1] > 94


def _percentages(example: str, folder: Path, forks: Forks) -> list[float]:
    ended, output, errors = forks.run(folder, ROOT / "prototxt_examples" / f"{example}_digits" / "train.py")
    assert ended == 0, errors
    return [float(found) for found in re.findall(r"([\d.]+)% of (?:450|the) test digits right", output)]
