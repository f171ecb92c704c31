"""A layer without a net: the hooks are called as Caffe calls them, and the tops given back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml

from ..workers.base.closing import Closing
from ..workers.base.errors import ParameterError
from ..workers.base.extras import need
from ..workers.base.param_str import parse_param_str
from .standin import Blob, BlobVector

_LayerT = TypeVar("_LayerT")
_PHASES = {"TRAIN": 0, "TEST": 1}


class LayerHarness(Closing, Generic[_LayerT]):
    """Sets a layer up and runs it, batch by batch.

        with LayerHarness(MyLayer, {"source": {"hdf5": {"path": "train.h5"}}, "batch_size": 4}) as harness:
            tops = harness.forward()
            assert tops["data"].shape == (4, 1, 8, 8)

    `param_str`: text, or a mapping that is written as YAML. `tops`: the names of the tops in the net definition; by
    default those in param_str, else data and label. `phase`: "TRAIN" or "TEST". `device`: "" for blobs as strict as
    Caffe's, over NumPy arrays; "cpu", "cuda", "cuda:1" for blobs over torch tensors. `base_dir`: what relative paths
    are taken from; None: the working directory. The tops' data is valid until the next forward.
    """

    def __init__(
        self,
        layer_class: type[_LayerT],
        param_str: str | Mapping[str, object],
        *,
        tops: Sequence[str] | None = None,
        phase: str = "TRAIN",
        device: str = "",
        base_dir: Path | str | None = None,
    ) -> None:
        if phase not in _PHASES:
            raise ParameterError(f"phase is {phase!r}: expected 'TRAIN' or 'TEST'")
        text = param_str if isinstance(param_str, str) else yaml.safe_dump(_plain(param_str))
        self.top_names = tuple(tops) if tops is not None else _declared_tops(text)
        self.layer = make_layer(layer_class, text, _PHASES[phase], base_dir)
        self._bottom = BlobVector(())
        self._top: Any = BlobVector([_blob(device) for _ in self.top_names])
        self._call("setup")
        self._call("reshape")

    def forward(self) -> dict[str, Any]:
        """Reshape and forward, as Caffe does at every iteration; gives the tops' data by name."""
        self._call("reshape")
        self._call("forward")
        return self.tops

    def reshape(self) -> None:
        self._call("reshape")

    @property
    def tops(self) -> dict[str, Any]:
        """The tops' data by name, as the last hook left it."""
        return {name: self._top[i].data for i, name in enumerate(self.top_names)}

    def close(self) -> None:
        """Close the layer, where it has a `close()`."""
        close = getattr(self.layer, "close", None)
        if close is not None:
            close()

    def _call(self, hook: str) -> None:
        getattr(self.layer, hook)(self._bottom, self._top)


def make_layer(layer_class: type[_LayerT], param_str: str, phase: int, base_dir: Path | str | None = None) -> _LayerT:
    """A layer object as Caffe makes it, before its setup."""
    made: Any = layer_class(None)  # type: ignore[call-arg]
    made.param_str = param_str
    made.phase = phase
    if base_dir is not None:
        made.base_dir = base_dir
    layer: _LayerT = made
    return layer


def _blob(device: str) -> Any:
    if not device:
        return Blob()
    need("torch", f"a harness with device {device!r}")
    from .torch_blob import TorchBlob

    return TorchBlob(device)


def _declared_tops(text: str) -> tuple[str, ...]:
    tops = parse_param_str(text).get("tops") or ("data", "label")
    return (tops,) if isinstance(tops, str) else tuple(tops)


def _plain(value: object) -> Any:
    """Tuples, paths and NumPy's numbers as the plain values that YAML knows."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, Path):
        return str(value)
    return value.item() if hasattr(value, "item") else value
