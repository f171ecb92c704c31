"""Caffe's .solverstate, read and written, as a protobuf message and as HDF5 (.h5).

The first bytes of a file tell its format; the name of a file to write does.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ...sources.stored.hdf5_library import h5py
from ..net import array_of, is_hdf5, tensor_of, tensors_of, write_blobs, write_whole
from ..prototxt import SnapshotError, SolverState, fill_blob, message_class
from .snapshot import Snapshot


def read_state(path: Path) -> Snapshot:
    """The state in a .solverstate, which names the file of its weights; raises SnapshotError."""
    hdf5 = is_hdf5(path)
    try:
        if hdf5:
            with h5py.File(path) as file:
                return Snapshot(
                    int(file["iter"][0]),
                    tensors_of(file["history"]),
                    os.fsdecode(file["learned_net"][()]),
                    int(file["current_step"][0]),
                )
        message: SolverState = message_class(SolverState).FromString(path.read_bytes())
        if not message.HasField("iter"):
            raise ValueError("it has no iteration")
        history = [tensor_of(blob) for blob in message.history]
        return Snapshot(message.iter, history, message.learned_net, message.current_step)
    except Exception as error:  # a damaged HDF5 file makes h5py raise almost anything
        raise SnapshotError(f"{path} is not a .solverstate: {error}") from error


def write_state(path: Path, state: Snapshot) -> None:
    """Write what a .solverstate holds of `state`; raises SnapshotError."""
    if path.suffix == ".h5":
        write_whole(path, lambda temporary: _write_hdf5_state(temporary, state))
        return
    message = message_class(SolverState)(
        iter=state.iteration, learned_net=state.learned_net, current_step=state.current_step
    )
    for blob in state.history:
        fill_blob(message.history.add(), array_of(blob))
    write_whole(path, lambda temporary: temporary.write_bytes(message.SerializeToString()))


def is_caffe_state(path: Path) -> bool:
    """True if `path` is a .solverstate rather than a snapshot of blobfeed, by its name."""
    return ".solverstate" in path.suffixes


def _write_hdf5_state(path: Path, state: Snapshot) -> None:
    with h5py.File(path, "w") as file:
        file["iter"] = np.array([state.iteration], np.int32)
        file["current_step"] = np.array([state.current_step], np.int32)
        file["learned_net"] = np.bytes_(os.fsencode(state.learned_net))
        write_blobs(file.create_group("history"), state.history)
