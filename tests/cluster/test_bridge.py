"""The start of the bridge, and what it says of loaders that find no place, and of a cluster that it cannot join."""

from __future__ import annotations

import errno
import itertools
import math
import os
import socket
from contextlib import closing
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import zmq
from blobfeed.cluster import Bridge
from blobfeed.cluster import bridge as bridge_module
from blobfeed.workers.api import RemoteLoaders
from blobfeed.workers.processes import LoaderPool
from blobfeed.workers.transport import StatusBoard

from blobfeed import LoaderDied
from tests.support.pipelines import NoHome


def test_loaders_that_wait_for_hours_are_told_once_and_again_if_more_wait(caplog: pytest.LogCaptureFixture) -> None:
    bridge: Any = object.__new__(bridge_module._Bridge)
    status: Any = None
    remotes = {number: bridge_module._Remote(number, None, status, asked=0.0) for number in range(3)}
    cluster = SimpleNamespace(nodes=dict, capacity_of=None)
    vars(bridge).update(_cluster=cluster, _remotes=remotes, _wanted=RemoteLoaders())
    vars(bridge).update(_capacity=0, _next_look=0.0, _unplaced=0)
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
    vars(bridge).update(_config=None, _link=ours)
    with ours:
        theirs.close()
        bridge.run()


def test_a_bridge_for_which_there_is_no_process_is_started_later_but_not_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refused(*_: object, **_options: object) -> NoReturn:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    plan = SimpleNamespace(max_loaders=1, max_remote_loaders=2, parameters=SimpleNamespace(task_timeout_s=60.0))
    config: Any = SimpleNamespace(plan=plan, start=refused)
    bridge = Bridge(config, zmq.Poller())
    for now, next_start in ((0.0, 0.5), (0.4, 0.5), (0.5, 1.5)):
        assert bridge.start_if_due(now) == next_start
    assert bridge.fileno() == -1
    assert len(caplog.records) == 2
    assert "Resource temporarily unavailable; another one starts in 0.5 s" in caplog.text
    with pytest.raises(LoaderDied, match=rf"\b3 .*{os.strerror(errno.EAGAIN)}"):
        bridge.start_if_due(1.5)
    bridge.close()


def test_a_run_that_has_ended_does_not_wake_for_a_bridge_that_it_will_not_start() -> None:
    class Put(NoHome):
        def start_if_due(self, now: float) -> float:
            return 2.0

    with closing(StatusBoard.create(1)) as board:
        pool = LoaderPool(Put(), board, wanted=0, lines=[0], numbers=itertools.count(1), start_timeout_s=60.0)
        assert pool.tend(1.0) == 2.0
        assert pool.tend(1.0, replace=False) == math.inf
