"""Errors cross process borders in pools and clusters of other libraries, which pickle them."""

from __future__ import annotations

import pickle

import pytest
from blobfeed.workers.base import errors

from blobfeed import BlobfeedError, LoaderDied, SampleError, TooManyBadSamples

pytestmark = pytest.mark.pure

PLAIN = [kind("text") for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BlobfeedError)]
WITH_PARTS = [
    SampleError("text", source="s", index=3, path="p"),
    TooManyBadSamples("text", [1, 2]),
    LoaderDied("text", ["killed by SIGKILL"]),
]


@pytest.mark.parametrize("error", [*PLAIN, *WITH_PARTS], ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_with_its_text_and_its_parts(error: BlobfeedError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), "text", vars(error))
