"""Options that no layer of a type can work with, whatever its bottoms' shapes: a row each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..prototxt.schema import EltwiseOp, NormRegion, PoolMethod

Refusal = tuple[str, Callable[[Any, Any], object], str]
"""An option, or "" for the layer; if it is wrong, by the type's own options and the LayerParameter; the message.

"{}" in the message stands for the option's value.
"""


def _below_one(*names: str) -> list[Refusal]:
    def refusal(name: str) -> Refusal:
        return name, lambda own, layer: getattr(own, name) < 1, f"{name} must be at least 1, got {{}}"

    return [refusal(name) for name in names]


def _missing(param: str, *names: str) -> list[Refusal]:
    def refusal(name: str) -> Refusal:
        return name, lambda own, layer: not own.HasField(name), f"{param} needs {name!r}"

    return [refusal(name) for name in names]


def _files(param: str, *moved: str) -> list[Refusal]:
    """Of a layer over files; `moved`: fields that Caffe reads in transform_param, and before 2014 read here."""

    def needed(name: str) -> Refusal:
        return name, lambda own, layer: not getattr(own, name), f"{param} needs {name!r}"

    def elsewhere(name: str) -> Refusal:
        return name, lambda own, layer: own.HasField(name), f"{name!r} belongs in transform_param"

    return [*map(needed, ("source", "batch_size")), *map(elsewhere, moved)]


def _named_twice(older: str) -> Refusal:
    both = f"give axis or {older}, not both"
    return older, lambda own, layer: own.HasField(older) and own.HasField("axis"), both


_TRANSFORM = "mean_file", "crop_size", "mirror"
_CONVOLUTION: list[Refusal] = [
    *_below_one("num_output"),
    ("", lambda own, layer: len(layer.top) != len(layer.bottom), "needs as many tops as bottoms"),
]
_NO_BASE: Refusal = (
    "base",
    lambda own, layer: own.base != -1 and (own.base <= 0 or own.base == 1),
    "base must be -1 (for e) or positive and not 1, got {:g}",
)

REFUSALS: dict[str, Sequence[Refusal]] = {
    "Clip": _missing("clip_param", "min", "max"),
    "Concat": [_named_twice("concat_dim")],
    "Convolution": _CONVOLUTION,
    "Data": _files("data_param", "scale", *_TRANSFORM),
    "Deconvolution": _CONVOLUTION,
    "Dropout": [
        (
            "dropout_ratio",
            lambda own, layer: not 0 <= own.dropout_ratio < 1,
            "dropout_ratio must be at least 0 and below 1, got {:g}",
        )
    ],
    "Eltwise": [
        (
            "coeff",
            lambda own, layer: len(own.coeff) not in (0, len(layer.bottom)),
            "needs one coeff for each of its bottoms, got {}",
        ),
        (
            "coeff",
            lambda own, layer: own.coeff and own.operation != EltwiseOp.SUM,
            "coeff works only with operation: SUM",
        ),
    ],
    "Embed": _below_one("num_output", "input_dim"),
    "Exp": [_NO_BASE],
    "Filter": [
        ("", lambda own, layer: len(layer.top) != len(layer.bottom) - 1, "needs one top for each bottom but the last")
    ],
    "HDF5Data": _files("hdf5_data_param"),
    "HDF5Output": [("file_name", lambda own, layer: not own.file_name, "hdf5_output_param needs a file_name")],
    "ImageData": [
        *_files("image_data_param", "scale", *_TRANSFORM),
        ("", lambda own, layer: bool(own.new_height) != bool(own.new_width), "new_height and new_width go together"),
    ],
    "InnerProduct": _below_one("num_output"),
    "Log": [_NO_BASE],
    "LRN": [
        ("local_size", lambda own, layer: own.local_size % 2 == 0, "local_size must be odd"),
        (
            "k",
            lambda own, layer: own.norm_region == NormRegion.WITHIN_CHANNEL and own.HasField("k"),
            "k has no effect with WITHIN_CHANNEL in Caffe",
        ),
    ],
    "LSTM": _below_one("num_output"),
    "MemoryData": _below_one("batch_size", "channels", "height", "width"),
    "Python": _missing("python_param", "module", "layer"),
    "Reshape": [
        (
            "shape",
            lambda own, layer: min(own.shape.dim, default=0) < -1 or list(own.shape.dim).count(-1) > 1,
            "dim must be 0, positive, or once -1, got {.dim}",
        )
    ],
    "RNN": _below_one("num_output"),
    "Slice": [
        _named_twice("slice_dim"),
        (
            "slice_point",
            lambda own, layer: len(own.slice_point) not in (0, len(layer.top) - 1),
            "needs one slice_point less than its tops, got {}",
        ),
    ],
    "SPP": [
        *_below_one("pyramid_height"),
        ("pool", lambda own, layer: own.pool == PoolMethod.STOCHASTIC, "pool: STOCHASTIC is not supported here"),
    ],
    "Tile": _below_one("tiles"),
    "WindowData": _files("window_data_param", *_TRANSFORM),  # its scale counts here alone
}
"""By layer type."""
