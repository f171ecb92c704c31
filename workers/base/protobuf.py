"""Protobuf message classes made at run time: generated code would work with one version of the library only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def make_message_class(file: descriptor_pb2.FileDescriptorProto, name: str) -> type[Any]:
    """The class of the message `name` that `file` declares.

    It lives in a pool of its own: in the default pool, a real Caffe in the same process has messages of the same names.
    """
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return class_of(pool.FindMessageTypeByName(f"{file.package}.{name}"))


def class_of(descriptor: Any) -> type[Any]:
    """The class of a message that a pool knows."""
    # protobuf 4.22 brought GetMessageClass, 5 dropped the way that 4.21 had.
    get_class: Callable[[Any], type[Any]] | None = getattr(message_factory, "GetMessageClass", None)
    if get_class is None:
        factory: Any = message_factory.MessageFactory(descriptor.file.pool)
        get_class = factory.GetPrototype
    return get_class(descriptor)
