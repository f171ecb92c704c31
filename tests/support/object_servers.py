"""Servers of objects by byte ranges: one of our own, whose every answer a test can spoil, moto's and nginx."""

from __future__ import annotations

import os
import re
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

if TYPE_CHECKING:
    import pytest

Fault = Literal["error", "reset", "truncated", "slow", "expired", "plain", "moved", "forbidden", "unsized", "dripping"]
"""What becomes of an answer: status 503; no answer; its first half; none for a long time; expired credentials, told in
S3's words; the whole object, as from a server that knows no ranges; status 301, as from a bucket's other region; status
403; one that does not say its length; or one that comes in ten parts, each 0.3 s after the other."""

_SLOW_S = 30.0
_DRIP_S = 0.3
SECRET = "AKIA-VERY-SECRET"


class RangeServer(ThreadingHTTPServer):
    """Serves `objects`, by path, with ETags, on a port of its own.

    `fault`: told the path and the number of the request, says what becomes of its answer. `requests`: path and range of
    each request.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.fault: Callable[[str, int], Fault | None] = lambda _path, _number: None
        self.requests: list[tuple[str, str]] = []
        self.knows_if_match = True
        self.has_weak_etags = False
        self.stopped = threading.Event()
        self._connections: set[socket.socket] = set()

    def finish_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().finish_request(request, client_address)

    def hang_up(self) -> None:
        """End every connection that a client keeps for its next request."""
        self.stopped.set()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{path}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hung up is none of ours."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RangeServer

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        path, server = unquote(self.path).lstrip("/"), self.server
        server.requests.append((path, self.headers.get("Range", "")))
        fault = server.fault(path, len(server.requests))
        data = server.objects.get(path)
        if fault == "slow":
            server.stopped.wait(_SLOW_S)
        if fault in ("reset", "slow"):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        if fault == "error":
            self._send(503, b"", {})
        elif fault == "moved":
            self._send(301, b"", {})
        elif fault == "forbidden":
            self._send(403, b"", {})
        elif fault == "expired":
            text = f"<Error><Code>ExpiredToken</Code><AWSAccessKeyId>{SECRET}</AWSAccessKeyId></Error>"
            self._send(400, text.encode(), {})
        elif data is None:
            self._send(404, b"", {})
        else:
            self._send_range(data, with_body=with_body, fault=fault)

    def _send_range(self, data: bytes, *, with_body: bool, fault: Fault | None) -> None:
        etag = f'"{md5(data, usedforsecurity=False).hexdigest()}"'
        if self.server.has_weak_etags:
            etag = f"W/{etag}"
        headers = {"ETag": etag, "Last-Modified": "Sat, 21 Nov 2026 17:25:05 GMT", "Accept-Ranges": "bytes"}
        wanted = self.headers.get("If-Match")
        if self.server.knows_if_match and wanted and (wanted != etag or wanted.startswith("W/")):  # RFC 9110, 13.1.1
            self._send(412, b"", {})
            return
        found = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if found is None or fault == "plain":
            self._send(200, data, headers, with_body=with_body)
            return
        first = int(found[1]) if found[1] else max(0, len(data) - int(found[2]))
        if first >= len(data):
            self._send(416, b"", {})
            return
        last = min(int(found[2]) if found[2] and found[1] else len(data) - 1, len(data) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        part = data[first : last + 1]
        if fault == "unsized":
            headers["Transfer-Encoding"] = "chunked"
            part = b"%x\r\n%b\r\n0\r\n\r\n" % (len(part), part)
        sent = len(part) // 2 if fault == "truncated" else None
        self._send(206, part, headers, sent=sent, is_dripping=fault == "dripping")

    def _send(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str],
        *,
        with_body: bool = True,
        sent: int | None = None,
        is_dripping: bool = False,
    ) -> None:
        self.send_response(status)
        if "Transfer-Encoding" not in headers:
            headers = {**headers, "Content-Length": str(len(body))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        parts = 10 if is_dripping else 1
        for number in range(parts if with_body else 0):
            if number:
                self.server.stopped.wait(_DRIP_S)
            self.wfile.write(body[:sent][number * len(body) // parts : (number + 1) * len(body) // parts])
        if sent is not None:
            self.close_connection = True


@contextmanager
def range_server() -> Iterator[RangeServer]:
    """A server with no objects yet, gone at the end."""
    server = RangeServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.hang_up()
        server.server_close()
        thread.join()


@contextmanager
def s3_server(bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, bytes], None]]:
    """moto's S3 server, and the environment by which S3's tools find it; what it gives puts an object in there."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        with s3_bucket(bucket, f"http://{host}:{port}", monkeypatch) as put:
            yield put
    finally:
        server.stop()


