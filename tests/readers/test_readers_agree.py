"""The same parameters and the same seed give the same bytes, whoever reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.layers.harness import LayerHarness
from blobfeed.layers.multi_process_input_layer import MultiProcessInputLayer
from blobfeed.readers.batch_reader import BatchReader

from tests.support.reader_data import write_hdf5

SAMPLES = 23
SETTINGS: dict[str, Any] = {"batch_size": 5, "num_loaders": 2, "shuffle": True, "seed": 7, "last_batch": "partial"}
BATCHES = 2 * 5  # of two epochs

Bytes = list[tuple[bytes, list[int]]]
Face = Callable[[dict[str, Any]], Iterator[tuple[Any, Any]]]


def arrays(source: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    with BatchReader(source, epochs=2, **{**SETTINGS, "num_loaders": 0}) as reader:
        yield from ((batch["data"], batch["label"]) for batch in reader)


def views(source: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    with BatchReader(source, epochs=1, copy=False, **SETTINGS) as reader:
        for _ in range(2):
            yield from ((batch["data"], batch["label"]) for batch in reader)


def tensors(source: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    pytest.importorskip("torch")
    with BatchReader(source, device="cpu", **SETTINGS) as reader:
        yield from ((batch["data"], batch["label"]) for batch in reader)


def fetched(source: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    pytest.importorskip("torch")
    from blobfeed.readers.async_reader import AsyncReader

    places: dict[str, Any] = {"num_dim": 1, "cha_dim": 2, "h_dim": 3, "w_dim": 4}
    chosen = {"batchSize": 5, "shuffle": True, "seed": 7, "nthread": 2, "labels_field": "label"}
    with AsyncReader(chosen, hdf5_path=source["hdf5"]["path"], **places) as reader:
        while True:
            reader.fetch_data()
            yield reader.get_next_batch()


def through_a_dataloader(source: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    pytest.importorskip("torch")
    from blobfeed.readers.torch_dataset import TorchDataset
    from torch.utils.data import DataLoader

    with TorchDataset(source, epochs=1, **SETTINGS) as feed:
        loader = DataLoader(feed, batch_size=None)
        for _ in range(2):
            yield from ((batch["data"], batch["label"]) for batch in loader)


def blobs(source: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    with LayerHarness(MultiProcessInputLayer, {"source": source, **SETTINGS}) as harness:
        while True:
            tops = harness.forward()
            yield tops["data"], tops["label"]


def as_bytes(batches: Iterator[tuple[Any, Any]]) -> Bytes:
    first = islice(batches, BATCHES)
    return [(np.asarray(data).tobytes(), [int(label) for label in labels]) for data, labels in first]


def check_bytes(folder: Path, face: Face) -> None:
    source = write_hdf5(folder / "train.h5", SAMPLES)
    expected = as_bytes(arrays(source))
    got = face(source)
    assert as_bytes(got) == expected
    getattr(got, "close")()  # noqa: B009 - a generator, whose reader is closed with it


# Keras and TensorFlow have it in files of their own.
@pytest.mark.parametrize("face", [views, tensors, fetched, through_a_dataloader, blobs])
def test_every_face_gives_the_bytes_of_a_plain_reader(tmp_path: Path, face: Face) -> None:
    check_bytes(tmp_path, face)
