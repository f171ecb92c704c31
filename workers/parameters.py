"""The parameters of a pipeline: one vocabulary for `param_str`, for the readers' keyword arguments and for errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import yaml

from .checks import check_options
from .errors import ParameterError

Positive = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class Transform(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What Caffe's own data layers call transform_param."""

    scale: float = 1.0
    mean_value: tuple[float, ...] = ()
    mean_file: str = ""
    crop_size: NotNegative = 0
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
    tops: tuple[str, ...] | None = None
    batch_size: Positive
    num_loaders: Positive | Literal["auto"] = "auto"
    prefetch_batches: Positive = 4
    shuffle: bool | Literal["chunk"] = False
    shuffle_window: Positive = 16
    seed: NotNegative = 0
    rand_skip: NotNegative = 0
    epochs: Positive | None = None
    last_batch: Literal["wrap", "drop", "partial"] = "wrap"
    in_order: bool = True
    rank: NotNegative | None = None
    world_size: Positive | None = None
    transform: Transform = Transform()
    pad: Pad | None = None
    cache: Cache | None = None
    on_error: Literal["raise", "replace"] = "raise"
    max_bad_samples: NotNegative = 100
    task_timeout_s: Seconds = 120.0
    timeout_s: Seconds = 600.0
    device: str = ""
    device_prefetch: Positive = 2
    delivery: Literal["copy", "view"] = "copy"


def parse_param_str(text: str) -> dict[str, Any]:
    """The mapping that a layer's `param_str` holds: YAML, hence also JSON and a Python-style dict of plain values.

    Raises ParameterError where it is not YAML or not a mapping.
    """
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ParameterError(f"param_str is not valid YAML: {error}; it reads {text!r}") from None
    if not isinstance(value, dict):
        raise ParameterError(
            f"param_str: expected a mapping such as {{source: {{hdf5: {{path: train.h5}}}}, batch_size: 64}}, "
            f"got {text!r}"
        )
    return value


def check_parameters(values: Mapping[str, Any], what: str = "parameters") -> Parameters:
    """`values` as Parameters; raises ParameterError naming the key, its value, what is allowed and the nearest key."""
    parameters = check_options(values, Parameters, what)
    if (parameters.source is None) == (not parameters.mix):
        raise ParameterError(f"{what}: exactly one of 'source' and 'mix' is needed, got {sorted(values)}")
    if (parameters.rank is None) != (parameters.world_size is None):
        raise ParameterError(f"{what}: 'rank' and 'world_size' go together, got {dict(values)!r}")
    if parameters.rank is not None and parameters.world_size is not None and parameters.rank >= parameters.world_size:
        raise ParameterError(
            f"{what}: parameter 'rank' is {parameters.rank}: expected a number below world_size={parameters.world_size}"
        )
    return parameters
