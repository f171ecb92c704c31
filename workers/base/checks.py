"""Checking a mapping of options into a typed, frozen object, with one message that helps."""

from __future__ import annotations

import os
import re
import reprlib
from array import array
from collections.abc import Collection, Iterable, Mapping, MutableSequence
from pathlib import PurePath
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import inspect

from .errors import ParameterError

_Options = TypeVar("_Options", bound=msgspec.Struct)
_Spec = TypeVar("_Spec")


_MOST_SHOWN = 300
_MOST_LISTED = 5


class _Shown(reprlib.Repr):
    """What a message shows of a value: enough to recognise it by, and never the numbers of a whole array."""

    def __init__(self) -> None:
        super().__init__()
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = 12
        self.maxstring = self.maxother = 200

    def repr_instance(self, value: Any, level: int) -> str:
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            return f"<{type(value).__name__} of shape {tuple(value.shape)}, {value.dtype}>"
        return super().repr_instance(value, level)


def shown(value: object) -> str:
    """`repr(value)`, shortened; an array or a tensor by its shape and type."""
    text = _Shown().repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 40]}…{text[-40:]}"


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """` (did you mean 'x'?)`, or nothing if no known word is near."""
    import difflib  # a quarter of a megabyte, for mistakes alone

    close = difflib.get_close_matches(word, list(known), 1, likeness)
    return f" (did you mean {close[0]!r}?)" if close else ""


_CALLED_ELSEWHERE: Mapping[str, tuple[str, str]] = {
    **{
        name: ("transform", f"it belongs in transform: transform={{{name!r}: …}}")
        for name in ("crop_size", "mirror", "scale", "mean_value", "mean_file", "force_color", "force_gray")
    },
    "drop_last": ("last_batch", "here it is last_batch='drop'"),
    "num_workers": ("num_loaders", "here it is num_loaders"),
    "collate_fn": ("batch_size", "here a postprocess hook gets the whole batch"),
    "worker_init_fn": ("num_loaders", "not needed: loaders are seeded for each sample; make what a hook needs in it"),
    "pin_memory": ("page_lock", "not needed: a CUDA device gets its batches from page-locked memory; see page_lock"),
}
"""What a user of Caffe or of torch's DataLoader may write: the known name that the hint goes with, and the hint."""


def meant(word: str, known: Collection[str]) -> str:
    """As `nearest`; names that others use for something that is known here are explained."""
    goes_with, hint = _CALLED_ELSEWHERE.get(word, ("", ""))
    return f" ({hint})" if goes_with in known else nearest(word, known)


def nothing_there(name: object, there: Iterable[str], what: str) -> KeyError:
    """The error of looking up `name` in `what`, which has the names `there`."""
    names = list(there)
    return KeyError(f"{name!r}{nearest(str(name), names)}: the {what} has {', '.join(names) or 'nothing'}")


def listed(word: str, known: Iterable[str]) -> str:
    """`the known ones are …`; of more than five, the nearest ones alone if `word` is near to one of them."""
    import difflib

    names = list(known)
    if len(names) <= _MOST_LISTED or not meant(word, names):
        return f"the known ones are {', '.join(names)}"
    return f"the nearest known ones are {', '.join(difflib.get_close_matches(word, names, _MOST_LISTED, 0.0))}"


def chosen(known: Mapping[str, _Spec], tops: Iterable[str] | None, what: str) -> Mapping[str, _Spec]:
    """Those of the tops that are wanted, in that order, None meaning all; raises ParameterError for one unknown."""
    for name in tops or ():
        if name not in known:
            raise ParameterError(f"{what}: unknown top {name!r}{nearest(name, known)}; {listed(name, known)}")
    return known if tops is None else {name: known[name] for name in tops}


def check_names(names: Iterable[object], known: Iterable[str], what: str) -> None:
    """Raises ParameterError for the first of `names` that is none of `known`, with what was meant."""
    allowed = tuple(known)
    for name in names:
        if name not in allowed:
            raise ParameterError(
                f"{what}: unknown parameter {name!r}{meant(str(name), allowed)}; {listed(str(name), allowed)}"
            )


def check_options(options: object, into: type[_Options], what: str) -> _Options:
    """`options` as a `msgspec.Struct` of type `into`; raises ParameterError naming key, value and what is allowed.

    `what` says whose options they are: "source hdf5". Field names of the struct are the keys; `Annotated[int,
    msgspec.Meta(ge=1)]` and `Literal[...]` state what is allowed.
    """
    if not isinstance(options, Mapping):
        raise ParameterError(f"{what}: expected a mapping of names to values, got {shown(options)}")
    kind = inspect.type_info(into)
    options = {name: paths_as_text(value) for name, value in _plain(options, kind).items()}
    _check_keys(options, kind, what)
    try:
        return msgspec.convert(options, into, str_keys=True)
    except msgspec.ValidationError as error:
        raise ParameterError(_explain(error, options, kind, what)) from None


def _plain(value: Any, kind: inspect.Type | None) -> Any:
    """NumPy's numbers and lists of them, and a torch.device, as the plain values that `kind` asks for.

    Where it allows anything they stay: arrays of samples are given there, and weights.
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
    """Path objects, alone or in lists and mappings, as text; anything else as it is. Lists of OmegaConf's are lists."""
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
    """The keys of `options` and of every mapping of options inside it: all known, none missing."""
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
    """The name, value and allowed values of what msgspec complains about at the path that ends its message.

    "… - at `$.transform.mean_value[1]`" leads to transform, mean_value, 1.
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
    """A hint for a fraction that is written as text, as in {scale: 1/255}."""
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
    """`kind` itself, or the one of a union's members, that is a `wanted`."""
    members = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return next((member for member in members if isinstance(member, wanted)), None)


def allowed(kind: inspect.Type) -> str:
    """What a type allows, in words: "a whole number >= 1 or 'auto'"."""
    match kind:
        case inspect.UnionType():
            # Leaving a parameter out says None; a message that offers it as a value only gets longer.
            return " or ".join(allowed(member) for member in kind.types if not isinstance(member, inspect.NoneType))
        case inspect.LiteralType():
            return " or ".join(map(repr, kind.values))
        case inspect.IntType() | inspect.FloatType():
            return ("a whole number" if isinstance(kind, inspect.IntType) else "a number") + _bounds(kind)
        case inspect.ListType() | inspect.VarTupleType():
            exactly = f" of {kind.min_length}" if kind.min_length and kind.min_length == kind.max_length else ""
            return f"a list{exactly}, each item {allowed(kind.item_type)}"
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
    told = " and ".join(f"{sign} {bound:g}" for sign, bound in signs if bound is not None)
    return f" {told}" if told else ""
