"""Metrics for Prometheus: into a file for node_exporter's textfile collector, or at a port of this machine.

The assembler gives them, so the trainer pays nothing. It has no thread for them either: its one wait watches the port
too, and ZeroMQ's own thread reads and writes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

import zmq

from ..base.files import write_whole
from .openmetrics import MEDIA_TYPE

_log = logging.getLogger("blobfeed")


class MetricsFile:
    """A file of metrics that is replaced as a whole, so that no reader sees half of one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed = False
        self._shared = False
        self._written: tuple[int, int] | None = None

    def write(self, text: str) -> None:
        try:
            if not self._shared and self._written and self._path.exists() and self._stamp() != self._written:
                self._shared = True
                _log.warning("another pipeline writes its metrics into %s, too: name a file for each", self._path)
            write_whole(self._path, text.encode())
            self._written = self._stamp()
            self._failed = False
        except OSError as error:
            if not self._failed:  # once, not every second
                _log.warning("metrics cannot be written to %s: %s", self._path, error)
            self._failed = True

    def _stamp(self) -> tuple[int, int]:
        found = self._path.stat()
        return found.st_ino, found.st_mtime_ns


class MetricsPort:
    """Answers every HTTP request on 127.0.0.1:`port` with `text()`; clients close their connections themselves."""

    def __init__(self, port: int, poller: zmq.Poller, text: Callable[[], str]) -> None:
        self._text = text
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.STREAM)
        self._socket.linger = 0
        try:
            self._socket.bind(f"tcp://127.0.0.1:{port}")
            poller.register(self._socket, zmq.POLLIN)
        except zmq.ZMQError as error:
            _log.warning("there are no metrics at port %d: %s", port, error)

    def handle(self, ready: dict[object, int]) -> None:
        """Do what can be done now; `ready`: what the poller has found."""
        if self._socket not in ready:
            return
        with contextlib.suppress(zmq.ZMQError):  # a client that has gone, or does not read, gets nothing
            client, request = self._socket.recv_multipart(zmq.NOBLOCK)
            if request.endswith(b"\r\n\r\n"):  # else it tells that a client has come or gone
                body = self._text().encode()
                head = f"HTTP/1.1 200 OK\r\nContent-Type: {MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
                self._socket.send_multipart([client, head.encode() + body], zmq.NOBLOCK)
