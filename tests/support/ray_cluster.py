"""A Ray cluster on this machine, of several raylets, in processes of its own: started, harmed and asked by a test.

`python -m tests.support.ray_cluster` holds it: a test process that imported ray would keep its threads. It reads
commands, one a line, answers each with one line of JSON, {"answer": …} or {"error": a traceback}, and ends with its
standard input.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Self

import psutil  # type: ignore[import-untyped]
from blobfeed.workers.pipeline import Pipeline

from .waiting import DEADLINE_S, readable

_MEMORY = 160 << 20
"""Bytes of each node's object store."""

_ANSWER_S = 2 * DEADLINE_S
_SHOWN = 4000
"""Characters of its standard error that an error shows."""


class ClusterFailed(Exception):
    """The cluster's process could not do what it was asked, or has ended."""


class RayCluster:
    """A head, and `nodes` nodes with `cpus` each."""

    def __init__(self, nodes: int = 1, cpus: int = 2, head_cpus: int = 0) -> None:
        self._folder = tempfile.mkdtemp(prefix="r", dir="/tmp")  # sockets' paths have to be short
        Path(self._folder, "ray").mkdir()
        environment = {**os.environ, "RAY_TMPDIR": self._folder, "RAY_USAGE_STATS_ENABLED": "0"}
        self._stderr = Path(self._folder, "stderr")
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(head_cpus)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                text=True,
            )
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

    def _ask(self, *words: object) -> Any:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        asked = " ".join(map(str, words)).strip()
        try:
            print(asked, file=process.stdin, flush=True)
            line = process.stdout.readline() if readable(process.stdout.fileno(), _ANSWER_S) else None
        except BrokenPipeError:
            line = ""
        if not line:
            how = f"has not answered for {_ANSWER_S:g} s" if line is None else f"has ended, code {process.wait()}"
            raise ClusterFailed(f"asked for {asked!r}, the cluster's process {how}; {self._told()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ClusterFailed(f"asked for {asked!r}, the cluster's process got {answer['error']}\n{self._told()}")
        return answer["answer"]

    def _told(self) -> str:
        return f"the end of its standard error:\n{self._stderr.read_text(errors='replace')[-_SHOWN:]}"

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
        return [self._process.pid, *(child.pid for child in self._descendants())]

    def _descendants(self) -> list[psutil.Process]:
        if self._process.poll() is not None:
            return []  # Ray ends a node's processes with the one that has started it
        return list(psutil.Process(self._process.pid).children(recursive=True))

    def close(self) -> None:
        """End it, and remove its files."""
        family = self._descendants()
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


def _main() -> None:
    from ray.cluster_utils import Cluster

    head: dict[str, Any] = {"num_cpus": int(sys.argv[1]), "include_dashboard": False, "object_store_memory": _MEMORY}
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # ray prints
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    for line in sys.stdin:
        try:
            told = {"answer": _answer(cluster, line.split())}
        except Exception:
            told = {"error": traceback.format_exc()}
        print(json.dumps(told), file=answers)
    cluster.shutdown()


def _answer(cluster: Any, words: list[str]) -> object:
    match words:
        case ["address"]:
            return cluster.address
        case ["add", cpus, *resource]:
            resources = {name: int(cpus) for name in resource}
            node = cluster.add_node(num_cpus=int(cpus), object_store_memory=_MEMORY, resources=resources)
            return node.all_processes["raylet"][0].process.pid
        case ["actors"]:
            found = cluster.global_state.actor_table(None).values()
            return sum(actor["State"] in ("ALIVE", "PENDING_CREATION", "RESTARTING") for actor in found)
        case ["objects"]:
            return _object_bytes(cluster)
        case _:
            raise ValueError(f"expected address, add, actors or objects, got {words!r}")


def _object_bytes(cluster: Any) -> int:
    """The head's raylet is asked for the sum over all nodes, since no test kills it.

    Left to itself, Ray asks the first raylet that its table calls alive, in any order, and that may be one that was
    killed: the table learns of it up to 15 seconds later.
    """
    import grpc  # type: ignore[import-untyped]
    from ray._private.internal_api import get_memory_info_reply

    memory: Any = get_memory_info_reply
    head, deadline = cluster.head_node, time.monotonic() + DEADLINE_S
    while True:
        try:
            answer = memory(cluster.global_state, head.node_ip_address, head.node_manager_port)
            return int(answer.store_stats.object_store_bytes_used)
        except grpc.RpcError:  # it may have much else to do
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


if __name__ == "__main__":
    _main()
