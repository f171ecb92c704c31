"""Builds protobuf message classes at run time: generated code works with one version of the library only."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "caffe"
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "int": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "uint": _Field.TYPE_UINT32,  # must not be negative: the parser checks that, and names the line
    "float": _Field.TYPE_FLOAT,
    "double": _Field.TYPE_DOUBLE,
    "bool": _Field.TYPE_BOOL,
}


def message_classes(table: str, enums: Mapping[str, type[IntEnum]]) -> dict[str, type[Any]]:
    """Return the classes of Caffe's messages in `table`, by name; they may refer to each other.

    A row of the table is `Name: number field type, …`; a type is a scalar, one of `enums` or another message, with `*`
    if the field is repeated, and ` = …` if it has a default. The classes have a descriptor pool of their own, since a
    real Caffe in the same process registers messages of the same names in the default pool.
    """
    file = descriptor_pb2.FileDescriptorProto(name="blobfeed/caffe.proto", package=_PACKAGE)
    rows = dict(row.split(": ") for row in table.strip().replace("\n    ", " ").splitlines())
    enum_paths: dict[str, str] = {}
    for name, fields in rows.items():
        message = file.message_type.add(name=name)
        for text in fields.split(", "):
            found = re.fullmatch(r"(\d+) (\w+) (\w+)(\*?)(?: = (\S+))?", text)
            assert found, f"a field in the row of {name}: {text!r}"
            _add_field(message, enums, enum_paths, found)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: _class_of(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in rows}


def _add_field(
    message: descriptor_pb2.DescriptorProto,
    enums: Mapping[str, type[IntEnum]],
    enum_paths: dict[str, str],
    found: re.Match[str],
) -> None:
    number, name, kind, star, default = found.groups()
    label = _Field.LABEL_REPEATED if star else _Field.LABEL_OPTIONAL
    field = message.field.add(name=name, number=int(number), label=label, default_value=default)
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
        if kind == "int64" and star:
            field.options.packed = True  # as in Caffe's BlobShape, the only such field
    elif kind in enums:
        if kind not in enum_paths:
            # Inside the message that first uses it: the values of an enum are named in the scope around it, and two
            # enums of one file may both have a MAX.
            enum_paths[kind] = f".{_PACKAGE}.{message.name}.{kind}"
            enum = message.enum_type.add(name=kind)
            for member in enums[kind]:
                enum.value.add(name=member.name, number=member.value)
        field.type, field.type_name = _Field.TYPE_ENUM, enum_paths[kind]
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"


def _class_of(descriptor: Any) -> type[Any]:
    # protobuf 4.22 brought GetMessageClass, 5 dropped the way that 4.21 had.
    get_class: Callable[[Any], type[Any]] | None = getattr(message_factory, "GetMessageClass", None)
    if get_class is None:
        factory: Any = message_factory.MessageFactory(descriptor.file.pool)
        get_class = factory.GetPrototype
    return get_class(descriptor)
