"""Datum, the record in which Caffe's tools store a picture and its label."""

from __future__ import annotations

import functools
from typing import Any

from ...base.protobuf import make_message_class

# Caffe's caffe.proto: name, number, type, repeated.
_FIELDS = (
    ("channels", 1, "TYPE_INT32", False),
    ("height", 2, "TYPE_INT32", False),
    ("width", 3, "TYPE_INT32", False),
    ("data", 4, "TYPE_BYTES", False),
    ("label", 5, "TYPE_INT32", False),
    ("float_data", 6, "TYPE_FLOAT", True),
    ("encoded", 7, "TYPE_BOOL", False),
)


@functools.cache
def datum_class() -> Any:
    """The class of the protobuf library for a Datum."""
    from google.protobuf import descriptor_pb2

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="blobfeed/datum.proto", package="blobfeed.caffe", syntax="proto2")
    datum = file.message_type.add(name="Datum")
    for name, number, kind, repeated in _FIELDS:
        label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
        datum.field.add(name=name, number=number, label=label, type=getattr(field, kind))
    return make_message_class(file, "Datum")
