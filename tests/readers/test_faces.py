"""The readers for NumPy and torch, and the layer, keep the contract of all faces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobfeed import BatchReader, LayerHarness, MultiProcessInputLayer

from ..support.reader_data import IMAGE
from .faces import (
    BATCH,
    Arrays,
    Face,
    after_ctrl_c_within_close_a_second_close_leaves_no_process,
    every_law,
)


class OwnArrays(Face):
    """Loops into the user's arrays, of another type than the stored one: 24 numbers of a sample lose nothing by it."""

    def loop(self) -> Iterator[tuple[Any, Any]]:
        own = {"data": np.empty((BATCH, *IMAGE), np.float64), "label": np.empty(BATCH, np.int64)}
        for batch in self.reader.into(own):
            assert all(np.shares_memory(batch[name], own[name]) for name in own)
            assert (batch["data"] is own["data"]) == (batch.rows == BATCH)
            yield batch["data"].astype(np.float32), batch["label"]


class Tensors(Face):
    def make(self, source: dict[str, Any], **settings: Any) -> Any:
        pytest.importorskip("torch")
        return BatchReader(source, device="cpu", **settings)

    def loop(self) -> Iterator[tuple[Any, Any]]:
        for data, label in super().loop():
            assert {str(type(each)) for each in (data, label)} == {"<class 'torch.Tensor'>"}
            yield data, label


class Fetched(Face):
    def make(self, source: dict[str, Any], **settings: Any) -> Any:
        pytest.importorskip("torch")
        from blobfeed import AsyncReader

        places = {"num_dim": 1, "cha_dim": 2, "h_dim": 3, "w_dim": 4, "labels_field": "label"}
        chosen = {name: settings[name] for name in ("batch_size", "shuffle", "seed")}
        return AsyncReader({**places, **chosen}, hdf5_path=source["hdf5"]["path"], nthread=settings["num_loaders"])

    def loop(self) -> Iterator[tuple[Any, Any]]:
        self.reader.fetch_data()
        yield self.reader.get_next_batch()


class Blobs(Face):
    def make(self, source: dict[str, Any], **settings: Any) -> Any:
        self.harness = LayerHarness(MultiProcessInputLayer, {"source": source, **settings, "epochs": None})
        return self.harness.layer

    def loop(self) -> Iterator[tuple[Any, Any]]:
        tops = self.harness.forward()
        yield tops["data"], tops["label"]

    def state(self) -> dict[str, Any]:
        self.harness.reshape()  # the next batch is announced, and has not been received
        return super().state()


@every_law
@pytest.mark.parametrize("face", [Arrays, OwnArrays, Tensors, Fetched, Blobs])
def test_every_face_keeps_the_contract(face: type[Face], law: Any, tmp_path: Path) -> None:
    law(face, tmp_path)


@pytest.mark.slow
def test_ctrl_c_at_any_line_of_close_is_followed_by_a_second_close_that_leaves_no_process(tmp_path: Path) -> None:
    after_ctrl_c_within_close_a_second_close_leaves_no_process(Arrays, tmp_path, at_every_line=True)
