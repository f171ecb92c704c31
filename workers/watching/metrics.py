"""Metrics for Prometheus: into a file for node_exporter's textfile collector, or at a port of this machine.

The assembler gives them, so the trainer pays nothing. It has no thread for them either: its one wait watches the port
too, and an answer fits into a socket's buffer.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable
from pathlib import Path

import zmq

from ..base.whole_files import write_whole
from .openmetrics import MEDIA_TYPE

_MOST_CLIENTS = 8
_REQUEST_BYTES = 8192

_log = logging.getLogger("blobfeed")


class MetricsFile:
    """Written anew as a whole, so that nobody reads half of one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed = False

    def write(self, text: str) -> None:
        try:
            write_whole(self._path, text.encode())
            self._failed = False
        except OSError as error:
            if not self._failed:  # once, not every second
                _log.warning("metrics cannot be written to %s: %s", self._path, error)
            self._failed = True


class MetricsPort:
    """Answers every HTTP request on 127.0.0.1:`port` with `text()`."""

    def __init__(self, port: int, poller: zmq.Poller, text: Callable[[], str]) -> None:
        self._poller = poller
        self._text = text
        self._clients: dict[int, socket.socket] = {}
        self._server = socket.socket()
        try:
            self._server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._server.setblocking(False)
            self._server.bind(("127.0.0.1", port))
            self._server.listen(_MOST_CLIENTS)
            poller.register(self._server.fileno(), zmq.POLLIN)
        except OSError as error:
            _log.warning("there are no metrics at port %d: %s", port, error)

    def handle(self, ready: dict[object, int]) -> None:
        """Do what can be done now; `ready`: what the poller has found."""
        if self._server.fileno() in ready:
            self._accept()
        for number in [number for number in self._clients if number in ready]:
            self._answer(number)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it has gone again
            client, _ = self._server.accept()
            client.setblocking(False)
            if len(self._clients) >= _MOST_CLIENTS:
                self._drop(next(iter(self._clients)))
            self._clients[client.fileno()] = client
            self._poller.register(client.fileno(), zmq.POLLIN)

    def _answer(self, number: int) -> None:
        client, body = self._clients[number], self._text().encode()
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: {MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        with contextlib.suppress(OSError):  # a client that does not read gets nothing
            client.recv(_REQUEST_BYTES)
            client.sendall(head.encode() + body)
        self._drop(number)

    def _drop(self, number: int) -> None:
        self._poller.unregister(number)
        self._clients.pop(number).close()
