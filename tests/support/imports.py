"""Who imports whom, read from the source: imports inside functions and under TYPE_CHECKING included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import find_spec, resolve_name
from pathlib import Path

# From the one that may import all others to the one that may import none; what is in none of them is the front door's.
FOLDERS = ("trainer", "layers", "readers", "workers")


def modules(package: str) -> Iterator[tuple[str, Path]]:
    """The full name and the file of every module in `package`, its subpackages' included."""
    spec = find_spec(package)
    assert spec is not None, f"{package} is not installed"
    assert spec.submodule_search_locations is not None, f"{package} is no package"
    base = Path(spec.submodule_search_locations[0])
    for path in sorted(base.rglob("*.py")):
        parts = path.relative_to(base).with_suffix("").parts
        yield ".".join((package, *parts[: -1 if parts[-1] == "__init__" else None])), path


def imported(source: str, module: str, *, is_package: bool) -> Iterator[str]:
    """The full name of everything that `source`, the text of `module`, imports: `from ..a import b` gives p.a.b."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module
            yield from (f"{base}.{alias.name}" for alias in node.names)


def upward(names: Iterator[str], module: str) -> list[str]:
    """Those of `names` that `module` must not import: folders before its own, and folders by their bare names."""
    own = _place(module)
    return [name for name in names if name.split(".")[0] in FOLDERS or _place(name) < own]


def _place(name: str) -> int:
    """Where `name` stands in the order: 0 for the front door, past the end for what is not of blobfeed."""
    root, _, rest = name.partition(".")
    if root != "blobfeed":
        return len(FOLDERS) + 1
    folder = rest.partition(".")[0]
    return FOLDERS.index(folder) + 1 if folder in FOLDERS else 0
