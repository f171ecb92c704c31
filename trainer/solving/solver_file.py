"""Reads a solver prototxt and checks it: its nets, its device and threads, and whether every field is supported."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch

from ...workers.plan import usable_cores
from ..prototxt import (
    Document,
    NetParameter,
    NetState,
    Phase,
    SolverError,
    SolverMode,
    SolverParameter,
    document,
    not_supported,
    read_prototxt,
)
from .lr_policy import check_policy
from .updates import SOLVER_TYPES

_log = logging.getLogger("blobfeed")

_SolverDocument = Document[SolverParameter]
NetSource = tuple[Document[NetParameter], NetState]
"""A net's prototxt, and the state that its include and exclude rules are checked against."""

_SHARES = {"RMSProp": ("rms_decay",), "Adam": ("momentum", "momentum2")}
"""By type of solver: the shares of an old mean in a new one."""


def read_solver(path: Path, kind: str | None = None) -> _SolverDocument:
    """Read and check; raises PrototxtError with the line of what is missing, impossible or not supported.

    `kind`: the type of the solver, whatever type the file gives.
    """
    solver = read_prototxt(path, SolverParameter)
    message: Any = solver.message
    if kind is not None:
        message.ClearField("solver_type")
        message.type = kind
    for field in ("base_lr", "lr_policy"):
        if not message.HasField(field):
            raise solver.error(f"{field} is needed")
    if message.type not in SOLVER_TYPES:
        raise solver.error(not_supported("solver type", message.type, SOLVER_TYPES), "type")
    if message.momentum and not SOLVER_TYPES[message.type].takes_momentum:
        raise solver.error(f"a solver of type {message.type} has no momentum", "momentum")
    for field in _SHARES.get(message.type, ()):
        if not 0 <= getattr(message, field) < 1:
            raise solver.error(f"{field} must be at least 0 and below 1, got {getattr(message, field):g}", field)
    if message.debug_info:
        raise solver.error("debug_info is not supported: leave it out", "debug_info")
    if message.regularization_type not in ("L1", "L2"):
        raise solver.error(
            f"regularization_type must be L1 or L2, got {message.regularization_type!r}", "regularization_type"
        )
    for field in ("iter_size", "average_loss"):
        if getattr(message, field) < 1:
            raise solver.error(f"{field} must be at least 1", field)
    check_policy(solver)
    return solver


def read_train_net(solver: _SolverDocument) -> NetSource:
    """The net to train: `train_net`, or `net` with its layers for TRAIN."""
    fields = ("net", "net_param", "train_net", "train_net_param")
    given = [field for field in fields if solver.message.HasField(field)]
    if len(given) != 1:
        raise solver.error(f"exactly one of {', '.join(fields)} is needed", *given[-1:])
    net = _read_net(solver, given[0])
    return net, NetState(Phase.TRAIN).merged(net.message.state).merged(solver.message.train_state)


def read_test_nets(solver: _SolverDocument) -> list[NetSource]:
    """The nets to test, in the order of `test_iter`: each test net, then `net` for what is left of test_iter."""
    message = solver.message
    fields = [("test_net_param", nth) for nth in range(len(message.test_net_param))]
    fields += [("test_net", nth) for nth in range(len(message.test_net))]
    for field in ("net", "net_param"):
        if message.HasField(field):
            fields += [(field, 0)] * (len(message.test_iter) - len(fields))
    _check_tests(solver, len(fields))
    sources: list[NetSource] = []
    for position, (field, nth) in enumerate(fields):
        net = _read_net(solver, field, nth)
        state = NetState(Phase.TEST).merged(net.message.state)
        if message.test_state:
            state = state.merged(message.test_state[position])
        sources.append((net, state))
    return sources


def _check_tests(solver: _SolverDocument, nets: int) -> None:
    message = solver.message
    if nets != len(message.test_iter):
        raise solver.error(f"test_iter is given {len(message.test_iter)} times for {nets} test nets", "test_iter")
    if nets and not message.test_interval:
        raise solver.error("test_iter needs a test_interval of at least 1", "test_iter")
    if message.test_state and len(message.test_state) != nets:
        raise solver.error(f"test_state is given {len(message.test_state)} times for {nets} test nets", "test_state")


def _read_net(solver: _SolverDocument, field: str, nth: int = 0) -> Document[NetParameter]:
    """The net in `field` of the solver, or in the file that it names."""
    value = getattr(solver.message, field)
    value = value if isinstance(value, str) or hasattr(value, "ListFields") else value[nth]
    if not isinstance(value, str):
        return document(solver.path, value, solver.root.follow(field, nth))
    return read_prototxt(solver.beside(value), NetParameter, named_by=solver.where(field, nth))


def choose_device(asked: str | None, solver: SolverParameter | None = None) -> torch.device:
    """`asked` ("cpu", "cuda", "cuda:1"), else what the solver says, else CUDA if there is one; raises SolverError."""
    if asked is None:
        mode = solver.solver_mode if solver is not None and solver.HasField("solver_mode") else None
        asked = "cuda" if torch.cuda.is_available() and mode != SolverMode.CPU else "cpu"
        if mode == SolverMode.GPU and asked == "cpu":
            _log.warning("the solver says solver_mode: GPU, but torch finds no CUDA device here: it runs on the CPU")
    elif asked != "cpu" and not torch.cuda.is_available():
        raise SolverError(
            f"device {asked!r} was asked for, but torch finds no CUDA device here; use --device cpu, or in a script "
            "caffe.set_mode_cpu()"
        )
    if asked == "cpu":
        return torch.device("cpu")
    _, _, number = asked.partition(":")
    index = int(number) if number else solver.device_id if solver is not None else 0
    if index >= torch.cuda.device_count():
        raise SolverError(
            f"device {index} was asked for, but torch finds {torch.cuda.device_count()} CUDA devices, counted from 0"
        )
    return torch.device("cuda", index)


def fix_threads(asked: int | None) -> None:
    """Set how many threads torch computes with in this process: the last bits of a sum depend on it.

    By default as OMP_NUM_THREADS says, else all cores but one, which is left to the processes that make the data:
    torch's threads wait for each other at every operation, so one that shares its core slows down all. On two busy
    cores a small net was 3 times faster with one thread.
    """
    if asked is not None or not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(asked or max(1, usable_cores() - 1))


def snapshot_prefix(given: str, solver: Path) -> Path:
    """Return the prefix of the names of `solver`'s snapshots, by the rule of Caffe's UpgradeSnapshotPrefixProperty.

    `given`: its snapshot_prefix. One that ends in a slash names a folder, which need not exist yet.
    """
    if not given:
        return solver.with_suffix("")
    return Path(given, solver.stem) if given.endswith("/") or Path(given).is_dir() else Path(given)
