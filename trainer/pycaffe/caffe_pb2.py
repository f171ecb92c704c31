"""Caffe's messages under their own names, as `from caffe.proto import caffe_pb2` gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..prototxt import schema
from ..prototxt.descriptors import Message, message_classes, optional, repeated

TRAIN, TEST = 0, 1


class Datum(Message):
    """A sample in an LMDB: raw bytes, floats, or an encoded image."""

    channels: int = optional(1)
    height: int = optional(2)
    width: int = optional(3)
    data: bytes = optional(4)
    label: int = optional(5)
    float_data: Sequence[float] = repeated(6)
    encoded: bool = optional(7, False)


class _Every(Message):
    """One message that holds all others: classes that are made together fit into each other."""

    layer: schema.LayerParameter = optional(1)  # first, so that the values of an enum are found in today's messages
    net: schema.NetParameter = optional(2)
    solver: schema.SolverParameter = optional(3)
    state: schema.SolverState = optional(4)
    blob: schema.BlobProto = optional(5)
    datum: Datum = optional(6)


globals().update(message_classes(_Every))

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
