"""Nets written in Python: `n.conv = L.Convolution(n.data, kernel_size=5, num_output=20)`, then `n.to_proto()`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from ..layer_types import LAYER_TYPES
from . import caffe_pb2


class Function:
    """A layer to be: its type, its bottoms and the values of its fields."""

    def __init__(self, kind: str, bottoms: tuple[Top, ...], values: dict[str, Any]) -> None:
        for bottom in bottoms:
            if not isinstance(bottom, Top):
                raise TypeError(f"L.{kind} takes tops of other layers as bottoms, got {bottom!r}")
        self.kind = kind
        self.bottoms = bottoms
        self.in_place = bool(values.pop("in_place", False))
        self.name: str | None = values.pop("name", None)
        count = values.pop("ntop", 1)
        self.tops = tuple(Top(self, nth) for nth in range(count))
        self.values = values

    def write(self, layer: Any, names: Mapping[Top | Function, str]) -> None:
        """Fill in the empty LayerParameter `layer`."""
        layer.name = self.name or names[self.tops[0] if self.tops else self]
        layer.type = self.kind
        layer.bottom.extend(names[bottom] for bottom in self.bottoms)
        layer.top.extend(layer.bottom[:1] if self.in_place else [names[top] for top in self.tops])
        self._write_fields(layer)

    def message(self) -> Any:
        """A LayerParameter with the values of the fields."""
        layer = caffe_pb2.LayerParameter()
        self._write_fields(layer)
        return layer

    def _write_fields(self, layer: Any) -> None:
        fields = LAYER_TYPES[self.kind].fields if self.kind in LAYER_TYPES else ()
        for field, value in self.values.items():
            if field in layer.DESCRIPTOR.fields_by_name:
                _assign(layer, field, value)
            elif fields:
                _assign(getattr(layer, fields[0]), field, value)
            else:
                raise AttributeError(
                    f"L.{self.kind}: a layer has no field {field!r}, nor has this type fields of its own"
                )


class Top:
    """One output of a layer."""

    def __init__(self, function: Function, nth: int) -> None:
        self.fn = function
        self.n = nth

    def to_proto(self) -> Any:
        """The net that computes this top."""
        return to_proto(self)


class _Layers:
    """`L.<type>(bottoms…, field=value…, ntop=1, in_place=False, name=…)` is its top, or a tuple of its tops.

    A field is one of LayerParameter, or of the message that the type reads: L.Deconvolution takes the fields of
    convolution_param. Without tops it is the layer itself.
    """

    def __getattr__(self, kind: str) -> Any:
        if kind.startswith("_"):
            raise AttributeError(kind)

        def make(*bottoms: Top, **values: Any) -> Any:
            function = Function(kind, bottoms, values)
            if not function.tops:
                return function
            return function.tops[0] if len(function.tops) == 1 else function.tops

        return make


class _Parameters:
    """`P.Pooling.MAX` is the number of that value."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        fields = getattr(caffe_pb2, f"{name}Parameter").DESCRIPTOR.fields
        enums = [field.enum_type for field in reversed(fields) if field.enum_type is not None]
        return SimpleNamespace(**{value.name: value.number for enum in enums for value in enum.values})


layers = _Layers()
params = _Parameters()


class NetSpec:
    """A net whose tops are its attributes: `n.conv1 = …` or `n["conv1"] = …` names a top and its layer conv1."""

    tops: dict[str, Any]

    def __init__(self) -> None:
        super().__setattr__("tops", {})

    def __setattr__(self, name: str, value: Any) -> None:
        self.tops[name] = value

    def __getattr__(self, name: str) -> Any:
        if name not in self.tops:
            raise AttributeError(f"the net has no top {name!r}")
        return self.tops[name]

    __setitem__ = __setattr__
    __getitem__ = __getattr__

    def __delattr__(self, name: str) -> None:
        del self.tops[name]

    __delitem__ = __delattr__

    def to_proto(self) -> Any:
        """The net as a NetParameter; `str` of it is a prototxt."""
        return _net(list(self.tops.values()), {value: name for name, value in self.tops.items()})


def to_proto(*tops: Top | Function) -> Any:
    """The net that computes `tops`, with names made from the types of its layers."""
    return _net(list(tops), {})


def _net(ends: list[Top | Function], names: dict[Top | Function, str]) -> Any:
    net = caffe_pb2.NetParameter()
    counts: dict[str, int] = {}
    for function in _in_order(ends):
        for made in function.tops or (function,):
            if made not in names:
                counts[function.kind] = counts.get(function.kind, 0) + 1
                names[made] = f"{function.kind}{counts[function.kind]}"
        function.write(net.layer.add(), names)
        if function.in_place:  # what takes its top takes the blob that was written over
            names[function.tops[0]] = names[function.bottoms[0]]
    return net


def _in_order(ends: list[Top | Function]) -> Iterator[Function]:
    """The layers that `ends` need, each after those that it takes something from."""
    seen: set[Function] = set()
    waiting = [(end.fn if isinstance(end, Top) else end, False) for end in reversed(ends)]
    while waiting:
        function, bottoms_done = waiting.pop()
        if function in seen:
            continue
        if bottoms_done:
            seen.add(function)
            yield function
        else:
            waiting.append((function, True))
            waiting += [(bottom.fn, False) for bottom in reversed(function.bottoms)]


def _assign(message: Any, field: str, value: Any) -> None:
    """Set a field to a number, a text, a mapping of the fields inside it, or a list of such."""
    if field not in message.DESCRIPTOR.fields_by_name:
        raise AttributeError(f"{type(message).__name__} has no field {field!r}")
    target = getattr(message, field)
    if isinstance(value, Mapping):
        inside = target.add() if hasattr(target, "add") else target
        inside.SetInParent()
        for name, inner in value.items():
            _assign(inside, name, inner)
    elif isinstance(value, (list, tuple)):
        for each in value:
            _assign(message, field, each)
    elif hasattr(value, "CopyFrom"):
        (target.add() if hasattr(target, "add") else target).CopyFrom(value)
    elif hasattr(target, "append"):
        target.append(value)
    else:
        setattr(message, field, value)
