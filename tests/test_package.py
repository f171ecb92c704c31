"""The installed package: who imports whom, what importing costs, the public names and the pins."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from blobfeed.workers.base import errors
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import blobfeed

from .support.imports import FOLDERS, imported, upward, whole_package

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"torch", "jax", "keras", "tensorflow", "caffe"}


def python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)


def loaded_by(statement: str, cwd: Path) -> set[str]:
    """The top-level modules and blobfeed's folders that a fresh interpreter has after `statement`."""
    run = python(f"{statement}\nimport sys; print(*sys.modules)", cwd)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def test_imports_go_one_way_only() -> None:
    """Also those inside functions: to rooms below, in no circle of files, from workers to no framework, h5py once."""
    files = whole_package()
    imports = {
        name: [*imported(path.read_text(), name, is_package=path.stem == "__init__")] for name, path in files.items()
    }
    wrong = {name: against for name, found in imports.items() if (against := upward(found, name))}
    assert wrong == {}, "a room imports only what stands below it: ROOMS in tests/support/imports.py"
    of_h5py = {name for name, found in imports.items() if "h5py" in {each.split(".")[0] for each in found}}
    assert of_h5py == {"blobfeed.sources.stored.hdf5_library"}, "a program may have an HDF5 library of its own"
    workers = {name: set(found) for name, found in imports.items() if name.startswith("blobfeed.workers.")}
    assert len(workers) > 50
    assert {name: found for name, found in workers.items() if {each.split(".")[0] for each in found} & HEAVY} == {}
    TopologicalSorter({name: {_file_of(each, files) for each in found} for name, found in imports.items()}).prepare()


def _file_of(name: str, files: Mapping[str, Path]) -> str:
    return name if name in files else name.rpartition(".")[0]


@pytest.mark.parametrize(
    ("module", "line", "wrong"),
    [
        ("blobfeed.workers.transport.ring", "from ...readers.delivery.delivery import Delivery", True),
        ("blobfeed.workers.transport.ring", "from ... import readers", True),
        ("blobfeed.workers.transport.ring", "def later(): from ...layers import harness", True),
        ("blobfeed.workers.transport.ring", "from ..order import permutation", True),
        ("blobfeed.layers.base", "import workers.specs", True),
        ("blobfeed.layers.base", "from readers.delivery import Delivery", True),
        ("blobfeed.sources.stored.npy", "from ...workers.api.specs import ArraySpec", False),
        ("blobfeed.sources.stream", "from .stored.npy import open_npy", False),
        ("blobfeed.supplies.stream", "from ..sources.stream import StreamSource", False),
        ("blobfeed.supplies.stream", "from ..watching import diagnose", True),
        ("blobfeed.workers.pipeline.feed", "from ...watching import diagnose", True),
        ("blobfeed.workers.transport.ring", "import numpy", False),
        ("blobfeed.cli", "from .trainer import net", False),
    ],
)
def test_an_import_against_the_order_is_recognised(module: str, line: str, wrong: bool) -> None:
    assert bool(upward(imported(line, module, is_package=False), module)) == wrong


def test_the_heart_imports_no_plug_in_and_its_ledger_no_zeromq(tmp_path: Path) -> None:
    files = whole_package()
    heart = [name for name in files if name.startswith("blobfeed.workers") and not name.endswith("_main")]
    loaded = loaded_by("\n".join(f"import {name}" for name in heart), tmp_path)
    assert {name for name in files if name in loaded} <= {"blobfeed", *heart}
    assert loaded_by("import blobfeed.workers.assembly.ledger", tmp_path) & {"zmq", *HEAVY} == set()


def test_importing_blobfeed_alone_imports_none_of_its_parts(tmp_path: Path) -> None:
    loaded = loaded_by("import blobfeed", tmp_path)
    assert {name for name in loaded if name.startswith("blobfeed.")} == set()
    assert "numpy" not in loaded


def test_importing_what_a_loader_or_a_caffe_user_needs_pulls_in_no_framework(tmp_path: Path) -> None:
    modules = ("layers", "readers", "workers.processes.loader", "workers.pipeline.pipeline", "sources")
    loaded = loaded_by("\n".join(f"import blobfeed.{module}" for module in modules), tmp_path)
    assert loaded & HEAVY == set()


