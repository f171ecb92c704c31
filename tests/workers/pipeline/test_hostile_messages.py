"""Whatever strangers send to the sockets of a running pipeline is dropped and counted, and no batch changes by it."""

from __future__ import annotations

import random
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import zmq
from blobfeed.workers.base.parameters import Parameters
from blobfeed.workers.order.make_order import make_order
from blobfeed.workers.pipeline.pipeline import Pipeline
from blobfeed.workers.transport import messages
from blobfeed.workers.transport.links import Sealer
from blobfeed.workers.transport.messages import Done, Ready
from zmq.utils.monitor import recv_monitor_message

from tests.support.pipelines import Numbered
from tests.support.waiting import wait_until

SAMPLES, BATCH, SEED = 37, 4, 11
SOURCE = Numbered(SAMPLES, items=500)
FRAME_LIMIT = 64 << 20


class Victim:
    """An endless pipeline of two loaders, and strangers' sockets to each socket that is bound in its directory."""

    def __init__(self, pipeline: Pipeline, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.pipeline = pipeline
        self.sent = 0
        self._order = make_order(SAMPLES, shuffle=True, seed=SEED)
        self._taken = 0
        pipeline.start()
        (self.folder,) = Path(tempfile.gettempdir()).glob("blobfeed-*")
        wait_until(lambda: len(self.links()) == 5, "all five sockets are bound")
        self.strangers = {link: self._connected(context, link) for link in self.links()}

    def links(self) -> list[str]:
        return sorted(entry.name for entry in self.folder.iterdir() if entry.is_socket())

    def path(self, link: str) -> str:
        return str(self.folder / link)

    def _connected(self, context: zmq.Context[zmq.Socket[bytes]], link: str) -> zmq.Socket[bytes]:
        stranger = context.socket(zmq.PUSH)
        stranger.setsockopt(zmq.SNDHWM, 0)
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(f"ipc://{self.path(link)}")
        return stranger

    def send(self, link: str, *frames: bytes) -> None:
        for frame in frames:
            self.strangers[link].send(frame)
            self.sent += 1

    def send_everywhere(self, *frames: bytes) -> None:
        for link in self.strangers:
            self.send(link, *frames)

    def assert_batches_are_right(self, batches: int) -> None:
        for _ in range(batches):
            batch = self.pipeline.take()
            indices = self._order.indices(self._taken * BATCH, BATCH)
            assert batch.indices.tolist() == indices.tolist()
            assert np.array_equal(np.asarray(batch.tops["data"]), SOURCE.data_of(indices)), f"batch {batch.number}"
            self.pipeline.release(batch)
            self._taken += 1

    def assert_all_is_dropped(self) -> None:
        """Each frame is counted, once, while the batches go on."""

        def counted() -> bool:
            self.assert_batches_are_right(20)
            return self.pipeline.statistics().dropped_messages >= self.sent

        wait_until(counted, f"{self.sent} frames have been dropped")
        statistics = self.pipeline.statistics()
        assert (statistics.dropped_messages, statistics.loader_deaths, statistics.loaders) == (self.sent, 0, 2)


@pytest.fixture
def victim() -> Iterator[Victim]:
    parameters = Parameters(batch_size=BATCH, num_loaders=2, shuffle=True, seed=SEED, timeout_s=60, prefetch_batches=32)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with Pipeline(parameters, source=SOURCE) as pipeline:
        yield Victim(pipeline, context)
        context.destroy(linger=0)


@pytest.fixture
def sealers(monkeypatch: pytest.MonkeyPatch) -> list[Sealer]:
    """The trainer's own sealer, once the pipeline runs: for frames as they were sent on links that we cannot hear."""
    made: list[Sealer] = []

    def making(key: bytes) -> Sealer:
        made.append(Sealer(key))
        return made[-1]

    monkeypatch.setattr("blobfeed.workers.transport.links.Sealer", making)
    return made


def connection_to(path: str) -> socket.socket:
    """A connection below ZeroMQ; a socket that is bound may be a moment from listening."""
    stranger = socket.socket(socket.AF_UNIX)
    wait_until(lambda: stranger.connect_ex(path) == 0, f"{path} listens")
    return stranger


# ---- what strangers can make up


def test_messages_of_many_parts_are_dropped_part_by_part(victim: Victim) -> None:
    for number, stranger in enumerate(victim.strangers.values()):
        parts = [b"", b"part", b"x" * 1000] * (number + 1)
        stranger.send_multipart(parts)
        victim.sent += len(parts)
    victim.assert_all_is_dropped()


def test_an_oversized_frame_costs_its_sender_the_connection_and_nobody_else_anything(victim: Victim) -> None:
    frame = bytes(FRAME_LIMIT + 1)
    for link, stranger in victim.strangers.items():
        events = stranger.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        stranger.send(frame)
        assert events.poll(60_000), f"{link} keeps a connection that sends {len(frame)} bytes"
        assert recv_monitor_message(events)["event"] == zmq.EVENT_DISCONNECTED
        stranger.disable_monitor()
        events.close()
        stranger.close()
    victim.assert_batches_are_right(100)
    victim.assert_all_is_dropped()


def test_what_does_not_speak_the_protocol_is_of_no_consequence(victim: Victim) -> None:
    chance = random.Random(4)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16)  # the beginning of a good one
    connections = []
    for link in victim.links():
        for words in (
            b"",
            b"GET / HTTP/1.1\r\n\r\n",
            chance.randbytes(4000),
            greeting,
            greeting + chance.randbytes(500),
        ):
            connections.append(connection_to(victim.path(link)))
            with suppress(BrokenPipeError, ConnectionResetError):  # it may have been shown the door by now
                connections[-1].sendall(words)
    victim.assert_batches_are_right(200)
    for stranger in connections:
        stranger.close()
    victim.assert_batches_are_right(200)
    assert victim.pipeline.statistics().loader_deaths == 0  # some of it is a frame to ZeroMQ, and is dropped as such


# ---- frames of ours, heard and sent again


def test_results_sent_again_tick_nothing_off(sealers: list[Sealer], victim: Victim) -> None:
    victim.assert_batches_are_right(400)
    seal = sealers[0].seal
    tasks = range(1, victim.pipeline.statistics().tasks - 20)
    assert tasks
    again = [seal(Done(loader, task, 5)) for task in tasks[:200] for loader in (1, 2)]
    victim.send("results", *again, *(seal(Ready(loader)) for loader in (1, 2, 3, 999)))
    victim.assert_all_is_dropped()


def test_a_task_sent_again_is_not_done_again(sealers: list[Sealer], victim: Victim) -> None:
    victim.assert_batches_are_right(400)
    seal = sealers[0].seal
    for link in victim.strangers:
        if link.startswith("tasks-"):
            victim.send(link, *(seal(messages.Fill(1, 0, slot, 0, BATCH)) for slot in range(3)))
    victim.assert_batches_are_right(400)
    victim.assert_all_is_dropped()
