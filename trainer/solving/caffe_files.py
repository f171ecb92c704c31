"""Caffe's own files, read and written: .caffemodel and .solverstate, as protobuf messages and as HDF5 (.h5).

The first bytes of a file tell its format; the name of a file to write does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...workers.sources.stored.hdf5_library import h5py
from ..layer_types.blobs import gradient_of
from ..net.graph import Net
from ..prototxt.blob_proto import fill_blob, to_array
from ..prototxt.errors import SnapshotError
from ..prototxt.schema import BlobProto, NetParameter, SolverState, message_class
from .snapshot import Snapshot, load_weights, write_whole

LayerWeights = Mapping[str, Sequence[Tensor]]


def read_caffemodel(path: Path) -> dict[str, list[Tensor]]:
    """The weights by layer; raises SnapshotError."""
    is_hdf5 = _is_hdf5(path)
    try:
        if is_hdf5:
            with h5py.File(path) as file:
                return _layers(file["data"])
        net: NetParameter = message_class(NetParameter).FromString(path.read_bytes())
        blobs = [(layer.name, layer.blobs) for layer in net.layer]
        blobs += [(old.layer.name or old.name, old.layer.blobs or old.blobs) for old in net.layers]
        found = {name: [_tensor(blob) for blob in each] for name, each in blobs if each}
    except Exception as error:  # a damaged HDF5 file makes h5py raise almost anything
        raise SnapshotError(f"{path} is not a .caffemodel: {error}") from error
    if not found:
        raise SnapshotError(f"{path} is not a .caffemodel, or has no weights")
    return found


def write_caffemodel(
    path: Path, weights: LayerWeights, net: Net | None = None, *, with_diff: bool = False, hdf5: bool = False
) -> None:
    """Write `weights` by layer; with `net`, also the parameters of its layers; with_diff, also their diffs.

    The HDF5 form has weights and diffs only. It is written if `hdf5`, or if the name ends in .h5.
    """
    diffs = {}
    if net is not None and with_diff:
        diffs = {name: [gradient_of(blob) for blob in layer.blobs] for name, layer in net.layers.items()}
    if hdf5 or path.suffix == ".h5":
        write_whole(path, lambda temporary: _write_hdf5_model(temporary, weights, diffs))
        return
    message = message_class(NetParameter)()
    if net is not None:
        message.name = net.document.message.name
    for name in weights if net is None else net.layers:
        layer = message.layer.add()
        if net is not None:
            layer.ParseFromString(net.layers[name].param.SerializeToString())
        layer.name = name
        for nth, blob in enumerate(weights.get(name, ())):
            fill_blob(layer.blobs.add(), _array(blob), _array(diffs[name][nth]) if name in diffs else None)
    write_whole(path, lambda temporary: temporary.write_bytes(message.SerializeToString()))


def read_state(path: Path) -> Snapshot:
    """The state in a .solverstate, which names the file of its weights; raises SnapshotError."""
    is_hdf5 = _is_hdf5(path)
    try:
        if is_hdf5:
            with h5py.File(path) as file:
                return Snapshot(
                    int(file["iter"][0]),
                    _tensors(file["history"]),
                    os.fsdecode(file["learned_net"][()]),
                    int(file["current_step"][0]),
                )
        message: SolverState = message_class(SolverState).FromString(path.read_bytes())
        if not message.HasField("iter"):
            raise ValueError("it has no iteration")
        history = [_tensor(blob) for blob in message.history]
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
        fill_blob(message.history.add(), _array(blob))
    write_whole(path, lambda temporary: temporary.write_bytes(message.SerializeToString()))


def read_weights(path: Path) -> dict[str, list[Tensor]]:
    """The weights by layer in a snapshot, a .caffemodel or a state_dict; raises SnapshotError."""
    return load_weights(path) if _first_bytes(path).startswith(b"PK") else read_caffemodel(path)


def is_caffe_state(path: Path) -> bool:
    """Whether `path` is a .solverstate rather than a snapshot of blobfeed, by its name."""
    return ".solverstate" in path.suffixes


def _is_hdf5(path: Path) -> bool:
    return _first_bytes(path).startswith(b"\x89HDF")


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(8)
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read: {error.strerror}") from None


def _write_hdf5_model(path: Path, weights: LayerWeights, diffs: LayerWeights) -> None:
    with h5py.File(path, "w") as file:
        for kind, layers in (("data", weights), ("diff", diffs)):
            for name, blobs in layers.items():
                _write_blobs(file.require_group(f"{kind}/{name}"), blobs)


def _write_hdf5_state(path: Path, state: Snapshot) -> None:
    with h5py.File(path, "w") as file:
        file["iter"] = np.array([state.iteration], np.int32)
        file["current_step"] = np.array([state.current_step], np.int32)
        file["learned_net"] = np.bytes_(os.fsencode(state.learned_net))
        _write_blobs(file.create_group("history"), state.history)


def _write_blobs(group: Any, blobs: Iterable[Tensor]) -> None:
    for nth, blob in enumerate(blobs):
        group[str(nth)] = _array(blob)


def _layers(group: Any) -> dict[str, list[Tensor]]:
    """By layer; a layer's name may have slashes, which make groups of groups."""
    found: dict[str, Any] = {}

    def visit(_: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[item.parent.name.removeprefix(f"{group.name}/")] = item.parent

    group.visititems(visit)
    return {name: _tensors(layer) for name, layer in found.items()}


def _tensors(group: Any) -> list[Tensor]:
    """By number; an empty one for a number that is not there: Caffe leaves out what another layer shares with this."""
    found = {int(name): torch.from_numpy(item[()]) for name, item in group.items() if isinstance(item, h5py.Dataset)}
    missing = torch.empty(0)
    return [found.get(nth, missing) for nth in range(max(found, default=-1) + 1)]


def _tensor(blob: BlobProto) -> Tensor:
    return torch.from_numpy(to_array(blob))


def _array(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().numpy()
