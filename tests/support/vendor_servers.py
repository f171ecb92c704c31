"""Servers that `make test-cloud` installs: Microsoft's emulator of Azure, and an S3 server that keeps files."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.client import HTTPConnection
from pathlib import Path
from subprocess import DEVNULL
from typing import TYPE_CHECKING

from .object_servers import free_port, running, s3_bucket, wait_for_port

if TYPE_CHECKING:
    import pytest

Put = Callable[[str, bytes], None]

_ACCOUNT = "devstoreaccount1"
_ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's only account, the same everywhere: https://learn.microsoft.com/azure/storage/common/storage-use-azurite"""


def program(name: str) -> str | None:
    """The path of a server that `make test-cloud` has installed."""
    return shutil.which(name, path=f"{sys.prefix}/cloud/node_modules/.bin")


def _required(name: str) -> str:
    if (found := program(name)) is None:
        raise FileNotFoundError(f"{name} is not installed: run make test-cloud")
    return found


@contextmanager
def azurite(container: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Put]:
    """Azurite with a new container, and the environment by which Azure's tools find it."""
    import obstore
    from obstore.store import AzureStore

    port = free_port()
    flags = ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    command = [_required("azurite-blob"), *flags, "--blobPort", str(port), "--location", str(folder / "azurite")]
    with running(command, stdout=DEVNULL):
        wait_for_port(port, 60.0)
        _make_container(port, container)
        url = f"http://127.0.0.1:{port}/{_ACCOUNT}"
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", _ACCOUNT)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", _ACCOUNT_KEY)
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", url)
        store = AzureStore(container, client_options={"allow_http": True})
        yield lambda key, content: obstore.put(store, key, content) and None


def _make_container(port: int, container: str) -> None:
    """A request signed by the account's key: no tool that we have can make one.

    https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key
    """
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    text = "PUT" + "\n" * 12 + f"{lines}/{_ACCOUNT}/{_ACCOUNT}/{container}\nrestype:container"
    digest = hmac.digest(base64.b64decode(_ACCOUNT_KEY), text.encode(), hashlib.sha256)
    headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("PUT", f"/{_ACCOUNT}/{container}?restype=container", headers=headers)
    answer = connection.getresponse()
    if answer.status != 201:
        raise OSError(f"azurite made no container: {answer.status} {answer.read().decode()}")
    connection.close()


@contextmanager
def s3rver(bucket: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Put]:
    """s3rver with a new bucket, and the environment by which S3's tools find it."""
    port = free_port()
    where = ["--directory", str(folder / "s3rver"), "--address", "127.0.0.1", "--port", str(port)]
    with running([_required("s3rver"), "--silent", *where], stdout=DEVNULL):
        wait_for_port(port, 60.0)
        with s3_bucket(bucket, f"http://127.0.0.1:{port}", monkeypatch, ("S3RVER", "S3RVER")) as put:
            yield put
