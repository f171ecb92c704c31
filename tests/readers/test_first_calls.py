"""The state that a user's code makes at its first call, in the trainer: not sent, or undone, or sent once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.workers.api import HookBatch, IndexArray, NamedRows

from blobfeed import BatchReader, LayerHarness, MultiProcessInputLayer, Sample, StreamSource
from tests.support.part import some_of

from .own_code import SAMPLES, Pictures, delivered


class _Opens:
    lock: Any = None

    def __call__(self, sample: Sample, _: np.random.Generator) -> Any:
        self.lock = self.lock or threading.Lock()
        return dict(sample)

    def batch(self, batch: HookBatch) -> None:
        self.lock = self.lock or threading.Lock()


def _in_a_closure() -> Callable[..., Any]:
    lock: Any = None

    def decode(sample: Sample, _: np.random.Generator) -> Any:
        nonlocal lock
        lock = lock or threading.Lock()
        return dict(sample)

    return decode


_made: Any = None


def _in_a_global(sample: Sample, _: np.random.Generator) -> Any:
    global _made  # noqa: PLW0603 - what users do
    _made = _made or threading.Lock()
    return dict(sample)


class _Keeps:
    def __init__(self) -> None:
        self.made: dict[str, dict[str, Any]] = {"locks": {}}
        self.order: deque[str] = deque()

    def __call__(self, sample: Sample, _: np.random.Generator) -> Any:
        if "one" not in self.made["locks"]:
            assert not self.order, "one of the two was undone and not the other"
            self.order.append("one")
        self.made["locks"].setdefault("one", threading.Lock())
        return dict(sample)

    @cached_property
    def lock(self) -> Any:
        return threading.Lock()


_kept: dict[str, Any] = {}
_keeps = _Keeps()


def _lock() -> Any:
    global _made  # noqa: PLW0603 - what users do
    _made = _made or threading.Lock()
    return _made


def _in_what_globals_hold(sample: Sample, _: np.random.Generator) -> Any:
    with _kept.setdefault("lock", threading.Lock()), _keeps.lock, _lock():
        return dict(sample)


@pytest.mark.parametrize(
    "given",
    [
        {"decode": _Keeps()},
        {"decode": _in_what_globals_hold},
        {"decode": _Opens()},
        {"decode": partial(_Opens())},
        {"postprocess": _Opens().batch},
        {"decode": _in_a_closure()},
        {"decode": _in_a_global},
    ],
)
def test_what_a_hook_makes_at_its_first_call_need_not_be_sent(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for thing in (_in_a_global, _in_what_globals_hold, _lock, _Keeps):
        monkeypatch.setattr(thing, "__module__", "__main__")  # sent with the globals that it uses
    with BatchReader(Pictures(), batch_size=8, epochs=1, num_loaders=1, **given) as reader:
        reader.load_state_dict(reader.state_dict())  # setup tries the hook again
        assert sorted(label for batch in reader for label in batch["label"]) == list(range(SAMPLES))


class _OpensAtFirstRead(Pictures):
    """A source like one that reads a database: an open connection cannot be sent."""

    def __init__(self) -> None:
        self.opened: Any = None
        self.pages: dict[int, Any] = {}

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        self.opened = self.opened or threading.Lock()
        with self.opened, self.pages.setdefault(0, threading.Lock()):
            super().read(indices, out)

    def walk(self, shard: int, shards: int) -> Iterator[Any]:
        self.opened = self.opened or threading.Lock()
        yield from ({"label": number} for number in range(shard, SAMPLES, shards))


class _Scans(Pictures):
    """Its index is made at first need, and takes long: what can be sent is not made again by each loader."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes
        self.found: list[int] = []

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        if not self.found:
            with self.notes.open("a") as file:
                print("scanned", file=file)
            self.found = list(range(SAMPLES))
        super().read(indices, out)


class _OpensInItsConstructor(_OpensAtFirstRead):
    """It closes itself, so what it has assigned stays: to undo it would bring back what is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = threading.Lock()

    def close(self) -> None:
        self.opened = None
        self.pages.clear()


@pytest.mark.parametrize(
    "make",
    [
        _OpensAtFirstRead,
        _OpensInItsConstructor,
        lambda: {"concat": [{"zip": [_OpensAtFirstRead()]}]},
        lambda: StreamSource(_OpensAtFirstRead().walk, shards=2),
    ],
)
def test_what_a_source_opens_at_its_first_read_need_not_be_sent(make: Callable[[], Any]) -> None:
    with BatchReader(make(), batch_size=8, epochs=1, num_loaders=1) as reader:
        assert sorted(label for batch in reader for label in batch["label"]) == list(range(SAMPLES))


def test_what_a_source_makes_at_its_first_read_is_sent_if_it_can_be(tmp_path: Path) -> None:
    with BatchReader(_Scans(tmp_path / "notes"), batch_size=8, epochs=1, num_loaders=2) as reader:
        assert sorted(label for batch in reader for label in batch["label"]) == list(range(SAMPLES))
    assert (tmp_path / "notes").read_text() == "scanned\n"


@pytest.mark.parametrize(
    ("key", "sampler"),
    [("source", None), ("concat", None), ("mix", None), ("source", range(SAMPLES)), ("concat", range(SAMPLES))],
)
def test_a_source_of_the_script_may_stand_in_a_mapping(key: str, sampler: Any) -> None:
    class Local(Pictures):
        """The process that plans the batches can import it no more than a class of a script."""

    part = {"concat": [Local()]}
    given: dict[str, Any] = {"mix": [part, part]} if key == "mix" else {"source": part if key == "concat" else Local()}
    given |= {"batch_size": 8, "num_loaders": 1} | ({"sampler": sampler} if sampler else {})
    with LayerHarness(MultiProcessInputLayer, given) as harness:
        assert harness.forward()["label"].tolist() == ([0, 0, 1, 1, 2, 2, 3, 3] if key == "mix" else list(range(8)))


@pytest.mark.parametrize("num_loaders", some_of([0, 1], 2))
def test_what_a_hook_stores_while_setup_tries_it_is_forgotten(num_loaders: int) -> None:
    in_closure = 0

    class Counting:
        of_all = 0

        def __init__(self) -> None:
            self.own = {"calls": 0}

        def __call__(self, sample: Sample, _: np.random.Generator) -> Any:
            nonlocal in_closure
            in_closure += 1
            self.own["calls"] += 1
            type(self).of_all += 1
            return {"calls": np.array([self.own["calls"], in_closure, self.of_all])}

    with BatchReader(Pictures(), decode=Counting(), batch_size=8, epochs=1, num_loaders=num_loaders) as reader:
        assert in_closure == Counting.of_all == 0, "the trial has changed the user's own"
        calls = np.concatenate([batch["calls"] for batch in reader])
    assert calls.T.tolist() == [list(range(1, SAMPLES + 1))] * 3


@pytest.mark.parametrize("hook", ["decode", "postprocess"])
def test_without_loaders_a_hook_may_hold_what_cannot_be_copied(hook: str) -> None:
    lock = threading.Lock()

    def locks(given: Any, *_: Any) -> Any:
        with lock:
            return dict(given)

    assert len(delivered(0, **{hook: locks})["label"]) == SAMPLES
