"""Options of a layer that would be ignored, or work in another way than in Caffe, without a word: a row each.

An option that makes a forward fail needs no row, if the error says why: `Layer.top_shapes` tries one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..prototxt import MOVED, EltwiseOp, NormRegion, PoolMethod

Refusal = tuple[str, Callable[[Any], object], str]
"""A field; if it is wrong; the message, with "{}" for the field's value.

The field is one of the type's own options, and these decide; or it is one of the layer, as ".transform_param", and the
LayerParameter decides.
"""


def _below_one(*names: str) -> list[Refusal]:
    def refusal(name: str) -> Refusal:
        return name, lambda own: getattr(own, name) < 1, f"{name} must be at least 1, got {{}}"

    return [refusal(name) for name in names]


def _missing(param: str, *names: str) -> list[Refusal]:
    def refusal(name: str) -> Refusal:
        return name, lambda own: not own.HasField(name), f"{param} needs {name!r}"

    return [refusal(name) for name in names]


def _moved(param: str) -> list[Refusal]:
    def elsewhere(name: str) -> Refusal:
        return name, lambda own: own.HasField(name), f"{name!r} belongs in transform_param"

    return list(map(elsewhere, MOVED[param]))


def _named_twice(older: str) -> Refusal:
    return older, lambda own: own.HasField(older) and own.HasField("axis"), f"give axis or {older}, not both"


def _padded(own: Any) -> bool:
    return any((own.pad, own.pad_h, own.pad_w))


def _slides(own: Any) -> bool:
    strides = {own.stride, own.stride_h or 1, own.stride_w or 1}
    return any(map(own.HasField, ("kernel_size", "kernel_h", "kernel_w"))) or strides != {1} or _padded(own)


_BASE: Refusal = (
    "base",
    lambda own: own.base != -1 and (own.base <= 0 or own.base == 1),
    "base must be -1 (for e) or positive and not 1, got {:g}",
)

REFUSALS: dict[str, Sequence[Refusal]] = {
    "Clip": _missing("clip_param", "min", "max"),
    "Concat": [_named_twice("concat_dim")],
    "Convolution": _below_one("num_output"),
    "Data": [
        *_missing("data_param", "source"),
        *_moved("data_param"),
        (
            ".transform_param",
            lambda layer: layer.transform_param.force_color and layer.transform_param.force_gray,
            "force_color and force_gray exclude each other",
        ),
    ],
    "Deconvolution": _below_one("num_output"),
    "Dropout": [
        (
            "dropout_ratio",
            lambda own: not 0 <= own.dropout_ratio < 1,
            "dropout_ratio must be at least 0 and below 1, got {:g}",
        )
    ],
    "Eltwise": [
        ("coeff", lambda own: own.coeff and own.operation != EltwiseOp.SUM, "coeff works only with operation: SUM"),
    ],
    "Embed": _below_one("num_output"),
    "Exp": [_BASE],
    "HDF5Data": _missing("hdf5_data_param", "source"),
    "HDF5Output": [("file_name", lambda own: not own.file_name, "hdf5_output_param needs a file_name")],
    "Im2col": [("axis", lambda own: own.axis not in (1, -3), "axis must be 1, that of the channels, got {}")],
    "ImageData": [*_missing("image_data_param", "source"), *_moved("image_data_param")],
    "InnerProduct": _below_one("num_output"),
    "Log": [_BASE],
    "LRN": [
        ("local_size", lambda own: own.local_size % 2 == 0, "local_size must be odd"),
        (
            "k",
            lambda own: own.norm_region == NormRegion.WITHIN_CHANNEL and own.HasField("k"),
            "k has no effect with WITHIN_CHANNEL in Caffe",
        ),
    ],
    "LSTM": _below_one("num_output"),
    "MemoryData": _below_one("batch_size", "channels", "height", "width"),
    "Pooling": [
        ("pool", lambda own: own.pool == PoolMethod.STOCHASTIC and _padded(own), "pool: STOCHASTIC takes no pad"),
        (
            "global_pooling",
            lambda own: own.global_pooling and _slides(own),
            "global_pooling takes no kernel, no stride but 1 and no pad but 0",
        ),
        (
            ".top",
            lambda layer: layer.pooling_param.pool != PoolMethod.MAX and len(layer.top) > 1,
            "only pool: MAX has a second top",
        ),
    ],
    "Python": _missing("python_param", "module"),
    "RNN": _below_one("num_output"),
    "Slice": [_named_twice("slice_dim")],
    "SPP": [
        *_below_one("pyramid_height"),
        ("pool", lambda own: own.pool == PoolMethod.STOCHASTIC, "pool: STOCHASTIC is not supported here"),
    ],
    "Tile": _below_one("tiles"),
}
"""By layer type."""
