"""Files of weights, read and written: .caffemodel, its HDF5 form (.h5), and torch's own (.pt).

The first bytes of a file tell its format; the name of a file to write does. Reading one executes nothing that the file
may contain (torch's weights_only).
"""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ...sources.stored.hdf5_library import h5py
from ...workers.base import replacing
from ..layer_types import Layer, gradient_of
from ..prototxt import BlobProto, NetParameter, SnapshotError, fill_blob, message_class, to_array

LayerWeights = Mapping[str, Sequence[Tensor]]

_MOST_MISSING = 16
"""More weights in a row than a layer can lack in a state_dict; a higher number is another program's."""

SNAPSHOT_FORMAT = "blobfeed snapshot 1"


def read_weights(path: Path) -> dict[str, list[Tensor]]:
    """The weights by layer in a snapshot, a .caffemodel or a state_dict; raises SnapshotError."""
    if _first_bytes(path).startswith(b"PK"):
        return _of_torch(path)
    hdf5 = is_hdf5(path)
    try:
        if hdf5:
            with h5py.File(path) as file:
                return _layers(file["data"])
        net: NetParameter = message_class(NetParameter).FromString(path.read_bytes())
        blobs = [(layer.name, layer.blobs) for layer in net.layer]
        blobs += [(old.layer.name or old.name, old.layer.blobs or old.blobs) for old in net.layers]
        found = {name: [tensor_of(blob) for blob in each] for name, each in blobs if each}
    except Exception as error:  # a damaged HDF5 file makes h5py raise almost anything
        raise SnapshotError(f"{path} is not a .caffemodel: {error}") from error
    if not found:
        raise SnapshotError(f"{path} is not a .caffemodel, or has no weights")
    return found


def write_weights(
    path: Path,
    weights: LayerWeights,
    layers: Mapping[str, Layer] | None = None,
    name: str = "",
    *,
    with_diff: bool = False,
    hdf5: bool = False,
) -> None:
    """Write `weights` by layer: in HDF5 if `hdf5` or the name ends in .h5, as a state_dict if in .pt, else as a
    .caffemodel.

    `layers`: a .caffemodel gets their parameters too. `with_diff`: a .caffemodel and the HDF5 form get the diffs of
    `layers` too. `name`: the net's, in a .caffemodel.
    """
    if path.suffix == ".pt" and not hdf5:
        state = {
            f"{key}.{nth}": blob for key, blobs in weights.items() for nth, blob in enumerate(blobs) if blob.numel()
        }
        write_whole(path, lambda temporary: torch_save(state, temporary))
        return
    diffs = {}
    if layers is not None and with_diff:
        diffs = {key: [gradient_of(blob) for blob in layer.blobs] for key, layer in layers.items()}
    if hdf5 or path.suffix == ".h5":
        write_whole(path, lambda temporary: _write_hdf5_model(temporary, weights, diffs))
        return
    message = message_class(NetParameter)(**({"name": name} if name else {}))
    for key in weights if layers is None else layers:
        layer = message.layer.add()
        if layers is not None:
            layer.ParseFromString(layers[key].param.SerializeToString())
        layer.name = key
        for nth, blob in enumerate(weights.get(key, ())):
            fill_blob(layer.blobs.add(), array_of(blob), array_of(diffs[key][nth]) if key in diffs else None)
    write_whole(path, lambda temporary: temporary.write_bytes(message.SerializeToString()))


def _of_torch(path: Path) -> dict[str, list[Tensor]]:
    """The weights by layer of a snapshot, or of a net's state_dict; raises SnapshotError."""
    content = read_torch(path)
    if content.get("format") == SNAPSHOT_FORMAT:
        weights: dict[str, list[Tensor]] = content["weights"]
        return weights
    found: dict[str, list[Tensor]] = {}
    for key, tensor in content.items():
        name, _, nth = str(key).rpartition(".")
        blobs = found.setdefault(name, [])
        # Weights that the layer has from another one in another shape are not there.
        missing = int(nth) - len(blobs) if nth.isdecimal() else -1
        if not isinstance(tensor, Tensor) or not name or not 0 <= missing < _MOST_MISSING:
            raise no_snapshot(path, f"and not a state_dict of a net: {key!r} should be a layer, a dot and a number")
        blobs += [*[torch.empty(0)] * missing, tensor]
    return found


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
    SnapshotError.
    """
    try:
        with replacing(path.resolve()) as temporary:
            write(temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
    except OSError as error:
        raise SnapshotError(f"{path} cannot be written: {error.strerror or error}") from error


def read_torch(path: Path) -> dict[Any, Any]:
    try:
        with path.open("rb") as file:
            content = _read(file, path)
    except OSError as error:
        raise SnapshotError(f"snapshot {path} cannot be read: {error.strerror}") from None
    if not isinstance(content, dict):
        raise no_snapshot(path, f"it holds a {type(content).__name__}")
    return content


def _read(file: BinaryIO, path: Path) -> Any:
    if not zipfile.is_zipfile(file):
        raise no_snapshot(path, "it is cut off, or of another format")
    file.seek(0)
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise no_snapshot(
            path,
            "it holds more than tensors and plain values, and nothing in a snapshot is executed: it is another "
            "program's file, or damaged",
        ) from None
    except Exception as error:  # a broken file makes torch raise whatever comes first
        reason, _, _ = str(error).partition("\n")
        raise no_snapshot(path, f"{type(error).__name__}: {reason}") from error


def no_snapshot(path: Path, why: str) -> SnapshotError:
    return SnapshotError(f"{path} is not a snapshot of blobfeed: {why}")


def is_hdf5(path: Path) -> bool:
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
                write_blobs(file.require_group(f"{kind}/{name}"), blobs)


def write_blobs(group: Any, blobs: Iterable[Tensor]) -> None:
    for nth, blob in enumerate(blobs):
        if blob.numel():  # another layer has it, and Caffe reads a file that leaves it out
            group[str(nth)] = array_of(blob)


def _layers(group: Any) -> dict[str, list[Tensor]]:
    """By layer; a layer's name may have slashes, which make groups of groups."""
    found: dict[str, Any] = {}

    def visit(_: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[item.parent.name.removeprefix(f"{group.name}/")] = item.parent

    group.visititems(visit)
    return {name: tensors_of(layer) for name, layer in found.items()}


def tensors_of(group: Any) -> list[Tensor]:
    """By number; an empty one for a number that is not there: Caffe leaves out what another layer shares with this."""
    found = {int(name): torch.from_numpy(item[...]) for name, item in group.items() if isinstance(item, h5py.Dataset)}
    missing = torch.empty(0)
    return [found.get(nth, missing) for nth in range(max(found, default=-1) + 1)]


def tensor_of(blob: BlobProto) -> Tensor:
    return torch.from_numpy(to_array(blob))


def array_of(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().numpy()
