"""The protobuf messages of the table in schema.py."""

from __future__ import annotations

import functools
from enum import IntEnum
from typing import Any

from ...workers.base import protobuf
from . import schema
from .schema import Message


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
    enums = {name: each for name, each in vars(schema).items() if isinstance(each, type) and issubclass(each, IntEnum)}
    return protobuf.message_classes(schema.TABLE, enums)
