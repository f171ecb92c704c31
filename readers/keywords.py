"""The arguments of a reader by name, for `help` and for editors that ask a running program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar, get_type_hints

import msgspec

from ..workers.base.checks import check_names
from ..workers.base.errors import ParameterError
from ..workers.base.hooks import DecodeHook, PostprocessHook
from ..workers.base.parameters import Parameters, ReaderParameters

_OWN = ("copy", "tuples")
"""Arguments of a reader that its datasets declare themselves, or do without."""

_Function = TypeVar("_Function", bound=Callable[..., object])


class ReaderArguments(ReaderParameters, total=False):
    """What a dataset passes on to the BatchReader underneath."""

    decode: DecodeHook | None
    postprocess: PostprocessHook | None
    base_dir: Path | str | None
    train: bool


def names_parameters(function: _Function) -> _Function:
    """Replaces the `**parameters` in the signature that `function` shows by each of them, with its default."""
    kinds = get_type_hints(ReaderParameters)
    named = [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, annotation=kinds[each.name], default=_default(each)
        )
        for each in msgspec.structs.fields(Parameters)
        if each.name in kinds
    ]
    return _showing(function, named)


def names_arguments_of(reader: type) -> Callable[[_Function], _Function]:
    """The same for `**arguments` that are passed on to `reader`; `copy` and `tuples` are none of them."""
    shown = [given for given in inspect.signature(reader).parameters.values() if given.name not in _OWN]
    return lambda function: _showing(function, shown)


def _showing(function: _Function, others: Iterable[inspect.Parameter]) -> _Function:
    signature = inspect.signature(function)
    own = {name: given for name, given in signature.parameters.items() if given.kind is not given.VAR_KEYWORD}
    more = [given for given in others if given.name not in own]
    function.__signature__ = signature.replace(parameters=[*own.values(), *more])  # type: ignore[attr-defined]
    return function


def check_no_copy(what: str, parameters: Mapping[str, object]) -> None:
    """Raises ParameterError for `copy` or `tuples` to a dataset that gives no choice."""
    if "copy" in parameters:
        raise ParameterError(f"{what} always copies: leave out 'copy'")
    if "tuples" in parameters:
        raise ParameterError(f"{what} has its framework's own form of a batch: leave out 'tuples'")


def check_keywords(reader: type, parameters: Mapping[str, object]) -> None:
    """Raises ParameterError for a keyword that `reader` has not. One of its own may be meant, such as `decode`."""
    check_names(parameters, inspect.signature(reader).parameters, reader.__name__)


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is msgspec.NODEFAULT else field.default
