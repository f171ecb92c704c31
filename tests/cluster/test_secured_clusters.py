"""Remote loaders on a cluster that Ray's own means secure: a token, TLS."""

from __future__ import annotations

import datetime as dt
import socket
from ipaddress import ip_address
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

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
    certificate, key = write_certificate(tmp_path)
    monkeypatch.setenv("RAY_USE_TLS", "1")
    for name, path in (("SERVER_CERT", certificate), ("SERVER_KEY", key), ("CA_CERT", certificate)):
        monkeypatch.setenv(f"RAY_TLS_{name}", str(path))
    with RayCluster(nodes=1) as cluster:
        assert_delivers(cluster, tmp_path)


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for all addresses of this host, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "blobfeed's tests")])
    addresses = [
        address.address
        for card in psutil.net_if_addrs().values()
        for address in card
        if address.family == socket.AF_INET
    ]
    names = [x509.DNSName("localhost"), *(x509.IPAddress(ip_address(address)) for address in addresses)]
    now = dt.datetime.now(dt.UTC)
    day = dt.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(pem))
    paths[1].write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return paths
