"""The rules that tests are held to: each of them is seen to fail."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
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


def test_what_tests_replace_inside_the_package_is_in_one_list(pytestconfig: pytest.Config) -> None:
    """Each name pins an internal one, so a fault goes in through a public name where it can. --update writes the list.

    A file may replace as many names as the list has for it: those that are renamed need no change here.
    """
    files = sorted(HERE.rglob("*.py"))
    found = [f"{path.relative_to(HERE)} | {name}\n" for path in files for name in sorted(set(_replaced(path)))]
    listed = HERE / "injected.txt"
    if pytestconfig.getoption("--update"):
        listed.write_text("".join(found))
    allowed = Counter(line.partition(" | ")[0] for line in listed.read_text().splitlines())
    assert Counter(line.partition(" | ")[0] for line in found) <= allowed, "another name of the package is replaced"


def _replaced(path: Path) -> Iterator[str]:
    """The names that `setattr` replaces in modules and classes of the package, and private attributes of others."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imports = [
        node for node in nodes if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("blobfeed")
    ]
    ours = {alias.asname or alias.name for node in imports for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".setattr") and node.args:
            whole = ast.unparse(node.args[0]).strip("'")
            if whole.startswith("blobfeed.") or whole.partition(".")[0] in ours or "._" in whole:
                yield whole + "".join(f".{ast.literal_eval(name)}" for name in node.args[1:-1] if _is_text(name))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
