"""For tests that train in this process: each has one thread, and leaves no imported module behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def importing_leaves_no_trace() -> Iterator[None]:
    """Each test's folder has modules of the same names as the last one's."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.partition(".")[0] in ("batches", "mine", "augment"):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Nets this small gain nothing from more, and lose a lot on a busy machine."""
    torch = sys.modules.get("torch")  # a test marked pure must not import it
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
