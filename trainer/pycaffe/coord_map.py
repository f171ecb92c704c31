"""The place of a pixel of one top in another, so that nets as FCN's can be written without counting offsets.

A map is (axis, scale, shift): what lies at x on a spatial axis of the one lies at scale · x + shift in the other.
`axis` is the one of the channels, and None if the layers are the same for all axes; scale and shift are a number for
all spatial axes or one for each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..layer_types import LAYER_TYPES, Elementwise
from ..prototxt import NetError
from .net_spec import Function, Top, layers

Map = tuple[int | None, Any, Any]

_IDENTITY: Map = (None, 1.0, 0.0)


class UndefinedMapException(NetError, RuntimeError):
    """A layer has no map: each number of its top depends on all positions, or on which is not known.

    A RuntimeError too, which is what pycaffe raises for tops that are not connected.
    """


class CropError(NetError, AssertionError):
    """Two tops differ in scale, or by an offset that no crop has. An AssertionError too, as in pycaffe."""


class AxisMismatchException(NetError):
    """Two layers with different axes of channels follow each other."""


def coord_map(fn: Function) -> Map:
    """From the first bottom of a layer to its tops; raises UndefinedMapException."""
    if fn.kind in ("Eltwise", "Split") or issubclass(LAYER_TYPES.get(fn.kind, object), Elementwise):
        return _IDENTITY
    layer = fn.message()
    if fn.kind == "Crop":
        return layer.crop_param.axis - 1, 1.0, -_numbers(layer.crop_param, "offset", 0)
    options = layer.pooling_param if fn.kind == "Pooling" else layer.convolution_param
    slides = fn.kind in ("Convolution", "Deconvolution", "Im2col", "Pooling")
    if not slides or getattr(options, "global_pooling", False):
        raise UndefinedMapException(f"a layer of type {fn.kind} maps no position of its bottom to one of its top")
    stride, pad = _numbers(options, "stride", 1), _numbers(options, "pad", 0)
    dilation = _numbers(options, "dilation", 1) if fn.kind != "Pooling" else 1
    middle = dilation * (_numbers(options, "kernel_size", 1) - 1) / 2
    axis = 1 if fn.kind == "Pooling" else int(options.axis)
    return (axis, stride, middle - pad) if fn.kind == "Deconvolution" else (axis, 1 / stride, (pad - middle) / stride)


def coord_map_from_to(top_from: Top, top_to: Top) -> Map:
    """The map from `top_from` to `top_to`, over a top that both are made from; raises UndefinedMapException."""
    origins = _maps(top_from)
    for top, (axis, scale, shift) in _maps(top_to).items():
        if top in origins:
            own_axis, own_scale, own_shift = origins[top]
            return _composed((axis, scale, shift), (own_axis, 1 / own_scale, -own_shift / own_scale))
    raise UndefinedMapException("the two tops are not connected by layers that map positions")


def crop(top_from: Top, top_to: Top) -> Top:
    """A Crop layer that cuts `top_from` to the size of `top_to`, where it shows the same; raises CropError."""
    axis, scale, shift = coord_map_from_to(top_from, top_to)
    scales, offsets = np.atleast_1d(scale), -np.atleast_1d(shift)
    whole = offsets.round().astype(int)  # thirds, as of a stride of 3, are not exact
    if not (np.allclose(scales, 1) and np.allclose(offsets, whole) and (whole >= 0).all()):
        raise CropError(
            f"a crop needs tops of one scale and an offset of whole pixels, got scale {scales.tolist()} and offset "
            f"{offsets.tolist()}"
        )
    first = 1 if axis is None else axis
    made: Top = layers.Crop(top_from, top_to, crop_param={"axis": first + 1, "offset": whole.tolist()})
    return made


def _maps(top: Top) -> dict[Top, Map]:
    """To `top`, from each of the tops that it is made from by layers that map positions; the nearest come first."""
    found, reached = {top: _IDENTITY}, [top]
    for each in reached:  # which grows meanwhile
        bottoms = each.fn.bottoms[:1] if each.fn.kind == "Crop" else each.fn.bottoms
        try:
            steps = {bottom: _composed(found[each], coord_map(each.fn)) for bottom in bottoms if bottom not in found}
        except UndefinedMapException:
            continue
        found |= steps
        reached += steps
    return found


def _composed(second: Map, first: Map) -> Map:
    axes = {axis for axis in (first[0], second[0]) if axis is not None}
    if len(axes) > 1:
        raise AxisMismatchException(f"layers whose channels are on the axes {sorted(axes)} follow each other")
    return next(iter(axes), None), first[1] * second[1], second[1] * first[2] + second[2]


def _numbers(options: Any, field: str, default: int) -> NDArray[np.float64]:
    """One number for all spatial axes, or one for each."""
    edges = [f"{field.removesuffix('_size')}_{edge}" for edge in "hw"]
    if any(name in options.DESCRIPTOR.fields_by_name and options.HasField(name) for name in edges):
        return np.array([getattr(options, name) for name in edges], np.float64)
    given = np.atleast_1d(np.array(getattr(options, field), np.float64))
    return given if given.size else np.array([default], np.float64)
