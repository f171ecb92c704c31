"""A reader's large batch is the slot itself, and the user's own for as long as anything refers to it."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator
from itertools import islice, pairwise
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from blobfeed.readers.delivery.delivery import HostDelivery
from blobfeed.readers.delivery.named_batches import NamedBatch
from blobfeed.workers.base.specs import AnyArray
from blobfeed.workers.pipeline import choice
from blobfeed.workers.pipeline.auto_feed import AutoFeed
from blobfeed.workers.pipeline.choice import Choice, LocalOrLoaders

from blobfeed import BatchReader

_SAMPLES, _BATCH = 480, 48
_SHAPE = (3, 128, 128)  # a batch is 2.4 MB: more than half of what several in a slot may have


def _data() -> AnyArray:
    return np.random.default_rng(3).integers(0, 256, (_SAMPLES, *_SHAPE), np.uint8)


def _reader(**parameters: Any) -> BatchReader:
    chosen = {"batch_size": _BATCH, "num_loaders": 1, "shuffle": True, **parameters}
    return BatchReader({"arrays": {"data": _data(), "label": np.arange(_SAMPLES)}}, **chosen)


@pytest.fixture
def reader() -> Iterator[BatchReader]:
    with _reader() as opened:
        yield opened


def _delivery(reader: BatchReader) -> HostDelivery:
    delivery = reader._feed.batches.delivery
    assert isinstance(delivery, HostDelivery)
    return delivery


def _lent(reader: BatchReader) -> int:
    return len(_delivery(reader)._lent)


def _is_slot(reader: BatchReader, array: AnyArray) -> bool:
    ring = reader._feed.pipeline._feed.shared.ring  # type: ignore[union-attr]
    return np.may_share_memory(array, ring.memory)


def _require_right(batch: NamedBatch, data: AnyArray) -> None:
    np.testing.assert_array_equal(batch["data"], data[batch.indices])
    np.testing.assert_array_equal(batch["label"], batch.indices)


def test_a_loop_that_lets_each_batch_go_copies_none(reader: BatchReader) -> None:
    data, batches = _data(), iter(reader)
    for _ in range(60):
        batch = next(batches)
        _require_right(batch, data)
        assert _is_slot(reader, batch["data"])
        assert _lent(reader) <= 3


@pytest.mark.parametrize("part", [np.s_[...], np.s_[1:, :, ::2]], ids=["batches", "views"])
def test_whoever_keeps_batches_keeps_what_was_in_them(reader: BatchReader, part: Any) -> None:
    data, batches, taken = _data(), iter(reader), []
    for _ in range(40):
        batch = next(batches)
        taken.append((batch.indices, batch["data"][part]))
        del batch
    assert _lent(reader) == 3
    reader.close()
    for indices, kept in taken:
        np.testing.assert_array_equal(kept, data[indices][part])


def test_what_is_written_into_a_batch_comes_with_no_later_one(reader: BatchReader) -> None:
    data, batches = _data(), iter(reader)
    for _ in range(60):
        batch = next(batches)
        _require_right(batch, data)
        batch["data"][...] = 0
        batch["label"][...] = -1


def test_a_slot_is_given_back_once_the_last_reference_is_gone(reader: BatchReader) -> None:
    batches = iter(reader)
    views = [next(batches)["data"][0], next(batches)["data"].reshape(-1).view(np.uint16), next(batches)["data"].T]
    assert not _is_slot(reader, next(batches)["data"])
    views.clear()
    assert _is_slot(reader, next(batches)["data"])
    assert _lent(reader) == 1


def test_a_tensor_and_what_is_made_of_it_hold_the_slot() -> None:
    torch = pytest.importorskip("torch")
    with _reader(device="cpu") as reader:
        data, batches = _data(), iter(reader)
        batch = next(batches)
        indices, part = batch.indices, batch["data"][2:4].permute(1, 0, 2, 3)
        del batch
        gc.collect()
        for _ in range(30):
            assert torch.is_tensor(next(batches)["data"])
        np.testing.assert_array_equal(part.numpy(), data[indices][2:4].transpose(1, 0, 2, 3))


@pytest.mark.parametrize(
    "parameters",
    [
        {"prefetch_batches": 2},
        {"batch_size": 4},  # several in a slot
        {"transform": {"scale": 0.5}},
        {"transform": {"scale": 0.5}, "num_loaders": 0},
    ],
    ids=["few slots", "small", "converted", "converted in process"],
)
def test_what_is_not_worth_it_is_copied(parameters: dict[str, Any]) -> None:
    data = _data()
    with _reader(**parameters) as reader:
        batches = iter(reader)
        for _ in range(30):
            batch = next(batches)
            factor = np.float32(0.5) if "transform" in parameters else 1
            np.testing.assert_array_equal(batch["data"], data[batch.indices] * factor)
            assert _lent(reader) == 0


def test_after_an_interrupt_the_batch_is_lent_once(reader: BatchReader, monkeypatch: pytest.MonkeyPatch) -> None:
    data, batches = _data(), iter(reader)
    next(batches)
    delivery = _delivery(reader)
    look_ahead = delivery.pipeline.look_ahead

    def interrupted() -> None:
        look_ahead()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(delivery.pipeline, "look_ahead", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
    again = next(batches)
    _require_right(again, data)
    copied = again["data"].copy()
    for _ in range(30):
        next(batches)
    np.testing.assert_array_equal(again["data"], copied)


def _watch(batch: AnyArray, link: Connection) -> None:
    link.recv()
    link.send(batch.copy())


def test_a_child_of_the_trainers_sees_what_it_was_forked_with(reader: BatchReader) -> None:
    batches = iter(reader)
    batch = next(batches)
    expected = batch["data"].copy()
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    child = fork.Process(target=_watch, args=(batch["data"], theirs))
    child.start()
    del batch
    for _ in range(40):
        assert not _is_slot(reader, next(batches)["data"])
    ours.send(None)
    assert ours.poll(60)
    np.testing.assert_array_equal(ours.recv(), expected)
    child.join(60)
    ours.close()
    theirs.close()


@pytest.mark.parametrize("kept", ["the newest", "one for good", "some", "what a fork may see"])
def test_auto_may_change_over_though_batches_are_held(monkeypatch: pytest.MonkeyPatch, kept: str) -> None:
    def to_and_fro(self: LocalOrLoaders, batches: int, _waited_s: float, _now: float) -> Choice:
        self.next_look = 0.0
        self._rates.append(1.0)
        if self.change_at is not None:
            return Choice.CHANGE if batches >= self.change_at else Choice.STAY
        if batches % 10 < 7:  # slots are lent
            return Choice.STAY
        self.ahead, self.change_at = 2, batches + 2
        return Choice.START if self.is_local else Choice.STAY

    monkeypatch.setattr(LocalOrLoaders, "observe", to_and_fro)
    monkeypatch.setattr(choice, "_WINDOW_S", 0.0)
    with _reader(num_loaders=0) as reader:
        expected = [batch.indices.tolist() for batch in islice(reader, 80)]
    data, ways, indices, held = _data(), [], [], []
    with _reader(num_loaders="auto") as reader:
        for number, batch in enumerate(islice(reader, 80)):
            _require_right(batch, data)
            indices.append(batch.indices.tolist())
            feed = reader._feed.pipeline._feed
            assert isinstance(feed, AutoFeed)
            ways.append(type(feed._now))
            if kept == "some":
                held = [*held[-5 + number % 4 :], *[batch] * (number % 3 > 0)]
            elif held or not _lent(reader):
                continue
            elif kept == "one for good":
                held = [batch]
            elif kept == "what a fork may see":
                held, child = [batch], multiprocessing.get_context("fork").Process(target=gc.collect)
                child.start()
                child.join(60)
    assert sum(before != now for before, now in pairwise(ways)) >= 8
    assert indices == expected
    for batch in held:
        _require_right(batch, data)
