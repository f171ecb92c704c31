"""Values of options that no layer of a type can work with, whatever its bottoms: a row each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..prototxt.schema import NormRegion, PoolMethod

Refusal = tuple[str, Callable[[Any, Any], bool], str]
"""An option, if its value is wrong beside the other options, and the message; "{}" in it stands for the value."""


def _below_one(*names: str) -> list[Refusal]:
    return [(name, lambda value, options: value < 1, f"{name} must be at least 1, got {{}}") for name in names]


def _missing(param: str, name: str) -> Refusal:
    return name, lambda value, options: not options.HasField(name), f"{param} needs {name!r}"


def _named_twice(older: str) -> Refusal:
    both = f"give axis or {older}, not both"
    return older, lambda value, options: options.HasField(older) and options.HasField("axis"), both


_NO_BASE: Refusal = (
    "base",
    lambda base, options: base != -1 and (base <= 0 or base == 1),
    "base must be -1 (for e) or positive and not 1, got {:g}",
)
_NO_SHARE: Refusal = (
    "dropout_ratio",
    lambda ratio, options: not 0 <= ratio < 1,
    "dropout_ratio must be at least 0 and below 1, got {:g}",
)
_NO_EFFECT: Refusal = (
    "k",
    lambda k, options: options.norm_region == NormRegion.WITHIN_CHANNEL and options.HasField("k"),
    "k has no effect with WITHIN_CHANNEL in Caffe",
)

REFUSALS: dict[str, Sequence[Refusal]] = {
    "Clip": [_missing("clip_param", "min"), _missing("clip_param", "max")],
    "Concat": [_named_twice("concat_dim")],
    "Convolution": _below_one("num_output"),
    "Deconvolution": _below_one("num_output"),
    "Dropout": [_NO_SHARE],
    "Embed": _below_one("num_output", "input_dim"),
    "Exp": [_NO_BASE],
    "HDF5Output": [("file_name", lambda name, options: not name, "hdf5_output_param needs a file_name")],
    "InnerProduct": _below_one("num_output"),
    "Log": [_NO_BASE],
    "LRN": [("local_size", lambda size, options: size % 2 == 0, "local_size must be odd"), _NO_EFFECT],
    "LSTM": _below_one("num_output"),
    "MemoryData": _below_one("batch_size", "channels", "height", "width"),
    "RNN": _below_one("num_output"),
    "Slice": [_named_twice("slice_dim")],
    "SPP": [
        *_below_one("pyramid_height"),
        ("pool", lambda pool, options: pool == PoolMethod.STOCHASTIC, "pool: STOCHASTIC is not supported here"),
    ],
    "Tile": _below_one("tiles"),
}
"""By layer type."""
