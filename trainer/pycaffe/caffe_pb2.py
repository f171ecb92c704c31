"""Caffe's messages under their own names, as `from caffe.proto import caffe_pb2` gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...sources.lmdb.datum import datum_class
from ..prototxt import message_classes

TRAIN, TEST = 0, 1

globals().update(message_classes(), Datum=datum_class())

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
