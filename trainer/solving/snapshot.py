"""Snapshots: one file with the weights and everything else that training needs to resume.

A snapshot is written under a temporary name and renamed, so a file with the final name is whole.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, fields
from pathlib import Path

from torch import Tensor

from ..net import SNAPSHOT_FORMAT, no_snapshot, read_torch, torch_save, write_whole
from ..prototxt import SnapshotError

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
    """The state of the generator that DummyData draws from, for the train net and each test net; not in older files."""


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
    content = {"format": SNAPSHOT_FORMAT, **{each.name: getattr(snapshot, each.name) for each in fields(snapshot)}}
    write_whole(path, lambda temporary: torch_save(content, temporary))


def load(path: Path) -> Snapshot:
    """Read a snapshot, its tensors on the CPU; raises SnapshotError."""
    content = read_torch(path)
    if content.get("format") != SNAPSHOT_FORMAT:
        raise no_snapshot(path, f"its format is not {SNAPSHOT_FORMAT!r}")
    return Snapshot(**{each.name: content[each.name] for each in fields(Snapshot) if each.name in content})
