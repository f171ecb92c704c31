"""What the bridge says of loaders for which the cluster has no place, and of a cluster that it cannot join."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from blobfeed.workers.base.parameters import RemoteLoaders
from blobfeed.workers.remote import bridge as bridge_module
from blobfeed.workers.transport import links


def test_loaders_that_wait_for_hours_are_told_once_and_again_if_more_wait(caplog: pytest.LogCaptureFixture) -> None:
    bridge: Any = object.__new__(bridge_module._Bridge)
    status: Any = None
    remotes = {number: bridge_module._Remote(number, None, status, asked=0.0) for number in range(3)}
    cluster = SimpleNamespace(nodes=dict, room_on=None)
    vars(bridge).update(_cluster=cluster, _remotes=remotes, _wanted=RemoteLoaders())
    vars(bridge).update(_room=0, _next_look=0.0, _unplaced=0)
    for seconds in range(100):
        bridge._look_at_nodes(float(seconds))
    assert [record.getMessage() for record in caplog.records] == [
        "the cluster has no place yet for 3 remote loaders: its processors are taken"
    ]
    remotes[3] = bridge_module._Remote(3, None, status, asked=0.0)
    bridge._look_at_nodes(100.0)
    assert len(caplog.records) == 2


def test_a_cluster_that_cannot_be_joined_is_no_news_to_an_assembler_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_config: object) -> NoReturn:
        raise ConnectionError("Failed to connect to Ray cluster")

    monkeypatch.setattr(bridge_module, "Cluster", refused)
    monkeypatch.setattr(bridge_module, "why_not_joined", lambda _config, error: str(error))
    bridge: Any = object.__new__(bridge_module._Bridge)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    vars(bridge).update(_config=None, _link=ours, _sealer=links.Sealer(b"k" * 32))
    with ours:
        theirs.close()
        bridge.run()
