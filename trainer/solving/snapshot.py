"""Snapshots: one file with the weights and everything else that training needs to resume.

A snapshot is written under a temporary name and renamed, so a file with the final name is whole. Reading one executes
nothing that the file may contain (torch's weights_only).
"""

from __future__ import annotations

import os
import pickle
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ...workers.base.files import replacing
from ..prototxt.errors import SnapshotError

_FORMAT = "blobfeed snapshot 1"

DataStates = dict[str, dict[str, int | str]]
"""By layer: what its state_dict gave."""


@dataclass(frozen=True)
class Snapshot:
    """The state between two iterations. A .pt file holds all of it, a .solverstate the first four fields."""

    iteration: int
    history: list[Tensor]
    """For each weight blob, in the order of the net's layers; as in Caffe, zeros for those that are not learnt."""
    learned_net: str = ""
    """The file with the weights of a .solverstate."""
    current_step: int = 0
    """Steps of the rate that are done, which Caffe counts."""
    weights: dict[str, list[Tensor]] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    """The last ones; the displayed loss is their mean."""
    train_data: DataStates = field(default_factory=dict)
    test_data: list[DataStates] = field(default_factory=list)
    dropout: dict[str, Tensor] = field(default_factory=dict)
    """By type of device: the state of the generator."""
    solver_type: str = ""
    """The type of the solver that made the history; older files do not say it."""
    fillers: list[Tensor] = field(default_factory=list)
    """Of the train net and each test net: the state of the generator that DummyData draws from; not in older files."""


def check_writable(prefix: str) -> None:
    """Make the folder of `prefix`; raises SnapshotError now instead of after a night of training."""
    folder = Path(prefix).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SnapshotError(
            f"snapshots cannot be written to {folder.resolve()}: {error.strerror}; give another snapshot_prefix"
        ) from None


def save(snapshot: Snapshot, path: Path) -> None:
    """Write `path` whole or not at all; raises SnapshotError."""
    content = {"format": _FORMAT, **{each.name: getattr(snapshot, each.name) for each in fields(snapshot)}}
    write_whole(path, lambda temporary: torch_save(content, temporary))


def torch_save(content: object, path: Path) -> None:
    """torch.save; raises the OSError, of a full disk for example, of which torch makes a RuntimeError."""
    with path.open("wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` write a temporary file, then rename it to `path`, or to what a link there names; raises
    SnapshotError."""
    try:
        with replacing(path.resolve()) as temporary:
            write(temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
    except OSError as error:
        raise SnapshotError(f"{path} cannot be written: {error.strerror or error}") from error


def load_weights(path: Path) -> dict[str, list[Tensor]]:
    """The weights by layer of a snapshot, or of a net's state_dict; raises SnapshotError."""
    content = _load(path)
    if content.get("format") == _FORMAT:
        weights: dict[str, list[Tensor]] = content["weights"]
        return weights
    found: dict[str, list[Tensor]] = {}
    for key, tensor in content.items():
        name, _, nth = str(key).rpartition(".")
        if not isinstance(tensor, Tensor) or not name or nth != str(len(found.get(name, ()))):
            raise _no_snapshot(path, f"and not a state_dict of a net: {key!r} should be a layer, a dot and a number")
        found.setdefault(name, []).append(tensor)
    return found


def load(path: Path) -> Snapshot:
    """Read a snapshot, its tensors on the CPU; raises SnapshotError."""
    content = _load(path)
    if content.get("format") != _FORMAT:
        raise _no_snapshot(path, f"its format is not {_FORMAT!r}")
    return Snapshot(**{each.name: content[each.name] for each in fields(Snapshot) if each.name in content})


def _load(path: Path) -> dict[Any, Any]:
    try:
        with path.open("rb") as file:
            content = _read(file, path)
    except OSError as error:
        raise SnapshotError(f"snapshot {path} cannot be read: {error.strerror}") from None
    if not isinstance(content, dict):
        raise _no_snapshot(path, f"it holds a {type(content).__name__}")
    return content


def _read(file: BinaryIO, path: Path) -> Any:
    if not zipfile.is_zipfile(file):
        raise _no_snapshot(path, "it is cut off, or of another format")
    file.seek(0)
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise _no_snapshot(
            path,
            "it holds more than tensors and plain values, and nothing in a snapshot is executed: it is another "
            "program's file, or damaged",
        ) from None
    except Exception as error:  # a broken file makes torch raise whatever comes first
        reason, _, _ = str(error).partition("\n")
        raise _no_snapshot(path, f"{type(error).__name__}: {reason}") from error


def _no_snapshot(path: Path, why: str) -> SnapshotError:
    return SnapshotError(f"{path} is not a snapshot of blobfeed: {why}")
