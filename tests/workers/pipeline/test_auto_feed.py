"""`num_loaders: auto` over raw rows: from the trainer's process to loaders and back, and no batch notices."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
from blobfeed.readers.batch_reader import BatchReader
from blobfeed.workers.base.errors import RingAllocationError
from blobfeed.workers.pipeline import auto_feed
from blobfeed.workers.pipeline.choice import Choice

SAMPLES = 90
SETTINGS: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3, "last_batch": "partial"}
SOURCE = {"arrays": {"data": np.arange(SAMPLES * 10).reshape(SAMPLES, 10), "label": np.arange(SAMPLES)}}


class Scripted:
    """Starts loaders after the first group, and changes as soon as they go on, then again and again."""

    def __init__(self, now: float) -> None:
        self.is_local = True
        self.ahead = 5
        self.change_at = 0
        self.next_look = 0.0

    def observe(self, batches: int, waited_s: float, now: float) -> Choice:
        if not batches:
            return Choice.STAY
        if self.is_local and not self.change_at:
            self.change_at = batches + self.ahead
            return Choice.START
        return Choice.CHANGE if batches >= self.change_at else Choice.STAY

    def changed(self, batches: int, waited_s: float, now: float) -> None:
        self.is_local = not self.is_local
        self.change_at = 0 if self.is_local else batches + 40


def read(epochs: int = 14, **settings: Any) -> tuple[list[tuple[int, list[int], bytes]], list[bool]]:
    children, with_loaders = psutil.Process().children(), []
    with BatchReader(SOURCE, **SETTINGS, **settings, epochs=epochs) as reader:
        batches = []
        for batch in reader:
            batches.append((batch.number, batch.indices.tolist(), batch["data"].tobytes()))
            with_loaders.append(reader.statistics().loaders > 0)
        assert reader.statistics().batches == len(batches)
    assert psutil.Process().children() == children
    return batches, with_loaders


@pytest.mark.parametrize("chosen", [{}, {"copy": False}, {"prefetch_batches": 2}])
def test_a_change_loses_and_repeats_no_batch(monkeypatch: pytest.MonkeyPatch, chosen: dict[str, Any]) -> None:
    monkeypatch.setattr(auto_feed, "LocalOrLoaders", Scripted)
    batches, with_loaders = read(**chosen, num_loaders="auto")
    assert batches == read(**chosen, num_loaders=0)[0]
    changes = sum(before != now for before, now in itertools.pairwise(with_loaders))
    assert changes >= 2


def test_a_short_run_over_raw_rows_starts_no_process() -> None:
    _, with_loaders = read(num_loaders="auto")
    assert not any(with_loaders)


def test_the_pace_is_measured_from_one_accepted_batch_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, float]] = []

    class Observer(Scripted):
        def observe(self, batches: int, waited_s: float, now: float) -> Choice:
            seen.append((batches, now))
            return super().observe(batches, waited_s, now)

    monkeypatch.setattr(auto_feed, "LocalOrLoaders", Observer)
    _, with_loaders = read(num_loaders="auto")
    assert set(with_loaders) == {False, True}
    assert len(seen) > len(set(seen)) == len({batches for batches, _ in seen})  # it is asked before each reading, too
    assert seen == sorted(seen)


def test_loaders_that_cannot_start_are_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise RingAllocationError("no memory is left")

    monkeypatch.setattr(auto_feed, "LocalOrLoaders", Scripted)
    monkeypatch.setattr(auto_feed, "Feed", refuse)
    batches, with_loaders = read(num_loaders="auto")
    assert batches == read(num_loaders=0)[0]
    assert not any(with_loaders)
    assert "no memory is left" in caplog.text


def test_hooks_of_the_user_run_in_loaders_unless_asked_otherwise() -> None:
    with BatchReader(SOURCE, decode=lambda sample, rng: dict(sample), **SETTINGS) as reader:
        next(iter(reader))
        assert reader.statistics().loaders > 0
