"""Remote loaders on a cluster that Ray's own means secure: a token, TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path
from socket import AF_INET

import psutil  # type: ignore[import-untyped]
import pytest

from blobfeed import ParameterError
from tests.faults.record import compare, read
from tests.faults.works import WORKS
from tests.support.ray_cluster import RayCluster

pytestmark = pytest.mark.slow

PATIENT = {"epochs": 1, "task_timeout_s": 60.0, "timeout_s": 240.0}
TOKEN = "0123456789abcdef" * 4


def assert_delivers(cluster: RayCluster, folder: Path) -> None:
    given = {"num_loaders": 0, "remote_loaders": {"address": cluster.address, "count": 2}}
    with WORKS[4].open(folder, **PATIENT) as local:
        expected = read(local)
    with WORKS[4].open(folder, **PATIENT, **given) as remote:
        assert compare(expected, read(remote)).is_none


def assert_refused(cluster: RayCluster, folder: Path, reason: str) -> None:
    given = {"num_loaders": 0, "remote_loaders": {"address": cluster.address, "count": 2}}
    with pytest.raises(ParameterError, match=rf"{cluster.address}.*{reason}"):
        WORKS[4].open(folder, **PATIENT, **given)


def test_a_token_lets_loaders_in_and_another_one_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    with RayCluster(nodes=1) as cluster:
        assert_delivers(cluster, tmp_path)
        monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN[::-1])
        assert_refused(cluster, tmp_path, "token")


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    addresses = {each.address for card in psutil.net_if_addrs().values() for each in card if each.family == AF_INET}
    names = ",".join(["subjectAltName=DNS:localhost", *(f"IP:{address}" for address in addresses)])
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    make += ["-subj", "/CN=blobfeed's tests", "-addext", names, "-out", str(certificate), "-keyout", str(key)]
    subprocess.run(make, check=True, capture_output=True)
    monkeypatch.setenv("RAY_USE_TLS", "1")
    for name, path in (("SERVER_CERT", certificate), ("SERVER_KEY", key), ("CA_CERT", certificate)):
        monkeypatch.setenv(f"RAY_TLS_{name}", str(path))
    with RayCluster(nodes=1) as cluster:
        assert_delivers(cluster, tmp_path)
