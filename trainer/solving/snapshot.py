"""Snapshots: one file that holds the weights and everything that training goes on from.

Written to a temporary name and renamed, so that a file which has its final name is whole. Read without executing
anything that a file could hold (torch's weights_only).
"""

from __future__ import annotations

import os
import pickle
import secrets
import tempfile
import zipfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ..prototxt.errors import SnapshotError

_FORMAT = "blobfeed snapshot 1"

DataStates = dict[str, dict[str, int | str]]
"""By layer: what its state_dict gave."""


@dataclass(frozen=True)
class Snapshot:
    """The state between two iterations."""

    iteration: int
    weights: dict[str, list[Tensor]]
    history: list[Tensor]
    """For each of the weights that are moved, in the order of the net's layers."""
    losses: list[float]
    """The last ones, which the displayed loss is the mean of."""
    train_data: DataStates
    test_data: list[DataStates]
    dropout: dict[str, Tensor]
    """By type of device: the state of the generator."""


def snapshot_path(prefix: str, iteration: int) -> Path:
    return Path(f"{prefix}_iter_{iteration}.pt")


def check_writable(prefix: str) -> None:
    """Make the folder of `prefix`; raises SnapshotError now, rather than after a night of training."""
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
    """Write `path` at once or not at all; raises SnapshotError."""
    content = {"format": _FORMAT, **{field.name: getattr(snapshot, field.name) for field in fields(snapshot)}}
    try:
        # A name that nobody can guess, and a file that is new: else a link that lies there would be written through.
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        new = temporary.open("xb")
        try:
            with new as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise SnapshotError(f"snapshot {path} cannot be written: {error.strerror}") from error


def load(path: Path) -> Snapshot:
    """Read a snapshot, its tensors on the CPU; raises SnapshotError."""
    try:
        with path.open("rb") as file:
            content = _read(file, path)
    except OSError as error:
        raise SnapshotError(f"snapshot {path} cannot be read: {error.strerror}") from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise _no_snapshot(path, f"expected a file that says {_FORMAT!r}")
    return Snapshot(**{field.name: content[field.name] for field in fields(Snapshot)})


def _read(file: BinaryIO, path: Path) -> Any:
    if not zipfile.is_zipfile(file):
        raise _no_snapshot(path, "it is cut off, or of another kind")
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
    return SnapshotError(f"{path} is no snapshot that blobfeed wrote: {why}")
