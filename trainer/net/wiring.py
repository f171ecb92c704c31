"""The check of a prototxt's layers: types, numbers of bottoms and tops, and which layer makes which blob."""

from __future__ import annotations

from collections.abc import Sequence

from ...workers.api import nearest
from ..layer_types import LAYER_TYPES, Layer, LayerContext
from ..prototxt import not_supported

_EVERY_LAYER_READS = frozenset(
    {"name", "type", "bottom", "top", "loss_weight", "param", "include", "exclude", "phase", "propagate_down"}
)

# Fields of a layer's parameters that change nothing here: they choose among Caffe's implementations of a formula, or
# set its log or its use of several GPUs.
_WITHOUT_EFFECT = frozenset({"engine", "force_nd_im2col", "stable_prod_grad", "share_in_parallel", "debug_info"})


def check_wiring(layers: Sequence[LayerContext]) -> None:
    """Raises PrototxtError with the line of what is wrong."""
    makers: dict[str, LayerContext] = {}
    for context in layers:
        layer_class = _layer_class(context)
        if layer_class.is_loss and not context.param.top:
            # As in Caffe, a loss need not name its top. Here that top is an output, so it needs a name.
            context.param.top.append(context.param.name)
        _check_fields(context, layer_class)
        _check_counts(context, layer_class)
        _check_bottoms(context, makers)
        _check_tops(context, layer_class, makers)


def without_effect(layers: Sequence[LayerContext]) -> list[str]:
    """The fields that these layers set and that change nothing here, such as engine."""
    found: dict[str, None] = {}
    for context in layers:
        for message in (value for _, value in context.param.ListFields() if hasattr(value, "ListFields")):
            found.update((field.name, None) for field, _ in message.ListFields() if field.name in _WITHOUT_EFFECT)
    return list(found)


def _layer_class(context: LayerContext) -> type[Layer]:
    for field in ("name", "type"):
        if not context.param.HasField(field):
            raise context.prototxt_error(f"needs a {field!r}")
    kind = context.param.type
    if kind == "WindowData":
        raise context.prototxt_error(
            "type 'WindowData', R-CNN's windows, is not supported: have a layer of the net cut regions out, as Fast "
            "R-CNN's roi layer does, and give it each picture's boxes by the parameter 'concatenate' of a data layer",
            "type",
        )
    if kind not in LAYER_TYPES:
        raise context.prototxt_error(not_supported("type", kind, sorted(LAYER_TYPES)), "type")
    return LAYER_TYPES[kind]


def _check_fields(context: LayerContext, layer_class: type[Layer]) -> None:
    for field, _ in context.param.ListFields():
        if field.name not in _EVERY_LAYER_READS and field.name not in layer_class.fields:
            raise context.prototxt_error(
                f"a layer of type {context.param.type} does not read {field.name!r}", field.name
            )


def _check_counts(context: LayerContext, layer_class: type[Layer]) -> None:
    param = context.param
    for field, count, allowed in (
        ("bottom", len(param.bottom), layer_class.bottoms),
        ("top", len(param.top), layer_class.tops),
    ):
        if count not in allowed:
            raise context.prototxt_error(f"type {param.type} needs {_range_text(allowed)} {field}, got {count}")
    for field, what in (("loss_weight", "top"), ("propagate_down", "bottom")):
        given, count = len(getattr(param, field)), len(getattr(param, what))
        if given not in (0, count):
            raise context.prototxt_error(f"needs one {field} for each of its {count} {what}s, got {given}", field)


def _range_text(allowed: range) -> str:
    if len(allowed) == 1:
        return str(allowed.start)
    return f"{allowed.start} or {allowed.stop - 1}" if len(allowed) == 2 else f"at least {allowed.start}"


def _check_bottoms(context: LayerContext, makers: dict[str, LayerContext]) -> None:
    for nth, name in enumerate(context.param.bottom):
        if name not in makers:
            hint = _maker_hint(context, name, makers)
            raise context.prototxt_error(f"no layer above makes its bottom {name!r}{hint}", "bottom", nth)


def _maker_hint(context: LayerContext, name: str, makers: dict[str, LayerContext]) -> str:
    for position, layer in enumerate(context.net.message.layer):
        if name in layer.top and name not in layer.bottom:  # in place it makes no blob
            where = context.net.where("layer", position)
            return f"; layer {layer.name!r} ({where}) does, but it stands below or is not in this phase"
    return nearest(name, makers)


def _check_tops(context: LayerContext, layer_class: type[Layer], makers: dict[str, LayerContext]) -> None:
    for nth, name in enumerate(context.param.top):
        if name in context.param.bottom[nth : nth + 1]:
            if not layer_class.in_place:
                raise context.prototxt_error(
                    f"type {context.param.type} cannot work in place: give its top {name!r} another name", "top", nth
                )
        elif name in makers:
            maker = makers[name]
            where = maker.net.where("layer", maker.position)
            raise context.prototxt_error(
                f"its top {name!r} is already made by layer {maker.param.name!r} ({where})", "top", nth
            )
        makers[name] = context
