"""Converts a mapping of options into a typed, frozen object; an error names the key, its value and what is allowed."""

from __future__ import annotations

import os
import re
import reprlib
from array import array
from collections.abc import Collection, Iterable, Mapping, MutableSequence
from functools import lru_cache
from pathlib import PurePath
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import inspect

from ..base import ParameterError

_Options = TypeVar("_Options", bound=msgspec.Struct)
_Spec = TypeVar("_Spec")


# msgspec evaluates all annotations at each call, which is half of the time that it takes to make a reader.
_type_info = lru_cache(maxsize=64)(inspect.type_info)
_MOST_SHOWN = 300
_MOST_LISTED = 5


class _Shown(reprlib.Repr):
    """A short form of a value for messages: enough to recognise it, without the numbers of a whole array."""

    def __init__(self) -> None:
        super().__init__()
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = 12
        self.maxstring = self.maxother = 200

    def repr_instance(self, value: Any, level: int) -> str:
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            return f"<{type(value).__name__} of shape {tuple(value.shape)}, {value.dtype}>"
        return super().repr_instance(value, level)


def shown(value: object) -> str:
    """Return `repr(value)`, shortened; an array or a tensor is shown by shape and type."""
    text = _Shown().repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 40]}…{text[-40:]}"


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return ` (did you mean 'x'?)`, or "" if no known word is similar."""
    import difflib  # a quarter of a megabyte, for mistakes alone

    close = difflib.get_close_matches(word, list(known), 1, likeness)
    return f" (did you mean {close[0]!r}?)" if close else ""


_CALLED_ELSEWHERE: Mapping[str, tuple[str, str]] = {
    **{
        name: ("transform", f"it belongs in transform: transform={{{name!r}: …}}")
        for name in (
            "crop_size",
            "crop_beside",
            "random_resized_crop",
            "mirror",
            "scale",
            "mean_value",
            "mean_file",
            "force_color",
            "force_gray",
        )
    },
    "drop_last": ("last_batch", "here it is last_batch='drop'"),
    "num_workers": ("num_loaders", "here it is num_loaders"),
    "collate_fn": ("batch_size", "here a postprocess hook gets the whole batch"),
    "worker_init_fn": ("num_loaders", "not needed: loaders are seeded for each sample; make what a hook needs in it"),
    "pin_memory": ("device", "not needed: with device: cuda batches come from page-locked memory"),
}
"""Names from Caffe and torch's DataLoader: for each the parameter that replaces it here, and a hint."""


def meant(word: str, known: Collection[str]) -> str:
    """Return a hint like `nearest`; a name from Caffe or torch is explained instead."""
    goes_with, hint = _CALLED_ELSEWHERE.get(word, ("", ""))
    return f" ({hint})" if goes_with in known else nearest(word, known)


def nothing_there(name: object, there: Iterable[str], what: str) -> KeyError:
    """Return the KeyError for a lookup of `name` in `what`, which has the names `there`."""
    names = list(there)
    return KeyError(f"{name!r}{nearest(str(name), names)}: the {what} has {', '.join(names) or 'nothing'}")


def listed(word: str, known: Iterable[str]) -> str:
    """Return `the known ones are …`. If more than five are known and `word` resembles one, lists only the nearest."""
    import difflib

    names = list(known)
    if len(names) <= _MOST_LISTED or not meant(word, names):
        return f"the known ones are {', '.join(names)}"
    return f"the nearest known ones are {', '.join(difflib.get_close_matches(word, names, _MOST_LISTED, 0.0))}"


def chosen(known: Mapping[str, _Spec], tops: Iterable[str] | None, what: str) -> Mapping[str, _Spec]:
    """Select `tops` from `known`, in order; None selects all. Raises ParameterError for an unknown top."""
    for name in tops or ():
        if name not in known:
            raise ParameterError(f"{what}: unknown top {name!r}{nearest(name, known)}; {listed(name, known)}")
    return known if tops is None else {name: known[name] for name in tops}


def check_names(names: Iterable[object], known: Iterable[str], what: str) -> None:
    """Raises ParameterError for the first of `names` that is not in `known`, with a hint at the name meant."""
    allowed = tuple(known)
    for name in names:
        if name not in allowed:
            raise ParameterError(
                f"{what}: unknown parameter {name!r}{meant(str(name), allowed)}; {listed(str(name), allowed)}"
            )


def check_options(options: object, into: type[_Options], what: str) -> _Options:
    """Convert `options` to the `msgspec.Struct` type `into`.

    Raises ParameterError naming key, value and allowed values. `what` names the owner of the options in that message:
    "source hdf5". The struct's field names are the keys; `Annotated[int, msgspec.Meta(ge=1)]` and `Literal[...]`
    declare the allowed values.
    """
    if not isinstance(options, Mapping):
        raise ParameterError(f"{what}: expected a mapping of names to values, got {shown(options)}")
    kind = _type_info(into)
    options = {name: paths_as_text(value) for name, value in _plain(options, kind).items()}
    _check_keys(options, kind, what)
    try:
        return msgspec.convert(options, into, str_keys=True)
    except msgspec.ValidationError as error:
        raise ParameterError(_explain(error, options, kind, what)) from None


def _plain(value: Any, kind: inspect.Type | None) -> Any:
    """Convert NumPy numbers, their lists and a torch.device to the plain values that `kind` expects.

    A field of type Any keeps its value: it may hold arrays of samples or of weights.
    """
    if kind is None or isinstance(kind, inspect.AnyType):
        return value
    if isinstance(value, np.generic | np.ndarray) and value.ndim <= 1:
        return value.tolist()
    if (type(value).__module__, type(value).__name__) == ("torch", "device"):  # known by its name: no torch here
        return str(value)
    if isinstance(value, Mapping):
        mapping = _member(kind, inspect.DictType)
        return {
            name: _plain(inner, mapping.value_type if mapping else _type_inside(kind, name))
            for name, inner in value.items()
        }
    if type(value) in (list, tuple):
        return type(value)(_plain(inner, _type_inside(kind, 0)) for inner in value)
    return value


