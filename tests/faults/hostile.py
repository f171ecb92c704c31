"""Frames that are no messages of their link are dropped and counted, and those that come twice change nothing."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import zmq
from blobfeed.workers.pipeline import Pipeline, ProcessFeed
from blobfeed.workers.transport import Announce, Done, Ready, Release, links

from .figures import Figure
from .processes import count_of
from .record import Record, compare, read
from .scale import Scale
from .works import WORKS

_STUDY = "hostile frames"
_RELEASED = 0
"""Its release has been heard of long before a frame speaks of it again."""

_BAD_HANDSHAKE = b"\xff\0\0\0\0\0\0\0\0\x7f\3"
"""A greeting of ZMTP 3 as far as its version (rfc.zeromq.org/spec/23): what begins otherwise may be taken for frames of
an older version, which has no handshake, and they would be counted too."""

Forge = Callable[[random.Random], bytes]
"""Makes a frame."""


def study(scale: Scale, folder: Path) -> Iterator[Figure]:
    work = WORKS[3]
    with work.open(folder) as pipeline:
        undisturbed = read(pipeline)
    with work.open(folder) as pipeline:
        record, sent, noise, strangers = _attacked(pipeline, scale.hostile_frames, random.Random(scale.seed))
        dropped = count_of(pipeline, "dropped_messages", noise)
        deaths = pipeline.statistics().loader_deaths
    yield Figure(_STUDY, "frames sent: noise, cut off, of another link, replayed", sent)
    yield Figure(_STUDY, "of these no message of their link: dropped and counted", dropped, noise)
    yield Figure(_STUDY, "connections that do not speak the protocol", strangers)
    difference = compare(undisturbed, record)
    yield Figure(_STUDY, "loaders that died of it", deaths, 0)
    yield Figure(_STUDY, "samples lost, repeated, out of order; batches altered", sum(vars(difference).values()), 0)


def _attacked(pipeline: Pipeline, frames: int, rng: random.Random) -> tuple[Record, int, int, int]:
    """The run to its end, with frames sent on every link during its first half, of which some are no messages."""
    record, sent, noise, strangers = Record(), 0, 0, 0
    batches = pipeline.total_batches or 0
    with zmq.Context() as context:
        attackers: dict[str, zmq.Socket[bytes]] = {}
        for number in range(batches):
            batch = pipeline.take()
            record.add(batch)
            pipeline.release(batch)
            if number == 10:  # the first slots are released by now
                attackers = _connect(context, _folder(pipeline))
            if 10 <= number < batches // 2:
                sent += frames // (batches // 2)
                noise += _send(attackers, frames // (batches // 2), rng)
                strangers += _babble(_folder(pipeline), rng) if number % 10 == 0 else 0
        for attacker in attackers.values():
            attacker.close(linger=-1)
    return record, sent, noise, strangers


def _feed(pipeline: Pipeline) -> ProcessFeed:
    feed = pipeline._feed
    assert isinstance(feed, ProcessFeed)
    return feed


def _folder(pipeline: Pipeline) -> Path:
    return _feed(pipeline).shared.folder


def _connect(context: zmq.Context[zmq.Socket[bytes]], folder: Path) -> dict[str, zmq.Socket[bytes]]:
    attackers = {}
    for path in sorted(folder.iterdir()):
        attackers[path.name] = context.socket(zmq.PUSH)
        attackers[path.name].connect(links.address(folder, path.name))
    return attackers


def _send(attackers: dict[str, zmq.Socket[bytes]], frames: int, rng: random.Random) -> int:
    """Send so many frames; returns how many of them are no message of their link."""
    noise = 0
    for _ in range(frames):
        name = rng.choice(list(attackers))
        forge, is_noise = rng.choice(_forgeries(name))
        attackers[name].send(forge(rng))
        noise += is_noise
    return noise


def _forgeries(link: str) -> list[tuple[Forge, bool]]:
    """Return the frames that may be sent on `link`, and for each whether it is no message there."""
    announce, release, done = Announce(_RELEASED, 0), Release(_RELEASED), Done(1, 1, 1000)
    twice = {"batches": announce, "releases": release, "results": done}.get(link)
    elsewhere = {"batches": release, "releases": done}.get(link, announce)
    known: list[Forge] = [lambda _: links.frame_of(Ready(987_654))] if link == "results" else []
    replayed: list[Forge] = [lambda _: links.frame_of(twice)] if twice is not None else []
    noise: list[Forge] = [
        lambda rng: rng.randbytes(rng.randrange(200)),
        lambda rng: _cut_off(links.frame_of(twice or release), rng),
        lambda _: links.frame_of(elsewhere),
    ]
    return [*((forge, True) for forge in noise), *((forge, False) for forge in (*replayed, *known))]


def _cut_off(frame: bytes, rng: random.Random) -> bytes:
    return frame[: rng.randrange(len(frame))]


def _babble(folder: Path, rng: random.Random) -> int:
    """Noise on the sockets themselves, in no frames; returns how many were spoken to."""
    paths = list(folder.iterdir())
    for path in paths:
        with socket.socket(socket.AF_UNIX) as stranger, suppress(ConnectionError):
            stranger.connect(str(path))
            stranger.sendall(_BAD_HANDSHAKE + rng.randbytes(rng.randrange(1, 300)))
    return len(paths)
