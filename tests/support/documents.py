"""The Python blocks of README.md and docs/, a folder with the files that they name, and what the examples print.

A block is a program of its own. `<!-- continues -->` on the line before it puts the block before it in front;
`<!-- not run: reason -->` leaves it out. The blocks of the tutorial are files of one folder, beside its commands.
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

from .pictures import encoded, picture, write_list

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "prototxt_examples"
TUTORIAL = ROOT / "docs" / "tutorial.md"
PAGES = (ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page != TUTORIAL))
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

class Rows:
    def __len__(self):
        return 100
    def __getitem__(self, index):
        return [float(index)] * 3, index

class Training:
    steps = 5
    def __bool__(self):
        self.steps -= 1
        return self.steps >= 0

def train(*arrays):
    assert all(len(array) for array in arrays)

model, dataset, training, criterion = Model(), Rows(), Training(), train
parse = features_of = lambda line: [float(len(line))]
label_of = len
"""
"""The names that the documents take for granted: a trainer with a model, and functions that know its data."""


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_of_tensorflow(self) -> bool:
        return "TensorFlow" in self.code

    def write(self, folder: Path) -> Path:
        """Write it as a program that runs on a machine without a GPU, too."""
        program = folder / f"{self.page.removesuffix('.md')}_{self.line}.py"
        code = self.code.replace('device="cuda"', 'device="cpu"')
        code = code.replace("torch.cuda.CUDAGraph()", "Graph()").replace("torch.cuda.graph(graph)", "graph")
        program.write_text(_AROUND_IT + code)
        return program


def blocks() -> Iterator[Block]:
    for page in PAGES:
        text, before = page.read_text(), ""
        for found in _MARKED_BLOCK.finditer(text):
            mark, code = found["mark"] or "", found["code"]
            before = before + code if mark == "continues" else code
            if not mark.startswith("not run"):
                yield Block(page.name, text[: found.start("code")].count("\n") + 1, before)


BLOCKS = list(blocks())


@pytest.fixture(scope="module")
def documents_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    shutil.copy(EXAMPLES / "digits" / "digits_train.h5", folder)
    shutil.copytree(EXAMPLES, folder / "prototxt_examples")
    return folder


@dataclass(frozen=True)
class Step:
    """A block of the tutorial: a file to write, commands to run, or lines that they print."""

    mark: str
    language: str
    text: str

    @property
    def file(self) -> str:
        """Return the name in the first line of a program, `# train.py`."""
        return self.text.partition("\n")[0].removeprefix("# ")


def steps() -> list[Step]:
    fence = re.compile(r"^(?:<!-- (.+?) -->\n)?```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return [Step(*found.groups(default="")) for found in fence.finditer(TUTORIAL.read_text())]


def right_in_percent(output: str) -> list[float]:
    """Each percentage of right answers that an example has printed."""
    return [float(found) for found in re.findall(r"([\d.]+)% of (?:450|the) (?:test digits|photos) right", output)]
