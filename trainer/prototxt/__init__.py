"""Prototxt files as messages: schema, phases, and the lines of their fields. Needs no torch."""

from __future__ import annotations

from .blob_proto import fill_blob, read_blob, to_array
from .errors import NetError, PrototxtError, SnapshotError, SolverError, not_supported
from .locations import read_locations
from .phases import NetState, included_layers
from .prototxt import Document, document, read_net_or_solver, read_prototxt
from .schema import (
    TABLE,
    BlobProto,
    DimCheckMode,
    EltwiseOp,
    FillerParameter,
    HingeNorm,
    LayerParameter,
    Message,
    NetParameter,
    NormalizationMode,
    NormRegion,
    Phase,
    PoolMethod,
    ReductionOp,
    RoundMode,
    SnapshotFormat,
    SolverMode,
    SolverParameter,
    SolverState,
    V1LayerType,
    VarianceNorm,
    message_class,
    message_classes,
    own_fields,
)
from .upgrade import MOVED
