"""TorchDataset: whole batches in plain loops, in DataLoader, and in a training that is stopped and goes on."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

from blobfeed import PipelineClosed, TorchDataset  # noqa: E402

SETTINGS: dict[str, Any] = {"batch_size": 4, "num_loaders": 1, "epochs": 1, "shuffle": True, "last_batch": "partial"}


class Asking(IterableDataset[str]):
    """Asks the feed for a batch wherever it is iterated over, and tells what came of it."""

    def __init__(self, feed: TorchDataset) -> None:
        self._feeds = {0: feed}

    def __iter__(self) -> Iterator[str]:
        try:
            next(iter(self._feeds[0]))
            yield "a batch"
        except PipelineClosed as error:
            yield str(error)


def test_a_worker_of_a_dataloader_says_what_to_do_instead(source: dict[str, Any]) -> None:
    feed = TorchDataset(source, **SETTINGS)
    loader = DataLoader(Asking(feed), batch_size=None, num_workers=1, multiprocessing_context="fork")
    assert ["num_workers=0" in told for told in loader] == [True]
    with pytest.raises(PipelineClosed, match="num_workers=0"):
        pickle.dumps(feed)
    assert feed
    assert len(DataLoader(feed, batch_size=None)) == len(feed) == 3
    feed.close()
