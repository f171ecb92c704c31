"""The Ray cluster, seen by a process that has joined it: its nodes, and the loaders on them."""

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

from ..workers.api import RemoteLoaders
from ..workers.processes import Config
from ..workers.transport import SharedFile, summary_of
from .actor import RemoteLoader, code_digest

_INLINE = {"RAY_max_direct_call_object_size": str(16 << 20), "RAY_task_rpc_inlined_bytes_limit": str(64 << 20)}
"""Ray's own settings for this process and the actors: a task and its result travel directly between the two. By default
everything above 100 KB passes through the object stores of both nodes, which takes 1.3 to 2 times the processor time
for 10 MB, and more for smaller objects. Also, an object in the store can outlive a process that is killed just before
the raylet learns the object's owner. A version of Ray without these settings uses its defaults."""

_WITH_CALL_BYTES = 64 << 10
"""A smaller plan is sent to each actor with its call, a larger one is put once into the object store."""

_CONNECT_S = 10.0

_TRIES = "2"
"""The number of Ray's attempts, 40 s each, to reach the cluster's head. By default it makes 20, so setup would hang
until timeout_s if another program listens there."""


def wanted_of(config: Config) -> RemoteLoaders:
    """Return the plan's remote_loaders; raises TypeError if it has none."""
    if (wanted := config.plan.parameters.remote_loaders) is None:
        raise TypeError("a plan without remote_loaders needs no cluster")
    return wanted


def why_not_joined(config: Config, error: Exception) -> str:
    """Return the message for an `error` of Cluster's constructor."""
    address, said = address_of(wanted_of(config))
    # Only the cause of Ray's exception mentions a wrong token.
    reasons = [summary_of(each) for each in (error, error.__cause__) if each is not None]
    return f"the Ray cluster at {address!r}{said} cannot be joined: {': '.join(reasons)}"


def address_of(wanted: RemoteLoaders) -> tuple[str, str]:
    """Return the cluster's address, and for messages its origin if that is not the parameter but RAY_ADDRESS."""
    address = os.environ.get("RAY_ADDRESS", "")
    return (address, " (from RAY_ADDRESS)") if wanted.address == "auto" and address else (wanted.address, "")


def require_answer(address: str) -> None:
    """Raises OSError if no program listens at `address`: Ray would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "://" in host or not port.isdigit():
        raise ValueError(f"expected auto or host:port, such as 10.0.0.1:6379 or [fd00::1]:6379, got {address!r}")
    socket.create_connection((host.removeprefix("[").removesuffix("]"), int(port)), _CONNECT_S).close()


class Cluster:
    """A connection to the cluster. The constructor joins it and raises the exceptions of Ray and the network."""

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
        self._loaders: Any = ray.remote(RemoteLoader)  # by default Ray does not restart a dead actor

    def nodes(self) -> dict[str, Any]:
        """Return Ray's description of each living node, by node id."""
        return {node["NodeID"]: node for node in self.ray.nodes() if node["Alive"]}

    def capacity_of(self, node: Mapping[str, Any]) -> int:
        """Return the number of loaders that fit on an otherwise idle node."""
        resources = node["Resources"]
        needs = {"CPU": self._wanted.num_cpus, **self._wanted.resources}
        rooms = [int(resources.get(name, 0) / need + 1e-9) for name, need in needs.items() if need > 0]
        return min([*rooms, self._wanted.most])

    def loader(self) -> Any:
        """Start a loader on a node of the cluster's choice, spread over nodes; returns its handle."""
        return self._loaders.options(
            num_cpus=self._wanted.num_cpus, resources=self._wanted.resources or None, scheduling_strategy="SPREAD"
        ).remote()

    def loader_on(self, node: str) -> Any:
        """Start a loader on this very node, for a trial; it occupies no processor that others may wait for."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node, soft=False)
        return self._loaders.options(num_cpus=0, scheduling_strategy=there).remote()

    def begin(self, loader: Any) -> Any:
        """Call the loader's `begin`; returns a reference to None or to the Refusal."""
        shipped = self._wanted.runtime_env.get("working_dir", "")
        folder = str(Path(shipped).absolute()) if shipped and Path(shipped).is_dir() else ""
        config = self._config
        return loader.begin.remote(self._code, self._plan, self._memory, folder, config.sys_path, config.log_levels)

    def cannot_begin(self, error: BaseException) -> bool:
        """Return true for a permanent `error`, such as a node without blobfeed: no loader will ever start there.

        The death of an actor or a node is not permanent.
        """
        errors = self.ray.exceptions
        lasting = isinstance(error, errors.RuntimeEnvSetupError | errors.RayTaskError)
        return lasting or getattr(error, "actor_init_failed", False)
