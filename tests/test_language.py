"""The language of the source: docstrings begin with a verb or a noun, and homemade words do not come back.

The rooms that keep to it are listed here; a room joins when its text does.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import blobfeed

PACKAGE = Path(blobfeed.__file__).resolve().parent
BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"

ROOMS = (
    ".",
    "layers",
    "tools",
    "readers",
    "trainer",
    "workers/api",
    "workers/base",
    "workers/loading",
    "workers/order",
    "workers/pipeline",
    "workers/plan",
    "workers/processes",
    "workers/remote",
    "workers/scheduling",
    "workers/sources",
    *(f"workers/sources/{kind}" for kind in ("cache", "files", "hdf5", "hdf5_samples", "images", "lmdb", "parquet")),
    *(f"workers/sources/{kind}" for kind in ("stored", "table", "tar", "zarr")),
    "workers/transport",
    "workers/watching",
)

BEGINNINGS = ["What", "Whether", "Where", "Which", "How", "Of", "As", "If", "Who", "Whose", "When", "That", "Those"]
"""A docstring that begins so has no subject, or hides its verb."""

WORDS = (
    *("nobody", "whoever", "told", "mend", "mends", "mended", "for ever", "given away", "promised", "lent", "left out"),
    *("drawer", "upkeep", "looped", "careful"),
)
"""The words that went. `Source.lend` is a public name."""

_ANY_WORD = re.compile(rf"(?<![a-z])({'|'.join(WORDS)})(?![a-z])")
_ANY_BEGINNING = re.compile(rf"({'|'.join(BEGINNINGS)})\b")


def faults(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the fault of each docstring with such a beginning, and of each text or name with such a word.

    A string below an attribute counts as its docstring. Names count where they are defined: a call may have to use
    those of other rooms.
    """
    for node in ast.walk(ast.parse(source)):
        for text in _docstring(node):
            if found := _ANY_BEGINNING.match(text):
                yield node.lineno, f"a docstring begins with {found[0]}"  # type: ignore[attr-defined]
        for text in (*_strings(node), *_defined(node)):
            if found := _ANY_WORD.search(_spaced(text)):
                yield node.lineno, f"{found[0]!r} in {text[:60]!r}"  # type: ignore[attr-defined]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and (found := _ANY_WORD.search(_spaced(token.string))):
            yield token.start[0], f"{found[0]!r} in {token.string[:60]!r}"


def _docstring(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Expr):
        for text in _strings(node.value):
            yield text.strip()


def _strings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _defined(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            yield name


def _spaced(text: str) -> str:
    """Return the text in lower case, with one space between words, also between those of a name."""
    return " ".join(re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", text).lower().split())


@pytest.mark.parametrize(
    "room", [*(PACKAGE / room for room in ROOMS), BENCHMARKS, BENCHMARKS / "entrants"], ids=lambda room: room.name
)
def test_a_room_is_written_in_plain_english(room: Path) -> None:
    files = sorted(room.glob("*.py"))
    assert files
    found = [f"{path}:{line}: {fault}" for path in files for line, fault in faults(path.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        '"""What a loader does."""',
        'class A:\n    """Whether it runs."""\n',
        'def a() -> int:\n    """Of the next batch."""\n',
        'a = 1\n"""If there is one, its number."""\n',
        '"""The trainer is told of it."""',
        'a = "mend that"\n',
        "a = 1  # it waits for ever\n",
        "# it waits for\nnobody = 1\n",
        "class EpochDrawer: ...\n",
        "def f(told: int) -> None: ...\n",
        "a._was_lent = 1\n",
    ],
)
def test_a_fault_is_found(source: str) -> None:
    assert list(faults(source))


def test_whatever_a_call_must_name_is_no_fault() -> None:
    assert not list(faults('"""The result of `pack`. How it works."""\npack(told=1)\nsource.lend(2)  # amended\n'))
