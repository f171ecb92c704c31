"""Data files, and a server of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.object_servers import RangeServer, range_server


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with range_server() as server:
        yield server