@pytest.mark.skipif(np.__version__ < "2", reason="NumPy 1 imports numpy.random always")
def test_nobody_pays_for_the_memory_of_openssl_or_of_numpy_random(tmp_path: Path) -> None:
    loaded = loaded_by("import h5py, blobfeed.readers.batch_reader, blobfeed.workers.processes.loader", tmp_path)
    assert loaded & {"_hashlib", "numpy.random"} == set()


BARE = """
import importlib, sys
for folder in sys.argv[1:]:
    try:
        importlib.import_module(folder)
    except ImportError:
        print(folder)
"""


def test_a_folder_cannot_be_imported_by_its_bare_name() -> None:
    run = subprocess.run([sys.executable, "-c", BARE, *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.split() == list(FOLDERS)


def _for_type_checkers() -> dict[str, str]:
    """Each public name, and the module in which type checkers find it."""
    tree, homes = ast.parse(Path(blobfeed.__file__).read_text()), {}
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    for node in guarded.body:
        assert isinstance(node, ast.ImportFrom)
        module = f"blobfeed.{node.module}"
        names = [alias.name for alias in node.names]
        homes.update(dict.fromkeys(_public(import_module(module)) if names == ["*"] else names, module))
    return homes


def _public(module: ModuleType) -> list[str]:
    own = (name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__)
    return list(getattr(module, "__all__", own))


HOMES = _for_type_checkers()

# Each of these imports a framework that must not get into this process: blocks of README.md import them.
IN_ANOTHER_PROCESS = [name for name in HOMES if re.match("jax|keras|tf_|tensorflow", name.lower())]


@pytest.mark.parametrize("name", sorted({*HOMES} - {*IN_ANOTHER_PROCESS}))
def test_every_public_name_is_there(name: str) -> None:
    try:
        assert getattr(blobfeed, name) is getattr(import_module(HOMES[name]), name)
    except errors.ExtraMissing as error:
        pytest.skip(str(error))
    assert name in dir(blobfeed)


WITHOUT = """
import importlib.machinery, pydoc, sys

import numpy as np

class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, *rest):
        hidden = name.partition(".")[0] in {"torch", "jax", "keras", "tensorflow", "cv2", "lmdb", "pyarrow"}
        return None if hidden else super().find_spec(name, *rest)

sys.meta_path[:] = [Finder if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
import blobfeed
from blobfeed.readers.batch_reader import BatchReader

assert "MultiProcessInputLayer" in pydoc.plain(pydoc.render_doc(blobfeed))
assert "DataLoader" not in dir(blobfeed)
np.save("x.npy", np.zeros((4, 2), np.float32))
attempts = {
    "DataLoader": lambda: blobfeed.DataLoader,
    "H5Dataset": lambda: blobfeed.H5Dataset,
    "JaxDataset": lambda: blobfeed.JaxDataset,
    "KerasDataset": lambda: blobfeed.KerasDataset,
    "TensorFlowDataset": lambda: blobfeed.TensorFlowDataset,
    "harness": lambda: blobfeed.LayerHarness(blobfeed.NpyInputLayer, "{data: x.npy, batch_size: 1}", device="cpu"),
    "images": lambda: BatchReader({"image_list": {"path": "x.txt"}}, batch_size=1),
    "lmdb": lambda: BatchReader({"lmdb": {"path": "x"}}, batch_size=1),
    "cache": lambda: BatchReader({"npy": {"data": "x.npy"}}, batch_size=1, cache={"path": "c", "size_limit": 1}),
    "parquet": lambda: BatchReader({"parquet": {"path": "x.parquet"}}, batch_size=1),
    "images in a layer": lambda: blobfeed.LayerHarness(blobfeed.ImageListInputLayer, "{path: x.txt, batch_size: 1}"),
    "device": lambda: BatchReader({"npy": {"data": "x.npy"}}, batch_size=1, device="cpu"),
}
for name, attempt in attempts.items():
    try:
        attempt()
    except blobfeed.ExtraMissing as error:
        print(name, "-", error)
"""


def test_without_a_library_help_works_and_the_extra_is_named(tmp_path: Path) -> None:
    run = python(WITHOUT, tmp_path)
    assert run.returncode == 0, run.stderr
    missing = "which is not installed: pip install"
    assert run.stdout.splitlines() == [
        f"DataLoader - blobfeed.DataLoader needs torch, {missing} 'blobfeed[torch]'",
        f"H5Dataset - blobfeed.H5Dataset needs torch, {missing} 'blobfeed[torch]'",
        f"JaxDataset - blobfeed.JaxDataset needs jax, {missing} 'blobfeed[jax]'",
        f"KerasDataset - blobfeed.KerasDataset needs keras, {missing} 'blobfeed[keras]'",
        f"TensorFlowDataset - blobfeed.TensorFlowDataset needs tensorflow, {missing} 'blobfeed[tensorflow]'",
        f"harness - a harness with device 'cpu' needs torch, {missing} 'blobfeed[torch]'",
        f"images - source image_list needs cv2, {missing} 'blobfeed[images]'",
        f"lmdb - source lmdb needs lmdb, {missing} 'blobfeed[lmdb]'",
        f"cache - parameter 'cache' needs lmdb, {missing} 'blobfeed[lmdb]'",
        f"parquet - source parquet needs pyarrow, {missing} 'blobfeed[parquet]'",
        f"images in a layer - source image_list needs cv2, {missing} 'blobfeed[images]'",
        f"device - parameter 'device' ('cpu') needs torch, {missing} 'blobfeed[torch]'",
    ]


def test_a_star_imports_no_framework(tmp_path: Path) -> None:
    assert loaded_by("from blobfeed import *", tmp_path) & HEAVY == set()


def test_every_class_of_error_is_public() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    raised = {each.__name__ for each in classes if issubclass(each, errors.BlobfeedError)}
    assert raised
    assert raised <= set(blobfeed.__all__)


def test_the_public_names_are_the_same_for_type_checkers() -> None:
    # A star imports no class that brings a framework; all of these are datasets.
    datasets = {name for name in dir(blobfeed) if name.endswith("Dataset")}
    assert datasets > {"JaxDataset"}
    assert {*blobfeed.__all__, *datasets} <= set(HOMES)


def test_a_name_that_has_gone_says_what_to_use() -> None:
    with pytest.raises(ImportError, match=r"blobfeed\.DataLoader"):
        from blobfeed import TorchDataset  # type: ignore[attr-defined]  # noqa: F401


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="MultiProcesInputLayer"):
        getattr(blobfeed, "MultiProcesInputLayer")  # noqa: B009 - a type checker would refuse the plain spelling


def test_what_spoils_the_import_of_a_public_name_is_told(tmp_path: Path) -> None:
    (tmp_path / "signal.py").write_text("")  # a script's neighbour, which hides that of the standard library
    told = python("from blobfeed import BatchReader", tmp_path).stderr
    assert "\nAttributeError: module 'signal' has no attribute 'SIG" in told
    assert "\nImportError: blobfeed.BatchReader cannot be imported: module 'signal' has no attribute 'SIG" in told


def test_every_dependency_is_pinned_at_the_version_that_is_tested() -> None:
    pins = {
        r.name: str(r.specifier) for r in map(Requirement, constraint_lines()) if not r.marker or r.marker.evaluate()
    }
    pinned = {str(canonicalize_name(name)): pin for name, pin in pins.items()}
    tested = {name: f"=={Version(importlib.metadata.version(name)).public}" for name in needed_for("test")}
    assert {name: pin for name, pin in tested.items() if pinned.get(name) != pin} == {}


def test_what_training_needs_brings_no_other_framework_and_no_tool_of_the_tests() -> None:
    assert "torch" in needed_for("torch")
    assert needed_for("torch") & {"keras", "tensorflow", "tensorflow-cpu", "mypy", "pytest", "ruff"} == set()


def constraint_lines() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def needed_for(extra: str) -> set[str]:
    """What blobfeed[extra] needs, directly or not; of a torch for CUDA without the CUDA that it pins by itself."""
    seen: set[tuple[str, str]] = set()
    wanted = [("blobfeed", ""), ("blobfeed", extra)]
    while wanted:
        if (step := wanted.pop()) not in seen:
            seen.add(step)
            wanted += needs(*step)
    return {name for name, _ in seen if not re.match("blobfeed$|nvidia-|cuda-|triton$", name)}


def needs(name: str, extra: str) -> Iterator[tuple[str, str]]:
    for requirement in map(Requirement, requirements(name)):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield from ((canonicalize_name(requirement.name), asked) for asked in ("", *requirement.extras))


def requirements(name: str) -> list[str]:
    try:
        return importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        if name == "blobfeed":
            pytest.skip("only the installed package says what it needs, and this is the checkout")
        raise


def test_the_release_notes_and_the_citation_name_this_version() -> None:
    newest = re.search(r"^## (\S+?),", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert newest is not None
    assert cited is not None
    assert newest[1] == cited[1] == blobfeed.__version__
