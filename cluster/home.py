"""The assembler's side of the bridge, the home of remote loaders.

The bridge is a separate process (bridge.py), since Ray starts threads, and since it may end when a cluster does.
It speaks the loaders' protocol for each actor. If the bridge dies, all its loaders count as dead. It is restarted after
a growing pause, as long as the run lasts: a cluster may come back. Local loaders continue meanwhile.

    assembler → bridge    StartLoader, KillLoader                   (over a socket pair, in frames like all messages)
    bridge → assembler    ClusterCapacity, LoaderStarted, LoaderEnded, JoinFailed
"""

from __future__ import annotations

import logging
import math
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import zmq

from ..workers.base import LoaderDied
from ..workers.processes import Config, Event, Home, exit_in_words
from ..workers.transport import ClusterCapacity, LoaderEnded, LoaderStarted
from ..workers.transport.links import Decoder, frame_of
from .messages import FromBridge, JoinFailed, KillLoader, StartLoader, ToBridge

_MODULE = f"{__package__}.bridge"
_FRAME_BYTES = 1 << 16
_END_S = 2.0
"""The time for leaving the cluster; after it the bridge is killed, and the cluster cleans up by itself."""

_MOST_FAILED_JOINS = 3
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0

_log = logging.getLogger("blobfeed")


class Bridge(Home):
    """Starts the bridge and talks to it; at most one process at a time. `poller` watches its descriptor."""

    def __init__(self, config: Config, poller: zmq.Poller) -> None:
        self._config = config
        self._poller = poller
        self._loaders: set[int] = set()
        """The loaders that were requested and have not ended."""
        self._decoder: Decoder[FromBridge] = Decoder(FromBridge)
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._due = 0.0
        """The time of the next start of the process."""
        self._pause_s = _FIRST_PAUSE_S
        self._has_joined = False
        self._failed_joins = 0

    def fileno(self) -> int:
        return -1 if self._link is None else self._link.fileno()

    def start_if_due(self, now: float) -> float:
        if self._process is None and now >= self._due:
            self._start(now)
        return math.inf if self._process is not None else self._due

    def _start(self, now: float) -> None:
        try:
            self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                # In the assembler's own session and group, so that the assembler ends it at the latest.
                link = theirs.fileno()
                self._process = self._config.start(sys.executable, _MODULE, link, os.getpid(), inherited=(link,))
        except OSError as error:  # processes, descriptors or memory may be short for a while
            if self._link is not None:
                self._link.close()
                self._link = None
            self._put_off(f"could not be started: {error}", now)
        else:
            self._poller.register(self._link.fileno(), zmq.POLLIN)

    def _put_off(self, how: str, now: float) -> None:
        """Schedule the next start after a growing pause; raises LoaderDied if three bridges failed without joining."""
        self._failed_joins += not self._has_joined
        if self._failed_joins == _MOST_FAILED_JOINS:
            text = f"the bridge to the cluster has failed {self._failed_joins} times before it had joined: it {how}"
            raise LoaderDied(text, [text])
        _log.warning("the bridge to the cluster %s; another one starts in %g s", how, self._pause_s)
        self._due = now + self._pause_s
        self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s)

    def spawn(self, loader: int, line: int) -> None:
        self._loaders.add(loader)
        self._send(StartLoader(loader, line))

    def kill(self, loader: int) -> None:
        self._send(KillLoader(loader))

    def _send(self, message: ToBridge) -> None:
        try:
            if self._link is not None:
                self._link.send(frame_of(message))
        except ConnectionError:
            _log.info("the bridge is gone; not sent: %r", message)  # `receive` reports its end

    # ---- from the bridge

    def receive(self, now: float) -> Iterator[Event]:
        while self._link is not None:
            try:
                frame = self._link.recv(_FRAME_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionError:
                frame = b""
            if not frame:
                yield from self._bury(now)
                return
            yield from self._note(self._decoder.decode(frame))

    def _note(self, message: FromBridge | None) -> Iterator[Event]:
        match message:
            case ClusterCapacity():
                self._has_joined, self._pause_s = True, _FIRST_PAUSE_S
                yield message
            case JoinFailed(text):
                if not self._has_joined:
                    raise LoaderDied(text, [text])
                _log.warning("%s", text)
            case LoaderEnded(loader):
                self._loaders.discard(loader)
                yield message
            case LoaderStarted():
                yield message

    def _bury(self, now: float) -> Iterator[Event]:
        """Kill the process, wait for its end, and yield the end of its loaders: now it can no longer write to slots."""
        if self._link is None or self._process is None:
            return
        self._poller.unregister(self._link.fileno())
        self._link.close()
        self._process.kill()
        how = f"died: {exit_in_words(self._process.wait())}"
        self._link = self._process = None
        yield ClusterCapacity(0)
        self._put_off(how, now)
        while self._loaders:
            yield LoaderEnded(self._loaders.pop(), f"the bridge to the cluster {how}", False)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        if self._process is not None:
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
