"""A proxy that passes each request on after a while.

`python -m benchmarks.slow_proxy TARGET_PORT DELAY_S` prints its own port. A request is what a client
sends at once; answers pass through as they come. The kernel moves the bytes from socket to socket (splice): a proxy
that held them in Python took more of the processors than what it was to measure.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import F_SETPIPE_SZ, fcntl
from threading import Thread

from tests.support.object_servers import running

_PIECE_BYTES = 1 << 20


@contextmanager
def slow_proxy(port: int, delay_s: float) -> Iterator[int]:
    """The port of a process that passes on to `port`, each request after `delay_s`."""
    command = [sys.executable, "-P", "-m", __name__, str(port), str(delay_s)]
    with running(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


def _pass_on(source: socket.socket, target: socket.socket, delay_s: float) -> None:
    out, into = os.pipe()
    fcntl(into, F_SETPIPE_SZ, _PIECE_BYTES)
    with suppress(OSError):
        while size := os.splice(source.fileno(), into, _PIECE_BYTES):
            if delay_s:
                time.sleep(delay_s)
            while size:
                size -= os.splice(out, target.fileno(), size)
    os.close(out)
    os.close(into)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _serve(target_port: int, delay_s: float) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            client, _ = server.accept()
            behind = socket.create_connection(("127.0.0.1", target_port))
            for end in (client, behind):  # else the end of an answer waits 40 ms for a delayed acknowledgement
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for ways in ((client, behind, delay_s), (behind, client, 0.0)):
                Thread(target=_pass_on, args=ways, daemon=True).start()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), float(sys.argv[2]))
