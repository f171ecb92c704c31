"""Protobuf messages from Python classes: generated code would work with one version of protobuf only.

A class that derives from `Message` declares a message by its annotations: `pad: UInt = optional(4, 0)` is the field
`optional uint32 pad = 4 [default = 0]`. `message_class` has the protobuf library build the message; what it then
parses has the attributes that the class declares, so the same class serves as its static type.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any

from google.protobuf import descriptor_pb2

from ...workers.base.protobuf import class_of, make_message_class

_PACKAGE = "caffe"
_Field = descriptor_pb2.FieldDescriptorProto

UInt = Annotated[int, _Field.TYPE_UINT32]
"""A number that must not be negative: the parser checks that, and names the line."""
Int64 = Annotated[int, _Field.TYPE_INT64]

_SCALARS: dict[object, _Field.Type.ValueType] = {
    str: _Field.TYPE_STRING,
    bytes: _Field.TYPE_BYTES,
    int: _Field.TYPE_INT32,
    float: _Field.TYPE_FLOAT,
    bool: _Field.TYPE_BOOL,
}

_built: dict[object, type[Any]] = {}


@dataclass(frozen=True)
class _Declared:
    number: int
    default: object


def optional(number: int, default: object = None) -> Any:
    """Field `number`; an unset field reads as `default` (None: the type's zero)."""
    return _Declared(number, default)


def repeated(number: int) -> Any:
    return _Declared(number, None)


class Message:
    """Methods of every parsed message. The protobuf library implements them: see message_class."""

    def HasField(self, name: str) -> bool:  # noqa: N802
        raise NotImplementedError

    def SerializeToString(self) -> bytes:  # noqa: N802
        raise NotImplementedError

    def ListFields(self) -> Sequence[tuple[Any, object]]:  # noqa: N802
        raise NotImplementedError


def message_class(declared: type[Message]) -> type[Any]:
    """The protobuf class for `declared` and whatever messages its fields refer to."""
    if declared not in _built:
        _built[declared] = _build(declared)
    return _built[declared]


def message_classes(declared: type[Message]) -> dict[str, type[Any]]:
    """By name: the classes of `declared` and of all messages in it, such that each can be put into the others."""
    messages = message_class(declared).DESCRIPTOR.file.message_types_by_name
    return {name: class_of(descriptor) for name, descriptor in messages.items()}


def _build(declared: type[Message]) -> type[Any]:
    file = descriptor_pb2.FileDescriptorProto(name=f"blobfeed/{declared.__name__}.proto", package=_PACKAGE)
    _Builder(file).add(declared)
    return make_message_class(file, declared.__name__)


class _Builder:
    """Adds declared messages, and the messages and enums they refer to, to one file."""

    def __init__(self, file: descriptor_pb2.FileDescriptorProto) -> None:
        self._file = file
        self._names: dict[type, str] = {}

    def add(self, declared: type[Message]) -> str:
        """The full name of `declared`, which is added to the file when it is first met."""
        if declared not in self._names:
            self._names[declared] = f".{_PACKAGE}.{declared.__name__}"
            message = self._file.message_type.add(name=declared.__name__)
            for name, annotation in typing.get_type_hints(declared, include_extras=True).items():
                declaration = getattr(declared, name, None)
                if isinstance(declaration, _Declared):
                    self._add_field(message, name, annotation, declaration)
        return self._names[declared]

    def _add_field(
        self, message: descriptor_pb2.DescriptorProto, name: str, annotation: Any, declaration: _Declared
    ) -> None:
        field = message.field.add(name=name, number=declaration.number, label=_Field.LABEL_OPTIONAL)
        if typing.get_origin(annotation) is Sequence:
            field.label = _Field.LABEL_REPEATED
            (annotation,) = typing.get_args(annotation)
            if annotation == Int64:
                field.options.packed = True  # as in Caffe's BlobShape, the only such field
        if annotation in _SCALARS:
            field.type = _SCALARS[annotation]
        elif typing.get_origin(annotation) is Annotated:
            field.type = annotation.__metadata__[0]
        elif issubclass(annotation, IntEnum):
            field.type, field.type_name = _Field.TYPE_ENUM, self._add_enum(message, annotation)
        else:
            field.type, field.type_name = _Field.TYPE_MESSAGE, self.add(annotation)
        if declaration.default is not None:
            field.default_value = _default_text(declaration.default)

    def _add_enum(self, message: descriptor_pb2.DescriptorProto, declared: type[IntEnum]) -> str:
        # Inside the message that first uses it: the values of an enum are named in the scope around it, and two enums
        # of one file may both have a MAX.
        if declared not in self._names:
            self._names[declared] = f".{_PACKAGE}.{message.name}.{declared.__name__}"
            enum = message.enum_type.add(name=declared.__name__)
            for member in declared:
                enum.value.add(name=member.name, number=member.value)
        return self._names[declared]


def _default_text(default: object) -> str:
    if isinstance(default, IntEnum):
        return default.name
    return str(default).lower() if isinstance(default, bool) else str(default)
