"""What readers deliver stays, byte for byte, from release to release: `published_bytes.txt` has a digest for each case.

tests/support/published.py says what the cases are and how the file is made.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.part import some_of
from ..support.published import cases, digest, write_files

_LINES = Path(__file__).with_name("published_bytes.txt").read_text().splitlines()
_PUBLISHED = {name: published for published, name in (line.split("  ", 1) for line in _LINES)}
_CASES = cases()
_PART = 5
"""One case in so many is made in `make test`: of each parameter every value."""

_SOME = 64
"""One in so many is also made by loaders, and resumed: all of them would take minutes."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("published")
    write_files(path)
    return path


def test_every_case_is_published_once() -> None:
    assert list(_PUBLISHED) == list(_CASES)
    assert len(set(_PUBLISHED.values())) > len(_PUBLISHED) // 2


@pytest.mark.parametrize("first", some_of(range(_PART), _PART))
def test_batches_have_the_published_bytes(folder: Path, first: int) -> None:
    made = {name: digest(_CASES[name], folder, num_loaders=0) for name in list(_CASES)[first::_PART]}
    assert {name: each for name, each in made.items() if each != _PUBLISHED[name]} == {}


def test_loaders_make_the_published_bytes(folder: Path) -> None:
    names = [*list(_CASES)[::_SOME], *(name for name in _CASES if name.startswith("stream"))]
    made = {name: digest(_CASES[name], folder, num_loaders=2) for name in names}
    assert {name: each for name, each in made.items() if each != _PUBLISHED[name]} == {}


def test_a_resumed_reader_has_the_published_bytes(folder: Path) -> None:
    names = [name for name in _CASES if not name.startswith("stream")][5::_SOME]
    made = {name: digest(_CASES[name], folder, num_loaders=0, resume_at=5) for name in names}
    assert {name: each for name, each in made.items() if each != _PUBLISHED[name]} == {}
