"""Datum, the record in which Caffe's tools store a picture and its label."""

from __future__ import annotations

import functools
from typing import Any

from ...workers.base.protobuf import message_classes

# As in Caffe's caffe.proto.
_DATUM = """
Datum: 1 channels int, 2 height int, 3 width int, 4 data bytes, 5 label int, 6 float_data float*, 7 encoded bool
"""


@functools.cache
def datum_class() -> Any:
    return message_classes(_DATUM, {})["Datum"]


def parsed(record: bytes, _index: int = 0) -> Any:
    """Return the Datum that `record` is; raises ValueError."""
    datum = datum_class()()
    try:
        datum.ParseFromString(record)
    except Exception as error:  # a DecodeError: importing it costs every loader
        raise ValueError(
            f"it is no Datum, as Caffe's tools write them ({error}); other records need a Source subclass"
        ) from error
    return datum
