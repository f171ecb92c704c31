"""Splits a layer's `param_str` into the pipeline's parameters, the source's options and a subclass's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import msgspec

from ..sources import options_of, with_color
from ..workers.api import Parameters, allowed, check_names, check_parameters, shown
from ..workers.base import ParameterError
from .param_str import parse_param_str


def read_param_str(
    text: str | Mapping[str, object], extra: Mapping[str, object], kind: str, what: str, trainers: Mapping[str, object]
) -> tuple[Parameters, Mapping[str, object]]:
    """Read and check a param_str; returns the pipeline's parameters and the subclass's own.

    `extra`: a subclass's own parameters and their defaults. `kind`: the kind of source whose options stand among the
    other parameters; "" if `source` declares one. `what` begins the messages. `trainers`: parameters that override
    those in `text`. Raises ParameterError.
    """
    values = {**parse_param_str(text), **trainers}
    inner = options_of(kind).__struct_fields__ if kind else ()
    if "path" in inner and "path" not in values and isinstance(values.get("source"), str):
        values["path"] = values.pop("source")  # its name in Caffe's own HDF5Data and ImageData
    known = [name for name in Parameters.__struct_fields__ if not kind or name not in ("source", "mix")]
    if kind == "npy":  # other names are tops, each with its path or paths
        paths = [name for name, value in values.items() if isinstance(value, str | list | tuple)]
        inner += tuple(name for name in paths if name not in {*known, *extra})
    if clash := set(extra) & {*known, *inner}:
        raise ParameterError(f"{what}: extra_parameters has {sorted(clash)}, which are parameters already: rename them")
    check_names(values, (*known, *inner, *extra), what)
    own = {name: _checked(name, values.get(name, default), default, what) for name, default in extra.items()}
    rest = {name: value for name, value in values.items() if name not in extra and name not in inner}
    if kind:
        rest["source"] = {kind: {name: values[name] for name in inner if name in values}}
    parameters = check_parameters(rest, what)
    parameters = msgspec.structs.replace(  # as Caffe's own layers decode pictures
        parameters,
        source=with_color(parameters.source, "bgr"),
        mix=tuple(with_color(part, "bgr") for part in parameters.mix),
    )
    if parameters.device:
        raise ParameterError(
            f"{what}: parameter 'device' is {parameters.device!r}: it is for readers; a layer fills its "
            "blobs wherever the net has them: leave it out"
        )
    return parameters, own


def _checked(name: str, value: object, default: object, what: str) -> object:
    """Return `value` as the default's type: a whole number is also a float, text a Path; None allows any type."""
    if isinstance(default, PurePath) and isinstance(value, str):
        return type(default)(value)
    kind: Any = Any if default is None else type(default)
    try:
        return msgspec.convert(value, kind, builtin_types=[bytes])  # without it, text is decoded as base64
    except msgspec.ValidationError:
        info = msgspec.inspect.type_info(kind)
        hint = "; a default of None allows what text can say" if isinstance(info, msgspec.inspect.CustomType) else ""
        raise ParameterError(
            f"{what}: parameter {name!r} is {shown(value)}: expected {allowed(info)}, like its default "
            f"{shown(default)}{hint}"
        ) from None
