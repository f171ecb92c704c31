"""Runs a layer without a net: calls its hooks as Caffe does, and returns its tops."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from ..readers.opening import drawn_epoch, postprocessed_batch
from ..workers.api import AnyArray, IndexArray, Rows
from ..workers.base import Closing, ParameterError, need, shortens_tracebacks
from ..workers.plan import Plan, decoded_sample
from .caffe_base import new_layer
from .multi_process_input_layer import MultiProcessInputLayer
from .param_str import parse_param_str
from .standin import Blob, BlobVector

_LayerT = TypeVar("_LayerT")
_PHASES = {"TRAIN": 0, "TEST": 1}


class LayerHarness(Closing, Generic[_LayerT]):
    """Sets a layer up and runs it, batch by batch.

        with LayerHarness(MyLayer, {"source": {"hdf5": {"path": "train.h5"}}, "batch_size": 4}) as harness:
            tops = harness.forward()
            assert tops["data"].shape == (4, 1, 8, 8)
            harness.decode(17)["data"]             # one sample; this runs in this process, for a debugger

    `param_str`: text or a mapping. A mapping reaches the layer as text that YAML and Python's eval read alike, unless
    it holds arrays or Source objects. `tops`: the names of the tops in the net definition, one needs no list; by
    default those in param_str, else data and label. `phase`: "TRAIN" or "TEST". `device`: "" for blobs as strict as
    Caffe's, over NumPy arrays; "cpu", "cuda", "cuda:1" for those of the embedded trainer, over torch tensors.
    `base_dir`: the folder of relative paths; None: the working directory. The tops' data is valid until the next
    forward.
    """

    @shortens_tracebacks
    def __init__(
        self,
        layer_class: type[_LayerT],
        param_str: str | Mapping[str, object],
        *,
        tops: str | Sequence[str] | None = None,
        phase: str = "TRAIN",
        device: str = "",
        base_dir: Path | str | None = None,
    ) -> None:
        if phase not in _PHASES:
            raise ParameterError(f"phase is {phase!r}: expected 'TRAIN' or 'TEST'")
        text = param_str if isinstance(param_str, str) else _as_text(param_str)
        if tops is None:
            tops = _declared_tops(text)
        self.top_names: tuple[str, ...] = (tops,) if isinstance(tops, str) else tuple(tops)
        self.layer = make_layer(layer_class, text, _PHASES[phase], base_dir)
        self._bottom = BlobVector(())
        self._top: Any = BlobVector([_blob(device) for _ in self.top_names])
        self._call("setup")
        self._call("reshape")

    def forward(self) -> dict[str, Any]:
        """Reshape and forward, as Caffe does at every iteration; returns the tops' data by name."""
        __tracebackhide__ = True
        self._call("reshape")
        self._call("forward")
        return self.tops

    def reshape(self) -> None:
        self._call("reshape")

    def decode(self, index: int, epoch: int = 0) -> dict[str, AnyArray]:
        """Decode, crop and mirror sample `index` in this process; returns its arrays by top.

        `breakpoint()` works in decode. Mean and scale are applied later, with the copy into the tops. For a stream,
        `index` counts the samples of its first shard.
        """
        return decoded_sample(self._plan("decode"), index, epoch)

    def postprocess(self, indices: Sequence[int] | IndexArray, epoch: int = 0) -> dict[str, Rows]:
        """Decode and postprocess a batch of these samples in this process; returns its arrays by top."""
        return postprocessed_batch(self._plan("postprocess"), indices, epoch)

    def sampler(self, epoch: int = 0) -> IndexArray:
        """Draw `epoch` in this process; returns its sample indices in order, for all ranks."""
        return drawn_epoch(self._plan("sampler"), epoch).indices

    def batch_sampler(self, epoch: int = 0) -> list[IndexArray]:
        """Draw `epoch` by the layer's batch sampler; returns the indices of each batch. Raises ParameterError."""
        drawn = drawn_epoch(self._plan("batch_sampler"), epoch)
        if drawn.sizes is None:
            raise ParameterError(f"batch_sampler: {type(self.layer).__name__} has none; see sampler")
        return np.split(drawn.indices, np.cumsum(drawn.sizes)[:-1])

    @property
    def tops(self) -> dict[str, Any]:
        """The tops' data by name, in the state after the last hook."""
        return {name: self._top[i].data for i, name in enumerate(self.top_names)}

    def close(self) -> None:
        """Close the layer, if it has a `close()`."""
        close = getattr(self.layer, "close", None)
        if close is not None:
            close()

    def _plan(self, what: str) -> Plan:
        if not isinstance(self.layer, MultiProcessInputLayer):
            raise ParameterError(
                f"{what}: {type(self.layer).__name__} is no MultiProcessInputLayer, so it makes no samples of its own"
            )
        return self.layer.plan

    def _call(self, hook: str) -> None:
        __tracebackhide__ = True
        getattr(self.layer, hook)(self._bottom, self._top)


def make_layer(
    layer_class: type[_LayerT], param_str: str | Mapping[str, object], phase: int, base_dir: Path | str | None = None
) -> _LayerT:
    """Construct a layer the way Caffe does, before its setup."""
    made = new_layer(layer_class, None)
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
    import torch

    from . import torch_blob

    return torch_blob.Blob(torch.device(device))


def _declared_tops(param_str: str | Mapping[str, object]) -> Any:
    try:
        return parse_param_str(param_str).get("tops") or ("data", "label")
    except ParameterError:
        return "data", "label"  # the layer checks the text itself: its setup may replace it by a mapping


def _as_text(values: Mapping[str, object]) -> str | Mapping[str, object]:
    plain: dict[str, object] = _plain(values)
    try:
        return _literal(plain)
    except TypeError:
        return plain


def _literal(value: object) -> str:
    """Return text that Python's eval and YAML read alike: a layer's own setup may use either.

    YAML has no None, and reads the word as text. Raises TypeError for arrays, other objects, and numbers such as NaN.
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and math.isfinite(value):
        return re.sub(r"^(-?\d+)e", r"\1.0e", repr(value))  # 1e-05 is text in YAML
    if value is None or isinstance(value, bool | int):
        return repr(value)
    raise TypeError(f"{type(value).__name__} has no literal")


def _plain(value: object) -> Any:
    """Return tuples as lists, paths as text, and NumPy's numbers as Python's."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, Path):
        return str(value)
    return value.item() if isinstance(value, np.generic) else value
