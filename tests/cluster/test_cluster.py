"""The address of a Ray cluster, which is looked at before Ray is."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest
from blobfeed.cluster import address_of, require_answer, why_not_joined
from blobfeed.workers.api import RemoteLoaders


@pytest.mark.parametrize(("family", "shown"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "[::1]")])
def test_an_address_may_be_of_either_family(family: socket.AddressFamily, shown: str) -> None:
    with socket.socket(family) as listener:
        try:
            listener.bind((shown.strip("[]"), 0))
        except OSError:
            assert family == socket.AF_INET6
            pytest.skip("this host has no IPv6")
        port = listener.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            require_answer(f"{shown}:{port}")
        listener.listen()
        require_answer(f"{shown}:{port}")


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "http://127.0.0.1:8265", "host", "host:", "local", ""])
def test_what_is_no_address_of_a_head_is_refused_and_not_looked_up(address: str) -> None:
    with pytest.raises(ValueError, match=f"{address!r}$"):
        require_answer(address)


def test_auto_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert address_of(RemoteLoaders()) == ("auto", "")
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert address_of(RemoteLoaders()) == ("head:6379", " (from RAY_ADDRESS)")
    assert address_of(RemoteLoaders(address="other:6379")) == ("other:6379", "")


def test_the_reason_behind_a_refusal_is_told() -> None:
    wanted = SimpleNamespace(remote_loaders=RemoteLoaders(address="head:6379"))
    config: Any = SimpleNamespace(plan=SimpleNamespace(parameters=wanted))
    refused = ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")
    refused.__cause__ = RuntimeError("Authentication token is missing or incorrect")
    assert why_not_joined(config, refused) == (
        "the Ray cluster at 'head:6379' cannot be joined: ConnectionError: Failed to connect to Ray cluster at "
        "10.0.0.1:6379: RuntimeError: Authentication token is missing or incorrect"
    )
