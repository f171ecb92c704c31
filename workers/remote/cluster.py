"""The Ray cluster as a process of ours sees it that has joined it: its nodes, and loaders to be placed there."""

from __future__ import annotations

import logging
import os
import pickle
import socket
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from ..base.parameters import RemoteLoaders
from ..processes.config import Config
from ..transport.error_channel import summary_of
from ..transport.shared_file import SharedFile
from .actor import RemoteLoader, code_digest

_INLINE = {"RAY_max_direct_call_object_size": str(16 << 20), "RAY_task_rpc_inlined_bytes_limit": str(64 << 20)}
"""Ray's own settings, for this process and the actors': what a task takes and makes goes straight between the two. By
default all of more than 100 KB goes through the object stores of both nodes, which takes 1.3 to 2 times the processor
time for 10 MB, and more for smaller objects. And what this process has put there stays until its room is needed, if it
is killed in the moment before the raylet has heard whose it is. A Ray that does not know these does it as it did."""

_WITH_CALL_BYTES = 64 << 10
"""A plan of less goes to each actor with its call, a larger one once into the object store."""

_CONNECT_S = 10.0

_TRIES = "2"
"""Of Ray, 40 s each, to speak with the cluster's head: by default 20, so setup stood until timeout_s if something else
listened there."""


def wanted_of(config: Config) -> RemoteLoaders:
    """What the plan says of remote loaders; raises TypeError if it says nothing."""
    if (wanted := config.plan.parameters.remote_loaders) is None:
        raise TypeError("a plan without remote_loaders needs no cluster")
    return wanted


def why_not_joined(config: Config, error: Exception) -> str:
    """What is told if the constructor of Cluster has raised `error`."""
    address, said = address_of(wanted_of(config))
    # Ray says only behind it whether a token was wrong.
    reasons = [summary_of(each) for each in (error, error.__cause__) if each is not None]
    return f"the Ray cluster at {address!r}{said} cannot be joined: {': '.join(reasons)}"


def address_of(wanted: RemoteLoaders) -> tuple[str, str]:
    """The cluster's address, and for messages where it was found if not in the parameter: Ray itself looks there."""
    address = os.environ.get("RAY_ADDRESS", "")
    return (address, " (told by RAY_ADDRESS)") if wanted.address == "auto" and address else (wanted.address, "")


def require_answer(address: str) -> None:
    """Raises OSError if nobody listens at `address`: Ray would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "://" in host or not port.isdigit():
        raise ValueError(f"expected auto or host:port, such as 10.0.0.1:6379 or [fd00::1]:6379, got {address!r}")
    socket.create_connection((host.removeprefix("[").removesuffix("]"), int(port)), _CONNECT_S).close()


class Cluster:
    """Joined by the constructor, which raises whatever Ray or the network say against it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._wanted = wanted_of(config)
        self._code = code_digest()
        runtime_env = deepcopy(self._wanted.runtime_env)  # Ray puts the address of its upload into it
        runtime_env["env_vars"] = chosen = _INLINE | runtime_env.get("env_vars", {})
        os.environ |= {name: chosen[name] for name in _INLINE}  # Ray reads them when it is imported
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", _TRIES)
        import ray

        self.ray: Any = ray
        address, _ = address_of(self._wanted)
        require_answer(address)
        ray.init(address=address, runtime_env=runtime_env, logging_level=logging.WARNING, log_to_driver=True)
        plan = pickle.dumps(config.plan, protocol=pickle.HIGHEST_PROTOCOL)
        memory = {n: SharedFile(n).read(0, os.fstat(n).st_size, np.uint8) for n in config.descriptors.source}
        is_small = len(plan) + sum(map(len, memory.values())) < _WITH_CALL_BYTES
        self._plan: Any = plan if is_small else ray.put(plan)
        self._memory: Any = memory if is_small else ray.put(memory)
        self._loaders: Any = ray.remote(RemoteLoader)  # by default an actor that died is not started again

    def nodes(self) -> dict[str, Any]:
        """What Ray knows of each living node, by its id."""
        return {node["NodeID"]: node for node in self.ray.nodes() if node["Alive"]}

    def capacity_of(self, node: Mapping[str, Any]) -> int:
        """How many loaders it could hold if it had nothing else to do."""
        resources = node["Resources"]
        needs = {"CPU": self._wanted.num_cpus, **self._wanted.resources}
        rooms = [int(resources.get(name, 0) / need + 1e-9) for name, need in needs.items() if need > 0]
        return min([*rooms, self._wanted.most])

    def loader(self) -> Any:
        """A handle of a loader that the cluster will place, on as many different nodes as it can."""
        return self._loaders.options(
            num_cpus=self._wanted.num_cpus, resources=self._wanted.resources or None, scheduling_strategy="SPREAD"
        ).remote()

    def loader_on(self, node: str) -> Any:
        """A handle of a loader on that node and no other, for a trial: it takes nothing that others may wait for."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node, soft=False)
        return self._loaders.options(num_cpus=0, scheduling_strategy=there).remote()

    def begin(self, loader: Any) -> Any:
        """Have a loader get ready; refers to None, or to the Refusal."""
        shipped = self._wanted.runtime_env.get("working_dir", "")
        folder = str(Path(shipped).absolute()) if shipped and Path(shipped).is_dir() else ""
        config = self._config
        return loader.begin.remote(self._code, self._plan, self._memory, folder, config.sys_path, config.log_levels)

    def cannot_begin(self, error: BaseException) -> bool:
        """Whether `error` says that no loader can be made there, as where blobfeed is not installed: it will not pass.

        An actor or a node that died may be made up for.
        """
        errors = self.ray.exceptions
        lasting = isinstance(error, errors.RuntimeEnvSetupError | errors.RayTaskError)
        return lasting or getattr(error, "actor_init_failed", False)
