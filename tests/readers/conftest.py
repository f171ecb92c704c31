"""Data for the tests of readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.reader_data import write_hdf5

# These are collected only if they are named: `make alone` gives each a process of its own. With a torch for CUDA, one
# that imports TensorFlow and then torch's compiler ends in a segmentation fault, and Keras imports one or the other.
# JAX starts threads, and warns at each later fork of the process that imported it.
collect_ignore_glob = ["test_jax_*.py", "test_keras_*.py", "test_tensorflow_*.py"]


@pytest.fixture
def source(tmp_path: Path) -> dict[str, Any]:
    """A file of ten samples."""
    return write_hdf5(tmp_path / "train.h5", 10)
