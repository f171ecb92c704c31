"""The real feed over links that are queues: every wait ends at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import zmq
from blobfeed.workers.api import IndexArray
from blobfeed.workers.pipeline import Held, ProcessFeed
from blobfeed.workers.plan import Plan
from blobfeed.workers.transport import Count, End, Failure, Release, ToAssembler
from blobfeed.workers.transport.links import Decoder

from blobfeed import BlobfeedError, PipelineStalled


class Wrong(AssertionError):
    """Something that must never be."""


def require(holds: object, what: str) -> None:
    if not holds:
        raise Wrong(what)


class Link:
    """A ZeroMQ socket pair, as the feed uses it."""

    def __init__(self) -> None:
        self.frames: list[Any] = []

    def send(self, frame: object) -> None:
        self.frames.append(frame)

    def get(self, _option: int) -> int:
        return zmq.POLLIN if self.frames else 0

    def recv(self, _flags: int) -> Any:
        return self.frames.pop(0)


class Releases(Link):
    """The link to the assembler: the feed sends frames, and messages arrive."""

    def send(self, frame: object) -> None:
        assert isinstance(frame, bytes)
        super().send(Decoder[ToAssembler](ToAssembler).decode(frame))


class _Plain:
    """Frames are the messages themselves: those that are none are dropped before anything here could see them."""

    dropped = 0

    def decode(self, frame: object) -> object:
        return frame


class _NoTime:
    def poll(self, _timeout: int) -> list[tuple[int, int]]:
        return []


class _NoLogs:
    def receive(self) -> None:
        return

    def take(self, number: int, text: str) -> BaseException:
        raise AssertionError(f"no loader of the model has sent exception {number}: {text}")


class _Assembler:
    handle = -1


@dataclass
class _Ring:
    slots: int


class _Counts:
    """Keep nothing: what the feed writes there are times, and no state may differ by these."""

    def __getitem__(self, _which: Count) -> int:
        return 0

    def __setitem__(self, _which: Count, _value: int) -> None:
        return


@dataclass
class _Board:
    counts: _Counts = field(default_factory=_Counts)


@dataclass
class _Shared:
    ring: _Ring
    board: _Board = field(default_factory=_Board)
    errors: int = -2


class DrawsFile:
    """The shared file of drawn epochs, by the offset of each number; what was given back is gone."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}

    def read(self, offset: int, count: int, _kind: type[np.int64] = np.int64) -> IndexArray:
        places = range(offset, offset + 8 * count, 8)
        require(all(place in self.numbers for place in places), f"draws at {offset} are read, and are not there")
        return np.array([self.numbers[place] for place in places], np.int64)

    def write(self, offset: int, numbers: Sequence[int]) -> None:
        places = range(offset, offset + 8 * len(numbers), 8)
        written = dict(zip(places, numbers, strict=True))
        same = all(self.numbers.get(place, number) == number for place, number in written.items())
        require(same, f"draws at {offset} are written over")
        self.numbers |= written

    def free(self, offset: int, size: int) -> None:
        for place in range(offset, offset + size, 8):
            del self.numbers[place]


class SmallFeed(ProcessFeed):
    """The real one without processes: every wait ends at once."""

    def __init__(self, plan: Plan, batches: Link, releases: Link) -> None:
        fields: dict[str, Any] = {
            "_plan": plan,
            "_told": Release(0),
            "_held": Held(),
            "_untold": 0,
            "_tell_every": plan.batches_per_task,
            "_waiting": nullcontext(),
            "_failure": None,
            "_decoder": _Plain(),
            "_batch_link": batches,
            "_release_link": releases,
            "_poller": _NoTime(),
            "_inbox": _NoLogs(),
            "_next_look_at_logs": float("inf"),
            "_assembler": _Assembler(),
            "shared": _Shared(_Ring(plan.slots)),
        }
        self.__dict__.update(fields)

    def _explain(self, failure: Failure | End) -> BlobfeedError:
        return super()._explain(failure) if isinstance(failure, End) else BlobfeedError(failure.error)

    def _stalled(self, _timeout_s: float) -> BlobfeedError:
        return NothingYet()


class NothingYet(PipelineStalled):
    """Nothing has come: asked again later."""
