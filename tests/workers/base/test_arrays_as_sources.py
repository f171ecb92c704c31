"""Arrays in the place of a source: one short message that says what to give, and not all of their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]  # noqa: F401 - not within a test: its import starts a process, uname
import numpy as np
import pytest
from blobfeed.workers.base.checks import shown
from blobfeed.workers.base.errors import ParameterError, SourceError
from blobfeed.workers.base.parameters import check_parameters
from blobfeed.workers.sources import open_source

ARRAY = np.random.default_rng(0).random((30, 30))
SHORT = 600


@pytest.mark.parametrize(
    "source", [ARRAY, (ARRAY, ARRAY), ARRAY.tolist(), [ARRAY, list(range(1000))]], ids=["array", "two", "list", "mixed"]
)
def test_an_array_as_the_source_is_refused_in_few_words(source: Any) -> None:
    with pytest.raises(ParameterError, match=r"'source' is .*: expected .*{arrays: ") as caught:
        check_parameters({"source": source, "batch_size": 4})
    assert len(str(caught.value)) < SHORT


class Pairs:
    """What torch calls a map-style dataset."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, index


class Streamed(Pairs):
    """torch's IterableDataset has `__getitem__`, too."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_a_dataset_as_the_source_is_refused_with_the_way_to_read_it() -> None:
    with pytest.raises(ParameterError, match=r"read its indices, {arrays: {index: np.arange\(len\(dataset\)\)}}, and"):
        check_parameters({"source": Pairs(), "batch_size": 4})
    with pytest.raises(ParameterError, match=r"as StreamSource\(function\)$"):
        check_parameters({"source": Streamed(), "batch_size": 4})


@pytest.mark.parametrize(
    "source",
    [
        {"hdf5": {"path": ARRAY}},
        {"npy": {"data": ARRAY}},
        {"npy": {"data": [ARRAY]}},
        {"hdf5": ARRAY},
        {"data": ARRAY, "label": ARRAY},
        [ARRAY],
    ],
)
def test_an_array_as_an_option_is_refused_in_few_words(source: Any) -> None:
    with pytest.raises(ParameterError, match=r"<ndarray of shape \(30, 30\), float64>") as caught:
        open_source(source, tops=None, base_dir=Path())
    assert len(str(caught.value)) < SHORT


def test_data_as_a_path_are_refused_in_few_words() -> None:
    with pytest.raises(SourceError, match=r"the path .* cannot be looked up: File name too long") as caught:
        open_source({"hdf5": {"path": "1.5," * 30_000}}, tops=None, base_dir=Path())
    assert len(str(caught.value)) < SHORT


def test_what_is_short_is_shown_as_it_is() -> None:
    for value in ("train.h5", 3, -1.5, None, True, ["a", "b"], {"limit": 3, "path": "a.h5"}, (1, 2), b"x"):
        assert shown(value) == repr(value)
