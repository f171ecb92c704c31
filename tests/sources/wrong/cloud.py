"""Object storage that is asked wrongly, or answers wrongly: each within a second, and by few requests."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.sources.files import object_stores

from blobfeed import BlobfeedError
from tests.support.catalogue import scenario
from tests.support.object_servers import SECRET, Fault, google_bucket, range_server
from tests.support.pictures import encoded, noise
from tests.support.stored import in_loader, opened, rows_of


@scenario
def cloud(
    folder: Path,
    /,
    kind: str,
    *,
    fault: Fault | None = None,
    most: int = 0,
    environment: Mapping[str, str | None] = {},
    **options: str,
) -> Any:
    """Open a source whose options hold the URL of a server as {server}, by at most so many requests.

    `environment`: further variables; None for those that are to be absent.
    """
    np.save(folder / "a.npy", np.zeros((4, 3)))
    np.save(folder / "across.npy", np.zeros((4, 3), order="F"))
    content, across = ((folder / name).read_bytes() for name in ("a.npy", "across.npy"))
    object_stores._store.cache_clear()  # an earlier server may have had the port of this one
    with pytest.MonkeyPatch.context() as patch, range_server() as server:
        put = google_bucket(server, "wrong", patch)
        server.objects |= {"a.npy": content, "text.h5": b"text", "empty.npy": b"", "across.npy": across}
        put("a.npy", b"")
        put("b//c.npy", b"")
        for name, value in {"BLOBFEED_CLOUD_DEADLINE_S": "1", **environment}.items():
            patch.delenv(name, raising=False)
            if value is not None:
                patch.setenv(name, value.format(server=server.url("")))
        server.fault = lambda _path, _number: fault
        places = {"server": server.url("").rstrip("/"), "folder": folder}
        with pytest.raises(BlobfeedError) as caught:
            opened(kind, folder, **{name: value.format(**places) for name, value in options.items()})
        assert SECRET not in "".join(traceback.format_exception(caught.value))
        assert len(server.requests) <= most, server.requests
    raise caught.value


@scenario
def changed(folder: Path, /, version: str) -> Any:
    """An object that is replaced after it was examined."""
    np.save(folder / "a.npy", np.zeros((4, 3)))
    with range_server() as server:
        server.has_weak_etags = version == "weak"
        server.objects["a.npy"] = (folder / "a.npy").read_bytes()
        loader = in_loader(opened("npy", folder, data=server.url("a.npy")))
        server.objects["a.npy"] = bytes(len(server.objects["a.npy"]))
        rows_of(loader, [0])


def _cached(folder: Path) -> Any:
    (folder / "list.txt").write_text("a.png 0\n")
    with range_server() as server:
        server.objects["a.png"] = encoded(noise(8, 9, 0), ".png")
        opened("image_list", folder, path="list.txt", root_folder=server.url(""), equal_sizes=True).fingerprint()


_MOVED = {"AWS_ENDPOINT_URL": "{server}", "AWS_REGION": "us-east-1", "AWS_SKIP_SIGNATURE": "true"}
_NO_PROFILE = {"AWS_PROFILE": "nobody", "AWS_ACCESS_KEY_ID": None, "AWS_SKIP_SIGNATURE": None}
_NO_ACCOUNT = {"AZURE_STORAGE_ACCOUNT_NAME": None}
_NO_KEY = {"GOOGLE_APPLICATION_CREDENTIALS": f"/none/{SECRET}.json", "GOOGLE_SKIP_SIGNATURE": None}

SCENARIOS = {
    "cloud, no such object": cloud("npy", data="{server}/no.npy", most=1),
    "cloud, text": cloud("hdf5", path="{server}/text.h5", most=2),
    "cloud, samples across the whole object": cloud("npy", data="{server}/across.npy", most=2),
    "cloud, a name that no object has": cloud("npy", data="{server}/a//b.npy"),
    "cloud, a glob": cloud("npy", data="{server}/a*.npy"),
    "cloud, a glob without a match": cloud("npy", data="local://{folder}/*.npz"),
    "cloud, an object that was changed": changed("strong"),
    "cloud, an object with a weak version that was changed": changed("weak"),
    "cloud, pictures that cannot be cached": _cached,
    "cloud, a bucket of another region": cloud(
        "npy", data="s3://abroad/a.npy", fault="moved", environment=_MOVED, most=1
    ),
    "cloud, forbidden": cloud("npy", data="{server}/a.npy", fault="forbidden", most=2),
    "cloud, no length": cloud("npy", data="{server}/a.npy", fault="unsized", most=2),
    "cloud, down": cloud("npy", data="{server}/a.npy", fault="error", most=99),
    "cloud, a name that no list can hold": cloud("npy", data="gs://wrong/*.npy", most=9),
    "cloud, a password": cloud("npy", data=f"http://user:{SECRET}@127.0.0.1/a.npy"),
    "cloud, an unknown scheme": cloud("npy", data="nonsense://127.0.0.1/a.npy"),
    "cloud, a folder": cloud("npy", data="local://{folder}"),
    "cloud, no account": cloud("npy", data="az://container-x/a.npy", environment=_NO_ACCOUNT),
    "cloud, no file of credentials": cloud("npy", data="gs://bucket-x/a.npy", environment=_NO_KEY),
    "cloud, an unknown profile": cloud("npy", data="s3://bucket-x/a.npy", environment=_NO_PROFILE),
    **{
        f"cloud, a deadline of {given!r}": cloud(
            "npy", data="{server}/a.npy", environment={"BLOBFEED_CLOUD_DEADLINE_S": given}
        )
        for given in ("60s", "0", "-1", "nan", "inf", "")
    },
}
