"""Whether the layers of a prototxt make a net: types, numbers of bottoms and tops, and who makes which blob."""

from __future__ import annotations

from collections.abc import Sequence

from ...workers.base.checks import nearest
from ..layer_types.layer import LAYER_TYPES, Layer
from ..prototxt.prototxt import Document
from ..prototxt.schema import LayerParameter, NetParameter

_EVERY_LAYER_READS = frozenset({"name", "type", "bottom", "top", "loss_weight", "param", "include", "exclude"})


def check_wiring(net: Document[NetParameter], positions: Sequence[int]) -> None:
    """Check the layers at `positions`; raises PrototxtError with the line of what is wrong."""
    made: dict[str, int] = {}
    names: set[str] = set()
    for position in positions:
        layer = net.message.layer[position]
        layer_class = _layer_class(net, position)
        if layer.name in names:
            raise net.error(f"a second layer is called {layer.name!r}", "layer", position, "name")
        names.add(layer.name)
        _check_fields(net, position, layer_class)
        _check_counts(net, position, layer_class)
        _check_bottoms(net, position, made)
        _check_tops(net, position, layer_class, made)


def _layer_class(net: Document[NetParameter], position: int) -> type[Layer]:
    layer = net.message.layer[position]
    for field in ("name", "type"):
        if not layer.HasField(field):
            raise net.error(f"a layer has no {field!r}", "layer", position)
    if layer.type not in LAYER_TYPES:
        raise net.error(
            f"layer {layer.name!r}: type {layer.type!r} is not supported{nearest(layer.type, LAYER_TYPES)}; "
            f"the known types are {', '.join(sorted(LAYER_TYPES))}",
            "layer",
            position,
            "type",
        )
    return LAYER_TYPES[layer.type]


def _check_fields(net: Document[NetParameter], position: int, layer_class: type[Layer]) -> None:
    layer = net.message.layer[position]
    for field, _ in layer.ListFields():
        if field.name not in _EVERY_LAYER_READS and field.name not in layer_class.fields:
            raise net.error(
                f"layer {layer.name!r}: a layer of type {layer.type} does not read {field.name!r}",
                "layer",
                position,
                field.name,
            )


def _check_counts(net: Document[NetParameter], position: int, layer_class: type[Layer]) -> None:
    layer = net.message.layer[position]
    for field, allowed in (("bottom", layer_class.bottoms), ("top", layer_class.tops)):
        count = len(layer.bottom if field == "bottom" else layer.top)
        if count not in allowed:
            raise net.error(
                f"layer {layer.name!r}: type {layer.type} needs {_range_text(allowed)} {field}, got {count}",
                "layer",
                position,
            )
    if len(layer.loss_weight) not in (0, len(layer.top)):
        raise net.error(
            f"layer {layer.name!r}: needs one loss_weight for each of its {len(layer.top)} tops, "
            f"got {len(layer.loss_weight)}",
            "layer",
            position,
            "loss_weight",
        )


def _range_text(allowed: range) -> str:
    if len(allowed) == 1:
        return str(allowed.start)
    return f"{allowed.start} or {allowed.stop - 1}" if len(allowed) == 2 else f"at least {allowed.start}"


def _check_bottoms(net: Document[NetParameter], position: int, made: dict[str, int]) -> None:
    layer = net.message.layer[position]
    for nth, name in enumerate(layer.bottom):
        if name not in made:
            raise net.error(
                f"layer {layer.name!r}: no layer above makes its bottom {name!r}{_maker_hint(net, name, made)}",
                "layer",
                position,
                "bottom",
                nth,
            )


def _maker_hint(net: Document[NetParameter], name: str, made: dict[str, int]) -> str:
    makers = [position for position, layer in enumerate(net.message.layer) if name in layer.top]
    if makers:
        where = net.where("layer", makers[0])
        return f"; layer {net.message.layer[makers[0]].name!r} ({where}) does, but stands below or is not in this phase"
    return nearest(name, made)


def _check_tops(net: Document[NetParameter], position: int, layer_class: type[Layer], made: dict[str, int]) -> None:
    layer = net.message.layer[position]
    for nth, name in enumerate(layer.top):
        if is_in_place(layer, nth):
            if not layer_class.in_place:
                raise net.error(
                    f"layer {layer.name!r}: type {layer.type} cannot work in place: give its top {name!r} another name",
                    "layer",
                    position,
                    "top",
                    nth,
                )
        elif name in made:
            raise net.error(
                f"layer {layer.name!r}: its top {name!r} is already made by layer "
                f"{net.message.layer[made[name]].name!r} ({net.where('layer', made[name])})",
                "layer",
                position,
                "top",
                nth,
            )
        made[name] = position


def is_in_place(layer: LayerParameter, nth: int) -> bool:
    """Whether top `nth` is written over the bottom of the same place."""
    return nth < len(layer.bottom) and layer.bottom[nth] == layer.top[nth]
