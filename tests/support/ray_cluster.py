"""A Ray cluster on this machine, of several raylets, in processes of its own: started, harmed and asked by a test.

`python -m tests.support.ray_cluster` holds it: a test process that imported ray would keep its threads. It reads
commands, one a line, answers each with one line of JSON, and ends with its standard input.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

import psutil  # type: ignore[import-untyped]
from blobfeed.workers.pipeline.pipeline import Pipeline

_MEMORY = 160 << 20
"""Bytes of each node's object store."""


class RayCluster:
    """A head, and `nodes` nodes with `cpus` each."""

    def __init__(self, nodes: int = 1, cpus: int = 2, head_cpus: int = 0) -> None:
        self._folder = tempfile.mkdtemp(prefix="r", dir="/tmp")  # sockets' paths have to be short
        Path(self._folder, "ray").mkdir()
        environment = {**os.environ, "RAY_TMPDIR": self._folder, "RAY_USAGE_STATS_ENABLED": "0"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(head_cpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        self.address: str = self._ask("address")
        self.raylets: list[int] = []
        """Process ids, without the head's."""
        for _ in range(nodes):
            self.add_node(cpus)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, *words: object) -> Any:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        print(*words, file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())

    def add_node(self, cpus: int = 2, resource: str = "") -> int:
        """Another raylet; returns its process id. `resource`: what it has one of for each processor."""
        pid: int = self._ask("add", cpus, resource)
        self.raylets.append(pid)
        return pid

    def living_actors(self) -> int:
        living: int = self._ask("actors")
        return living

    def object_bytes(self) -> int:
        """What the object stores of all nodes hold."""
        held: int = self._ask("objects")
        return held

    def family(self) -> list[int]:
        """All its processes, actors among them."""
        process = psutil.Process(self._process.pid)
        return [process.pid, *(child.pid for child in process.children(recursive=True))]

    def close(self) -> None:
        """End it, and remove its files."""
        family = psutil.Process(self._process.pid).children(recursive=True)
        self._process.communicate()
        for child in family:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(family, timeout=10)
        shutil.rmtree(self._folder, ignore_errors=True)


def bridges(trainer: int) -> list[int]:
    """The bridges of the trainer with that process id."""
    family = psutil.Process(trainer).children(recursive=True)
    return [child.pid for child in family if "workers.remote.bridge" in _command(child)]


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


def _main() -> None:
    from ray._private.internal_api import get_memory_info_reply
    from ray.cluster_utils import Cluster

    head: dict[str, Any] = {"num_cpus": int(sys.argv[1]), "include_dashboard": False, "object_store_memory": _MEMORY}
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # ray prints
    memory: Any = get_memory_info_reply
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    for line in sys.stdin:
        match line.split():
            case ["address"]:
                answer: object = cluster.address
            case ["add", cpus, *resource]:
                resources = {name: int(cpus) for name in resource}
                node = cluster.add_node(num_cpus=int(cpus), object_store_memory=_MEMORY, resources=resources)
                answer = node.all_processes["raylet"][0].process.pid
            case ["actors"]:
                found = cluster.global_state.actor_table(None).values()
                answer = sum(actor["State"] in ("ALIVE", "PENDING_CREATION", "RESTARTING") for actor in found)
            case ["objects"]:
                answer = memory(cluster.global_state).store_stats.object_store_bytes_used
            case _:
                answer = f"what is {line!r}?"
        print(json.dumps(answer), file=answers)
    cluster.shutdown()


if __name__ == "__main__":
    _main()
