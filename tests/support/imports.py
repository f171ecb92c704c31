"""Who imports whom, read from the source: imports inside functions and under TYPE_CHECKING included."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from importlib.util import find_spec, resolve_name
from pathlib import Path

FOLDERS = ("tools", "trainer", "layers", "readers", "cluster", "supplies", "sources", "watching", "workers")

PLUGINS = ("cluster", "supplies", "sources", "watching")
"""The folders that the heart, `workers`, does not import; of these only supplies import another, the sources."""

# The rooms, from the one that may import all others to the one that may import none. Below a room are those that
# follow it here; a module lies in the innermost room that holds it, and what lies in none is the front door's.
ROOMS = (
    "tools",
    "trainer",
    "trainer.pycaffe",
    "trainer.solving",
    "trainer.net",
    "trainer.layer_types",
    "trainer.prototxt",
    "layers",
    "readers",
    "readers.opening",
    "cluster",
    "supplies",
    "sources",
    "sources.cache",
    "sources.parquet",
    "sources.images",
    "sources.hdf5_samples",
    "sources.hdf5",
    "sources.stored",
    "sources.table",
    "sources.files",
    "watching",
    "readers.delivery",
    "workers",
    "workers.pipeline",
    "workers.processes",
    "workers.assembly",
    "workers.plan",
    "workers.loading",
    "workers.order",
    "workers.transport",
    "workers.api",
    "workers.base",
)


def modules(package: str) -> Iterator[tuple[str, Path]]:
    """The full name and the file of every module in `package`, its subpackages' included."""
    spec = find_spec(package)
    assert spec is not None, f"{package} is not installed"
    assert spec.submodule_search_locations is not None, f"{package} is no package"
    base = Path(spec.submodule_search_locations[0])
    for path in sorted(base.rglob("*.py")):
        parts = path.relative_to(base).with_suffix("").parts
        yield ".".join((package, *parts[: -1 if parts[-1] == "__init__" else None])), path


def whole_package() -> dict[str, Path]:
    """The file of every module of blobfeed by its full name, installed or in a checkout."""
    found = dict(modules("blobfeed"))
    for folder in FOLDERS:
        found |= modules(f"blobfeed.{folder}")
    return found


def imported(source: str, module: str, *, is_package: bool) -> Iterator[str]:
    """The full name of everything that `source`, the text of `module`, imports: `from ..a import b` gives p.a.b."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module
            yield from (f"{base}.{alias.name}" for alias in node.names)


def upward(names: Iterable[str], module: str) -> list[str]:
    """Those of `names` that `module` must not import: those of rooms above, other plug-ins, and bare folders."""
    own = _place(module)
    return [name for name in names if name.split(".")[0] in FOLDERS or _place(name) < own or _are_beside(name, module)]


def _are_beside(name: str, module: str) -> bool:
    """Return true if `module` is of a plug-in, and `name` of another that it must not import."""
    other, own = (each.split(".")[1] if each.startswith("blobfeed.") else "" for each in (name, module))
    return {other, own} <= {*PLUGINS} and other != own and (own, other) != ("supplies", "sources")


def _place(name: str) -> int:
    """Where the room of `name` stands in the order: 0 for the front door, past the end for what is not of blobfeed."""
    root, _, rest = name.partition(".")
    if root != "blobfeed":
        return len(ROOMS) + 1
    inside = [room for room in ROOMS if f"{rest}.".startswith(f"{room}.")]
    return ROOMS.index(max(inside, key=len)) + 1 if inside else 0
