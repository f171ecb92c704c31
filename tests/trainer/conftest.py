"""Each test in this folder runs with one thread, and leaves no imported module behind."""

import pytest
from blobfeed.trainer.layer_types import ArrayBlob

from tests.support.training import importing_leaves_no_trace, one_thread

__all__ = ["importing_leaves_no_trace", "one_thread"]


@pytest.fixture
def arrays_are_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of blobs and weights are copies of the net's memory, as on CUDA."""
    monkeypatch.setattr(ArrayBlob, "is_on_host", lambda self, tensor: False)
