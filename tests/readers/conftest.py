"""Data for the tests of readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.reader_data import write_hdf5


@pytest.fixture
def source(tmp_path: Path) -> dict[str, Any]:
    """A file of ten samples."""
    return write_hdf5(tmp_path / "train.h5", 10)
