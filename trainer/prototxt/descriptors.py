"""Protobuf messages from the table in schema.py: generated code would work with one version of protobuf only."""

from __future__ import annotations

import functools
import re
from typing import Any

from google.protobuf import descriptor_pb2

from ...workers.base.protobuf import class_of, make_message_class
from . import schema
from .schema import Message

_PACKAGE = "caffe"
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "int": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "uint": _Field.TYPE_UINT32,  # must not be negative: the parser checks that, and names the line
    "float": _Field.TYPE_FLOAT,
    "bool": _Field.TYPE_BOOL,
}


def message_class(declared: type[Message]) -> type[Any]:
    """The protobuf class of the message that `declared` is named after."""
    return message_classes()[declared.__name__]


@functools.cache
def own_fields() -> dict[str, str]:
    """By type of layer: the field of LayerParameter that belongs to it, such as relu_param for ReLU."""
    fields = message_class(schema.LayerParameter).DESCRIPTOR.fields
    return {f.message_type.name.removesuffix("Parameter"): f.name for f in fields if f.name.endswith("_param")}


@functools.cache
def message_classes() -> dict[str, type[Any]]:
    """All messages of the table by name, such that each can be put into the others."""
    file = descriptor_pb2.FileDescriptorProto(name="blobfeed/caffe.proto", package=_PACKAGE)
    rows = dict(row.split(": ") for row in schema.TABLE.strip().replace("\n    ", " ").splitlines())
    enums: dict[str, str] = {}
    for name, fields in rows.items():
        message = file.message_type.add(name=name)
        for text in fields.split(", "):
            found = re.fullmatch(r"(\d+) (\w+) (\w+)(\*?)(?: = (\S+))?", text)
            assert found, f"a field in the row of {name}: {text!r}"
            _add_field(message, enums, found)
    messages = make_message_class(file, next(iter(rows))).DESCRIPTOR.file.message_types_by_name
    return {name: class_of(descriptor) for name, descriptor in messages.items()}


def _add_field(message: descriptor_pb2.DescriptorProto, enums: dict[str, str], found: re.Match[str]) -> None:
    number, name, kind, star, default = found.groups()
    label = _Field.LABEL_REPEATED if star else _Field.LABEL_OPTIONAL
    field = message.field.add(name=name, number=int(number), label=label, default_value=default)
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
        if kind == "int64" and star:
            field.options.packed = True  # as in Caffe's BlobShape, the only such field
    elif hasattr(schema, kind) and not issubclass(getattr(schema, kind), Message):
        if kind not in enums:
            # Inside the message that first uses it: the values of an enum are named in the scope around it, and two
            # enums of one file may both have a MAX.
            enums[kind] = f".{_PACKAGE}.{message.name}.{kind}"
            enum = message.enum_type.add(name=kind)
            for member in getattr(schema, kind):
                enum.value.add(name=member.name, number=member.value)
        field.type, field.type_name = _Field.TYPE_ENUM, enums[kind]
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
