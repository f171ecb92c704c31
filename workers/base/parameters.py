"""The parameters of a pipeline: one vocabulary for `param_str`, for the readers' keyword arguments and for errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Annotated, Any, Literal, Required, TypedDict

import msgspec

from .checks import check_options, shown
from .errors import ParameterError
from .source import Source

Positive = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
# Not tuple[Positive, Positive]: msgspec 0.22 crashes on such a tuple beside an int.
Size = Annotated[tuple[Positive, ...], msgspec.Meta(min_length=2, max_length=2)]


class Transform(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What Caffe's own data layers call transform_param."""

    scale: float | tuple[float, ...] = 1.0
    mean_value: tuple[float, ...] = ()
    mean_file: str = ""
    crop_size: NotNegative | Size = 0
    mirror: bool = False
    force_color: bool = False
    force_gray: bool = False


class Pad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How samples of unequal size are brought to the size of the batch's largest."""

    value: float = 0.0
    to_multiple_of: Positive = 1


class Cache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where decoded samples are kept from the first epoch on, and how large (bytes) that file may grow."""

    path: str
    size_limit: Positive


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that one pipeline is told. Times are in seconds; None means: chosen at start."""

    source: dict[str, Any] | None = None
    mix: tuple[dict[str, Any], ...] = ()
    fields: tuple[str, ...] | None = None
    tops: tuple[str, ...] | None = None
    batch_size: Positive
    num_loaders: NotNegative | Literal["auto"] = "auto"
    prefetch_batches: Positive | Literal["auto"] = "auto"
    shuffle: bool | Literal["chunk"] = False
    shuffle_window: Positive = 16
    sampler: Any = None
    batch_sampler: Any = None
    seed: NotNegative = 0
    seed_globals: bool = True
    rand_skip: NotNegative = 0
    epochs: Positive | None = None
    last_batch: Literal["wrap", "drop", "partial"] = "wrap"
    in_order: bool = True
    rank: NotNegative | None = None
    world_size: Positive | None = None
    transform: Transform = Transform()
    max_shapes: dict[str, tuple[Positive, ...]] = {}
    concatenate: tuple[str, ...] = ()
    max_rows: Positive | None = None
    pad: Pad | None = None
    cache: Cache | None = None
    on_error: Literal["raise", "replace"] = "raise"
    max_bad_samples: NotNegative = 100
    task_timeout_s: Seconds = 120.0
    timeout_s: Seconds = 600.0
    state_file: str = ""
    device: str = ""
    device_prefetch: Positive = 2
    page_lock: Literal["staging", "ring"] = "staging"
    delivery: Literal["copy", "view"] = "copy"


# The same as a reader's keyword arguments: type checkers and editors know no msgspec. A test compares the two.


class ReaderParameters(TypedDict, total=False):
    """What a reader takes beside its source; docs/layer.md says what each does."""

    mix: Sequence[Mapping[str, Any] | Source]
    fields: str | Sequence[str] | None
    tops: str | Sequence[str] | None
    batch_size: Required[int]
    num_loaders: int | Literal["auto"]
    prefetch_batches: int | Literal["auto"]
    shuffle: bool | Literal["chunk"]
    shuffle_window: int
    sampler: Any
    batch_sampler: Any
    seed: int
    seed_globals: bool
    rand_skip: int
    epochs: int | None
    last_batch: Literal["wrap", "drop", "partial"]
    in_order: bool
    rank: int | None
    world_size: int | None
    transform: Mapping[str, Any]
    max_shapes: Mapping[str, Sequence[int]]
    concatenate: str | Sequence[str]
    max_rows: int | None
    pad: Mapping[str, Any] | None
    cache: Mapping[str, Any] | None
    on_error: Literal["raise", "replace"]
    max_bad_samples: int
    task_timeout_s: float
    timeout_s: float
    state_file: str
    device: str
    device_prefetch: int
    page_lock: Literal["staging", "ring"]
    delivery: Literal["copy", "view"]


