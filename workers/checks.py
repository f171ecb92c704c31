"""Checking a mapping of options into a typed, frozen object, with one message that helps."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from .errors import ParameterError

_Options = TypeVar("_Options", bound=msgspec.Struct)


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or nothing where no known word is near."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def check_options(options: object, into: type[_Options], what: str) -> _Options:
    """`options` as a `msgspec.Struct` of type `into`; raises ParameterError naming key, value and what is allowed.

    `what` says whose options they are: "source hdf5". Field names of the struct are the keys; `Annotated[int,
    msgspec.Meta(ge=1)]` and `Literal[...]` state what is allowed.
    """
    if not isinstance(options, Mapping):
        raise ParameterError(f"{what}: expected a mapping of names to values, got {options!r}")
    known = [field.encode_name for field in msgspec.structs.fields(into)]
    for key in options:
        if key not in known:
            raise ParameterError(
                f"{what}: unknown parameter {key!r}{nearest(str(key), known)}; the known ones are {', '.join(known)}"
            )
    try:
        return msgspec.convert(dict(options), into, str_keys=True)
    except msgspec.ValidationError as error:
        raise ParameterError(_explain(error, options, what)) from None


def _explain(error: msgspec.ValidationError, options: Mapping[Any, Any], what: str) -> str:
    text = str(error)
    message, _, path = text.partition(" - at `$")
    keys = re.findall(r"\.([^.\[`]+)|\[(\d+)\]", path)
    value: Any = options
    name = ""
    for attribute, position in keys:
        name += f".{attribute}" if attribute else f"[{position}]"
        value = value[attribute] if attribute else value[int(position)]
    if not keys:
        return f"{what}: {message}"
    return f"{what}: parameter {name.lstrip('.')!r} is {value!r}: {message[0].lower()}{message[1:]}"
