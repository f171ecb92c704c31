"""A Ray cluster on this machine, of several raylets, in processes of its own: started, harmed and asked by a test.

A worker of a pool holds it: a test process that imported ray would keep its threads, and ray wants a main thread.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

import psutil  # type: ignore[import-untyped]
from blobfeed.workers.pipeline import Pipeline

from .waiting import DEADLINE_S

_MEMORY = 160 << 20
"""Bytes of each node's object store."""


class _Cluster:
    """A cluster, in the process that it was started in."""

    def __init__(self, head_cpus: int) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": head_cpus, "include_dashboard": False, "object_store_memory": _MEMORY}
        self._cluster: Any = Cluster(initialize_head=True, head_node_args=head)

    def pid(self) -> int:
        return os.getpid()

    def address(self) -> str:
        return str(self._cluster.address)

    def add_node(self, cpus: int, resource: str) -> int:
        resources = {resource: cpus} if resource else {}
        node = self._cluster.add_node(num_cpus=cpus, object_store_memory=_MEMORY, resources=resources)
        return int(node.all_processes["raylet"][0].process.pid)

    def living_actors(self) -> int:
        found = self._cluster.global_state.actor_table(None).values()
        return sum(actor["State"] in ("ALIVE", "PENDING_CREATION", "RESTARTING") for actor in found)

    def object_bytes(self) -> int:
        """The head's raylet is asked for the sum over all nodes, since no test kills it.

        Left to itself, Ray asks the first raylet that its table calls alive, in any order, and that may be one that was
        killed: the table learns of it up to 15 seconds later.
        """
        import grpc  # type: ignore[import-untyped]
        from ray._private.internal_api import get_memory_info_reply

        memory: Any = get_memory_info_reply
        head, deadline = self._cluster.head_node, time.monotonic() + DEADLINE_S
        while True:
            try:
                answer = memory(self._cluster.global_state, head.node_ip_address, head.node_manager_port)
                return int(answer.store_stats.object_store_bytes_used)
            except grpc.RpcError:  # it may have much else to do
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def shutdown(self) -> None:
        self._cluster.shutdown()


_held: list[_Cluster] = []


def _begin(environment: dict[str, str], head_cpus: int) -> None:
    os.environ |= environment
    _held.append(_Cluster(head_cpus))


def _do(what: str, *given: object) -> Any:
    return getattr(_held[0], what)(*given)


class RayCluster:
    """A head, and `nodes` nodes with `cpus` each."""

    def __init__(self, nodes: int = 1, cpus: int = 2, head_cpus: int = 0) -> None:
        self._folder = tempfile.mkdtemp(prefix="r", dir="/tmp")  # sockets' paths have to be short
        Path(self._folder, "ray").mkdir()
        environment = {"RAY_TMPDIR": self._folder, "RAY_USAGE_STATS_ENABLED": "0"}
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), _begin, (environment, head_cpus))
        self._process = psutil.Process(self._ask("pid"))
        self.raylets: list[int] = []
        """Process ids, without the head's."""
        try:
            self.address: str = self._ask("address")
            for _ in range(nodes):
                self.add_node(cpus)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, what: str, *given: object) -> Any:
        return self._pool.submit(_do, what, *given).result()

    def add_node(self, cpus: int = 2, resource: str = "") -> int:
        """Another raylet; returns its process id. `resource`: what it has one of for each processor."""
        pid: int = self._ask("add_node", cpus, resource)
        self.raylets.append(pid)
        return pid

    def living_actors(self) -> int:
        living: int = self._ask("living_actors")
        return living

    def object_bytes(self) -> int:
        """What the object stores of all nodes hold."""
        held: int = self._ask("object_bytes")
        return held

    def family(self) -> list[int]:
        """All its processes, actors among them."""
        return [self._process.pid, *(child.pid for child in self._process.children(recursive=True))]

    def close(self) -> None:
        """End it, and remove its files."""
        family = self._process.children(recursive=True)
        self._ask("shutdown")
        self._pool.shutdown()
        for child in family:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(family, timeout=10)
        shutil.rmtree(self._folder, ignore_errors=True)


def bridges(trainer: int) -> list[int]:
    """The bridges of the trainer with that process id."""
    family = psutil.Process(trainer).children(recursive=True)
    return [child.pid for child in family if "cluster.bridge" in _command(child)]


def kill_an_actor(_cluster: RayCluster, pipeline: Pipeline, which: int = 0) -> None:
    pids = [state.pid for state in pipeline.activities() if state.pid]
    if pids:
        os.kill(pids[which % len(pids)], signal.SIGKILL)


def kill_a_raylet(cluster: RayCluster, _pipeline: Pipeline, which: int = 0) -> None:
    """One that is not the head's; another node takes its place."""
    os.kill(cluster.raylets.pop(which % len(cluster.raylets)), signal.SIGKILL)
    cluster.add_node()


def kill_the_bridge(_cluster: RayCluster, _pipeline: Pipeline, _which: int = 0) -> None:
    for pid in bridges(os.getpid()):
        os.kill(pid, signal.SIGKILL)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
