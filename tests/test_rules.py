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
from .support.imports import whole_package

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


def test_what_tests_know_of_the_inside_of_the_package_is_in_one_list(pytestconfig: pytest.Config) -> None:
    """The names that a test replaces, and private ones that it reads: for faults that go in by no public name.

    --update writes the list. A file may know as many names as the list has for it: one that is renamed needs no change.
    """
    private = {name for path in whole_package().values() for name in _defined(_nodes(path))}
    files = {path: _nodes(path) for path in sorted(HERE.rglob("*.py"))}
    known = {path: sorted({*_replaced(nodes), *_read(nodes, private)}) for path, nodes in files.items()}
    found = [f"{path.relative_to(HERE)} | {name}\n" for path, names in known.items() for name in names]
    listed = HERE / "injected.txt"
    if pytestconfig.getoption("--update"):
        listed.write_text("".join(found))
    allowed = Counter(line.partition(" | ")[0] for line in listed.read_text().splitlines())
    assert Counter(line.partition(" | ")[0] for line in found) <= allowed, "another name of the package is known"


def test_a_private_name_of_the_package_is_found_wherever_it_is_read() -> None:
    text = """
import os
from blobfeed.workers.base import files, _first
from tests.support import waiting

class Own:
    def _fourth(self): ...

files._second, made.inner._third, Own()._fourth, self._second, os._second, waiting._second, made._fifth, made.sixth
"""
    private = {"_first", "_second", "_third", "_fourth"}
    found = set(_read(list(ast.walk(ast.parse(text))), private))
    assert found == {"_first", "files._second", "made.inner._third"}


def _nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def _replaced(nodes: list[ast.AST]) -> Iterator[str]:
    """The names that `setattr` replaces in modules and classes of the package, and private attributes of others."""
    ours = _imported(nodes, of_package=True)
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".setattr") and node.args:
            whole = ast.unparse(node.args[0]).strip("'")
            if whole.startswith("blobfeed.") or whole.partition(".")[0] in ours or "._" in whole:
                yield whole + "".join(f".{ast.literal_eval(name)}" for name in node.args[1:-1] if _is_text(name))


def _read(nodes: list[ast.AST], private: set[str]) -> Iterator[str]:
    """The names in `private` that are imported, or attributes of what is neither `self` nor another module's."""
    private, others = private - {*_defined(nodes)}, _imported(nodes, of_package=False)
    yield from private & _imported(nodes, of_package=True)
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in private:
            whole = ast.unparse(node)
            if whole != f"self.{node.attr}" and whole.partition(".")[0] not in others:
                yield whole


def _defined(nodes: list[ast.AST]) -> Iterator[str]:
    """The private names of functions, classes, variables and attributes."""
    for node in nodes:
        name = ""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            name = node.attr
        if name.startswith("_") and not name.endswith("__") and name != "_":
            yield name


def _imported(nodes: list[ast.AST], *, of_package: bool) -> set[str]:
    """The names that are imported from the package, or those that come from elsewhere."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                module = alias.name if isinstance(node, ast.Import) else node.module or ""
                if (module.partition(".")[0] == "blobfeed") == of_package:
                    found.add(alias.asname or alias.name.partition(".")[0])
    return found


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
