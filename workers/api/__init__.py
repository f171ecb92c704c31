"""The interface for users: sources, hooks, parameters and their checks, shapes and types."""

from __future__ import annotations

from .checks import (
    allowed,
    check_names,
    check_options,
    chosen,
    listed,
    meant,
    nearest,
    nothing_there,
    paths_as_text,
    shown,
)
from .hooks import (
    BY_POSITION,
    FLOAT32_WHOLE,
    DecodeHook,
    HookBatch,
    Hooks,
    PostprocessHook,
    Sample,
    SamplerHook,
    as_array,
    by_name,
    check_decode,
    plain_array,
    takes_rng,
)
from .parameters import (
    FOR_LAYERS,
    GIVEN_PICTURES,
    Cache,
    LastBatch,
    NotNegative,
    Pad,
    Parameters,
    Paths,
    Positive,
    RandomResizedCrop,
    ReaderParameters,
    RemoteLoaders,
    SharedParameters,
    Transform,
    check_parameters,
    hdf5_if_path,
    loop_end,
    without_source,
)
from .source import AnySource, Boxes, CacheCounts, Needed, Needs, Outlier, Source, Tops, is_ours
from .specs import (
    AnyArray,
    ArraySpec,
    ConvertedRows,
    DirectRows,
    Gather,
    IndexArray,
    NamedRows,
    RaggedRows,
    Rows,
    allocate_rows,
    channels_first_hint,
    exact_up_to,
    holds,
    rounded_integer,
)
from .statistics import Statistics