def paths_as_text(value: object) -> object:
    """Convert path objects to text, also inside lists and mappings; OmegaConf's lists count as lists."""
    if isinstance(value, PurePath):
        return os.fspath(value)
    if isinstance(value, MutableSequence) and not isinstance(value, bytearray | array):
        return [paths_as_text(inner) for inner in value]
    if type(value) is tuple:
        return tuple(paths_as_text(inner) for inner in value)
    if isinstance(value, Mapping):
        return {name: paths_as_text(inner) for name, inner in value.items()}
    return value


def _check_keys(options: Mapping[object, object], kind: inspect.Type, what: str, parent: str = "") -> None:
    """Raises ParameterError for an unknown or missing key in `options` or in any mapping inside it."""
    struct = _member(kind, inspect.StructType)
    if struct is None:
        return
    check_names(options, [field.encode_name for field in struct.fields], f"{what}: {parent[:-1]}" if parent else what)
    for field in struct.fields:
        value = options.get(field.encode_name)
        if field.required and field.encode_name not in options:
            raise ParameterError(
                f"{what}: parameter {parent + field.encode_name!r} is missing: expected {allowed(field.type)}"
            )
        if isinstance(value, Mapping):
            _check_keys(value, field.type, what, f"{parent}{field.encode_name}.")


def _explain(error: msgspec.ValidationError, options: object, kind: inspect.Type, what: str) -> str:
    """Return a message with the name, value and allowed values of the option that msgspec rejects.

    msgspec's message ends with a path: "… - at `$.transform.mean_value[1]`" leads to transform, mean_value, 1.
    """
    name, value = "", options
    for key, position in re.findall(r"\.([^.\[`]+)|\[(\d+)\]", str(error).rpartition("`$")[2]):
        step = key or int(position)
        inner = _type_inside(kind, step)
        if inner is None or not isinstance(value, Mapping | list | tuple):
            break
        name += f"[{step}]" if isinstance(step, int) else f".{step}"
        value = value[step] if isinstance(value, Mapping) else value[int(step)]
        kind = inner
    return f"{what}: parameter {name.lstrip('.')!r} is {shown(value)}: expected {allowed(kind)}{_as_number(value)}"


def _as_number(value: object) -> str:
    """Return a hint for a fraction written as text, such as {scale: 1/255}."""
    fraction = re.fullmatch(r"\s*(\d+\.?\d*)\s*/\s*(\d*\.?\d*[1-9]\d*)\s*", value) if isinstance(value, str) else None
    return f"; write {value} as {float(fraction[1]) / float(fraction[2])!r}" if fraction else ""


def _type_inside(kind: inspect.Type, step: str | int) -> inspect.Type | None:
    if isinstance(step, int):
        sequence = _member(kind, inspect.VarTupleType) or _member(kind, inspect.ListType)
        return sequence.item_type if sequence else None
    struct = _member(kind, inspect.StructType)
    fields = {field.encode_name: field.type for field in struct.fields} if struct else {}
    return fields.get(step)


_Kind = TypeVar("_Kind", bound=inspect.Type)


def _member(kind: inspect.Type, wanted: type[_Kind]) -> _Kind | None:
    """Return `kind`, or a member of the union `kind`, if it is an instance of `wanted`."""
    members = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return next((member for member in members if isinstance(member, wanted)), None)


def allowed(kind: inspect.Type) -> str:
    """Return in words which values a type allows: "a whole number >= 1 or 'auto'"."""
    match kind:
        case inspect.UnionType():
            # Leaving a parameter out says None; a message that offers it as a value only gets longer.
            return " or ".join(allowed(member) for member in kind.types if not isinstance(member, inspect.NoneType))
        case inspect.LiteralType():
            return " or ".join(map(repr, kind.values))
        case inspect.IntType() | inspect.FloatType():
            return ("a whole number" if isinstance(kind, inspect.IntType) else "a number") + _bounds(kind)
        case inspect.ListType() | inspect.VarTupleType():
            more = "" if kind.min_length == kind.max_length else " or more"
            size = f" of {kind.min_length}{more}" if kind.min_length else ""
            return f"a list{size}, each item {allowed(kind.item_type)}"
        case inspect.StructType():
            return f"a mapping with keys among {', '.join(field.encode_name for field in kind.fields)}"
        case inspect.DictType():
            any_value = isinstance(kind.value_type, inspect.AnyType)
            return "a mapping of names to values" + ("" if any_value else f", each value {allowed(kind.value_type)}")
        case inspect.EnumType():
            return " or ".join(repr(member.value) for member in kind.cls)
        case inspect.CustomType():
            return f"an object of type {kind.cls.__name__}"
    return _IN_WORDS.get(type(kind), type(kind).__name__)


_IN_WORDS: Mapping[type[inspect.Type], str] = {
    inspect.StrType: "text",
    inspect.BytesType: "bytes",
    inspect.BoolType: "true or false",
    inspect.NoneType: "null",
    inspect.AnyType: "anything",
}


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    signs = ((">=", kind.ge), (">", kind.gt), ("<=", kind.le), ("<", kind.lt))
    text = " and ".join(f"{sign} {bound:g}" for sign, bound in signs if bound is not None)
    return f" {text}" if text else ""
