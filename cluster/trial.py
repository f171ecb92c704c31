"""`python -m blobfeed.cluster.trial CONFIG PARENT`: in setup, each node of the cluster makes a sample on trial.

Otherwise missing files, libraries or credentials of a node would show only at the first batch. The trial is a separate
process, since the trainer imports no Ray and starts no threads. It takes some seconds for any number of nodes. A node
that joins later is tried when a loader starts there.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from ..workers.base import BlobfeedError, ParameterError, SourceError, deadline, moving
from ..workers.plan import Plan
from ..workers.processes import (
    Config,
    Descriptors,
    die_with,
    exit_in_words,
    find_interpreter,
    leave_signals_to_trainer,
    trainer_sys_path,
)
from ..workers.transport import ErrorInbox, levels_of_trainer, pass_on, summary_of
from .actor import Refusal
from .cluster import Cluster, why_not_joined

_MODULE = "blobfeed.cluster.trial"

_log = logging.getLogger("blobfeed")


class _Trouble(msgspec.Struct):
    """A failure on `node`, or of the whole cluster if that is empty; the other fields: see Refusal."""

    node: str
    text: str
    cause: int = 0
    traceback: str = ""


def try_nodes(plan: Plan) -> None:
    """Make one sample on each node that may run loaders.

    Raises ParameterError if the cluster cannot be joined, SourceError that names a failing node, with the node's
    exception as its cause, and PipelineStalled.
    """
    with deadline(plan.parameters.timeout_s):
        moving("each node of the cluster makes a sample on trial")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            troubles = _ask(plan, theirs)
            inbox = ErrorInbox(ours)
            inbox.receive()
            if troubles:
                raise _error_of(troubles, inbox)


def _ask(plan: Plan, errors: socket.socket) -> list[_Trouble]:
    descriptors = Descriptors(-1, -1, -1, errors.fileno(), source=plan.source.descriptors)
    config = Config(plan, descriptors, "", trainer_sys_path(), levels_of_trainer())
    process = config.start(find_interpreter(), _MODULE, os.getpid(), stdout=subprocess.PIPE, start_new_session=True)
    try:
        answer, _ = process.communicate()
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        how = exit_in_words(process.returncode)
        raise SourceError(f"remote_loaders: the process that tries the cluster's nodes {how}; standard error says why")
    return msgspec.json.decode(answer, type=list[_Trouble])


def _error_of(troubles: list[_Trouble], inbox: ErrorInbox) -> BlobfeedError:
    first, *others = troubles
    if not first.node:
        return ParameterError(f"remote_loaders: {first.text}")
    also = f"; nor on {', '.join(other.node for other in others)}" if others else ""
    error = SourceError(
        f"remote_loaders: no sample can be made on node {first.node}: {first.text}{also}; every node needs the same "
        "files and packages: share them, ship them by runtime_env, or choose nodes by resources"
    )
    if first.traceback:
        error.__cause__ = inbox.take(first.cause, first.traceback)
    return error


# ---- in the process


def _troubles(config: Config, errors: socket.socket) -> Iterator[_Trouble]:
    try:
        cluster = Cluster(config)
    except Exception as error:
        yield _Trouble("", why_not_joined(config, error))
        return
    nodes = {name: node for name, node in cluster.nodes().items() if cluster.capacity_of(node)}
    loaders = {name: cluster.loader_on(name) for name in nodes}
    begun = {cluster.begin(loader): name for name, loader in loaders.items()}
    refs, limit_s = list(begun), config.plan.parameters.task_timeout_s
    ready, late = cluster.ray.wait(refs, num_returns=len(refs), timeout=limit_s) if refs else ([], [])
    for ref in ready:
        node = nodes[begun[ref]]
        called = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        yield from _trouble_on(called, cluster, ref, errors)
    for ref in late:
        name = nodes[begun[ref]]["NodeManagerHostname"]
        _log.warning("node %s made no sample within task_timeout_s=%g s; its loaders will be tried", name, limit_s)


def _trouble_on(node: str, cluster: Cluster, ref: Any, errors: socket.socket) -> Iterator[_Trouble]:
    try:
        refusal: Refusal | None = cluster.ray.get(ref)
    except cluster.ray.exceptions.RayError as error:
        if cluster.cannot_begin(error):
            yield _Trouble(node, summary_of(error), 0, str(error))
        else:
            _log.warning("node %s could not be tried: %s", node, summary_of(error))
    else:
        if refusal is not None:
            pass_on(errors, refusal.frames)
            yield _Trouble(node, refusal.text, refusal.cause, refusal.traceback)


def main() -> None:
    descriptor, parent = map(int, sys.argv[1:3])
    die_with(parent)
    leave_signals_to_trainer()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Ray and the user's modules may print to standard output
    answers.write(msgspec.json.encode(list(_troubles(*Config.adopt(descriptor)))))
    answers.flush()
    os._exit(0)  # the cluster ends the actors of a dead driver


if __name__ == "__main__":
    main()
