"""`python -m tests.structure`: the house in figures: rooms, files, lines, circles, and the files that one batch passes.

The files of a batch are traced, in every process: a layer over an HDF5 file runs until all of them are at work, and
from then on each of blobfeed's functions that is called notes its file. Two of the files do not count, since they only
stand in for Caffe: what calls the layer here, and the blobs that it fills.
"""

from __future__ import annotations

import ast
import contextlib
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from .support.imports import FOLDERS, circles, imported, modules

_TRACE = """
import os, sys
_seen = set()
def _trace(frame, event, _):
    name = frame.f_code.co_filename
    if event == "call" and name not in _seen and "{sep}blobfeed{sep}" in name and os.path.exists("{folder}/begun"):
        _seen.add(name)
        with open("{folder}/files", "a") as file:
            print(name.rpartition("{sep}blobfeed{sep}")[2], file=file)
sys.setprofile(_trace)
"""

_RUN = """
import sys, time
from pathlib import Path
import h5py, numpy as np
from blobfeed import LayerHarness
folder = Path(sys.argv[1])
with h5py.File(folder / "train.h5", "w") as file:
    file["data"] = np.zeros((40000, 3, 16, 16), np.uint8)
    file["label"] = np.arange(40000)
text = f"{{source: {{hdf5: {{path: {folder}/train.h5}}}}, batch_size: 64, shuffle: true, num_loaders: 2}}"
from blobfeed import MultiProcessInputLayer
with LayerHarness(MultiProcessInputLayer, text) as harness:
    for step in range(400):
        if step == 280:
            time.sleep(2)  # until the nursery has made huge pages
        if step == 300:
            (folder / "begun").touch()
        harness.forward()
    (folder / "begun").unlink()
"""


_IN_PLACE_OF_CAFFE = {"layers/harness.py", "layers/standin.py"}


def files_of_a_batch() -> list[str]:
    """The files of blobfeed whose functions are called while batches are delivered, in all processes."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(_TRACE.format(folder=folder, sep=os.sep))
        subprocess.run([sys.executable, "-P", "-c", _RUN, folder], env={**os.environ, "PYTHONPATH": folder}, check=True)
        return sorted(set(Path(folder, "files").read_text().split()) - _IN_PLACE_OF_CAFFE)


def holders(name: str, files: dict[str, Path]) -> list[str]:
    """The classes that have `name` as an attribute of their own, with or without an underscore."""
    found = set()
    for module, path in files.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any(_sets(inner, name) for inner in ast.walk(node)):
                found.add(f"{module}.{node.name}")
    return sorted(found)


def _sets(node: ast.AST, name: str) -> bool:
    targets: list[ast.expr]
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Assign):
        targets = node.targets
    else:
        return False
    names = [each.id if isinstance(each, ast.Name) else getattr(each, "attr", "") for each in targets]
    on_self = any(isinstance(each, ast.Attribute) for each in targets)
    return any(each.lstrip("_") == name for each in names) and (on_self or isinstance(node, ast.AnnAssign))


def main() -> None:
    files = dict(modules("blobfeed")) | dict(found for folder in FOLDERS for found in modules(f"blobfeed.{folder}"))
    imports = {
        name: {
            target if target in files else target.rpartition(".")[0]
            for target in imported(path.read_text(), name, is_package=path.stem == "__init__")
        }
        & set(files)
        for name, path in files.items()
    }
    rooms = Counter(str(path.parent) for path in files.values())
    largest, count = rooms.most_common(1)[0]
    print(f"rooms: {len(rooms)}; files in the largest: {count} ({Path(largest).name})")
    print(f"files: {len(files)}; lines: {sum(len(path.read_text().splitlines()) for path in files.values()):,}")
    print(f"groups of files that import each other: {len(circles(imports))}")
    for name in ("batch_size", "seed"):
        found = holders(name, files)
        print(f"classes that hold {name}: {len(found)} ({', '.join(found)})")
    passed = files_of_a_batch()
    print(f"files that one batch passes: {len(passed)}")
    with contextlib.suppress(BrokenPipeError):
        print(*(f"  {name}" for name in passed), sep="\n")


if __name__ == "__main__":
    main()