def check_parameters(values: Mapping[str, Any], what: str = "parameters") -> Parameters:
    """`values` as Parameters; raises ParameterError naming the key, its value, what is allowed and the nearest key."""
    _check_source(values, what)
    parameters = check_options(_written_out(values), Parameters, what)
    if (parameters.source is None) == (not parameters.mix):
        raise ParameterError(f"{what}: exactly one of 'source' and 'mix' is needed, got {sorted(map(str, values))}")
    if parameters.max_rows is not None and not parameters.concatenate:
        raise ParameterError(
            f"{what}: parameter 'max_rows' is {parameters.max_rows}, and 'concatenate' names no top that it is for"
        )
    _check_tops(parameters.tops, what)
    _check_shard(parameters, what)
    _check_transform(parameters.transform, what)
    return parameters


def _check_source(values: Mapping[str, Any], what: str) -> None:
    source = values.get("source") if isinstance(values, Mapping) else None
    if source is not None and not isinstance(source, str | PurePath | Mapping | Source):
        raise ParameterError(
            f"{what}: parameter 'source' is {shown(source)}: expected a mapping of names to values, or the path of an "
            "HDF5 file; arrays are given by name, as {arrays: {data: x, label: y}}"
        )


def _written_out(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """One field, one top, or one mean for all channels, may be written without the list around it.

    A bare path as the source is an HDF5 file, or a text file that lists some, as Caffe's HDF5Data takes it. Source
    objects stand for what a mapping declares.
    """
    if not isinstance(values, Mapping):
        return values
    changed = dict(values)
    if isinstance(source := changed.get("source"), str | PurePath):
        changed["source"] = {"hdf5": {"path": source}}
    elif isinstance(source, Source):
        changed["source"] = {source.kind: source}
    if isinstance(mix := changed.get("mix"), list | tuple):
        changed["mix"] = [{part.kind: part} if isinstance(part, Source) else part for part in mix]
    for name in ("fields", "tops", "concatenate"):
        if isinstance(changed.get(name), str):
            changed[name] = [changed[name]]
    transform = changed.get("transform")
    if isinstance(transform, Mapping) and isinstance(transform.get("mean_value"), int | float):
        changed["transform"] = {**transform, "mean_value": [transform["mean_value"]]}
    return changed


def _check_tops(tops: tuple[str, ...] | None, what: str) -> None:
    if tops is not None and not tops:
        raise ParameterError(f"{what}: parameter 'tops' is []: expected one name or more; left out, all are given")
    if tops is not None and len(set(tops)) < len(tops):
        raise ParameterError(
            f"{what}: parameter 'tops' is {list(tops)}: expected each name once; several layers of a net may have "
            "the same blob as their bottom"
        )


def _check_shard(parameters: Parameters, what: str) -> None:
    rank, world_size = parameters.rank, parameters.world_size
    if (rank is None) != (world_size is None):
        raise ParameterError(f"{what}: 'rank' and 'world_size' go together, got rank={rank}, world_size={world_size}")
    if rank is not None and world_size is not None and rank >= world_size:
        raise ParameterError(f"{what}: parameter 'rank' is {rank}: expected a number below world_size={world_size}")


def _check_transform(transform: Transform, what: str) -> None:
    scales = transform.scale if isinstance(transform.scale, tuple) else (transform.scale,)
    if not scales:
        raise ParameterError(f"{what}: parameter 'transform.scale' is []: expected a number, or one for each channel")
    for name, numbers in (("scale", scales), ("mean_value", transform.mean_value)):
        if wrong := [number for number in numbers if not math.isfinite(number)]:
            raise ParameterError(f"{what}: parameter 'transform.{name}' has {wrong[0]}: expected finite numbers")
    if transform.mean_file and transform.mean_value:
        raise ParameterError(
            f"{what}: 'transform.mean_file' is {transform.mean_file!r} and 'transform.mean_value' is "
            f"{transform.mean_value}: give one of them"
        )
    if transform.force_color and transform.force_gray:
        raise ParameterError(f"{what}: 'transform.force_color' and 'transform.force_gray' are both true: give one")