@contextmanager
def s3_bucket(
    bucket: str, url: str, monkeypatch: pytest.MonkeyPatch, user: tuple[str, str] = (SECRET, "secret")
) -> Iterator[Callable[[str, bytes], None]]:
    """A new bucket of the S3 server at `url`; `user`: access key and secret key."""
    import boto3  # type: ignore[import-untyped]

    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL")
    for name, value in zip(names, (*user, "us-east-1", "us-east-1", url), strict=True):
        monkeypatch.setenv(name, value)
    client = boto3.Session().client("s3")  # the default session keeps the credentials that it found first
    client.create_bucket(Bucket=bucket)
    try:
        yield lambda key, content: client.put_object(Bucket=bucket, Key=key, Body=content) and None
    finally:
        client.close()


def google_bucket(server: RangeServer, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bytes], None]:
    """What puts an object into `server`, which from now on answers for Google's storage, and lists what it has.

    There is no emulator of Google's that answers in XML, which is what obstore asks for:
    https://cloud.google.com/storage/docs/xml-api/get-bucket-list
    """
    monkeypatch.setenv("GOOGLE_BASE_URL", server.url("").rstrip("/"))
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")

    def put(key: str, content: bytes) -> None:
        server.objects[f"{bucket}/{key}"] = content
        names = [name.partition("/")[2] for name in server.objects if name.startswith(f"{bucket}/")]
        entries = "".join(
            f"<Contents><Key>{name}</Key><Size>1</Size><LastModified>2026-11-21T17:25:05Z</LastModified></Contents>"
            for name in names
        )
        listing = f"<ListBucketResult>{entries}</ListBucketResult>".encode()
        for prefix in {"", *(f"&prefix={name.rpartition('/')[0]}/".replace(" ", "+") for name in names if "/" in name)}:
            server.objects[f"{bucket}?list-type=2{prefix}"] = listing

    return put


def nginx_program() -> str | None:
    """Debian's nginx, or the one that BLOBFEED_NGINX names, if there is any."""
    return os.environ.get("BLOBFEED_NGINX") or shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


@contextmanager
def nginx(folder: Path) -> Iterator[int]:
    """The port of an nginx that serves what lies in folder/objects."""
    program, port = nginx_program(), free_port()
    assert program is not None
    temporary = "".join(f"{kind}_temp_path {folder}/temporary;" for kind in ("client_body", "proxy", "fastcgi"))
    user = "user root;" if os.getuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"{user} daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors;"
        f"events {{ worker_connections 1024; }} http {{ access_log off; {temporary} uwsgi_temp_path {folder}/temporary;"
        f"scgi_temp_path {folder}/temporary; keepalive_requests 1000000; sendfile on;"
        f"server {{ listen 127.0.0.1:{port} backlog=512; root {folder}/objects; }} }}"
    )
    with running([program, "-p", str(folder), "-e", f"{folder}/errors", "-c", f"{folder}/nginx.conf"]):
        wait_for_port(port)
        yield port


@contextmanager
def running(command: list[str], stdout: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process, ended at the end."""
    process = subprocess.Popen(command, stdout=stdout)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=20)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, limit_s: float = 20.0) -> None:
    """Return as soon as somebody listens on `port`; raises TimeoutError."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise TimeoutError(f"nobody listens on port {port} after {limit_s:g} s")


def start_obstore() -> None:
    """Its threads and their descriptors stay for as long as the process does: they are to be there before a test."""
    import obstore
    from obstore.store import HTTPStore

    store = HTTPStore.from_url(
        "http://127.0.0.1:1", client_options={"allow_http": True}, retry_config={"max_retries": 0}
    )
    with suppress(Exception):
        obstore.head(store, "nothing listens there")


start_obstore()
