"""The parameters of a reader by name, for `help` and for editors that ask a running program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TypeVar, get_type_hints

import msgspec

from ..workers.base.checks import check_names
from ..workers.base.errors import ParameterError
from ..workers.base.parameters import Parameters, ReaderParameters

_Function = TypeVar("_Function", bound=Callable[..., object])


def names_parameters(function: _Function) -> _Function:
    """Replaces the `**parameters` in the signature that `function` shows by each of them, with its default."""
    signature = inspect.signature(function)
    own = [given for given in signature.parameters.values() if given.kind is not given.VAR_KEYWORD]
    kinds = get_type_hints(ReaderParameters)
    named = [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, annotation=kinds[each.name], default=_default(each)
        )
        for each in msgspec.structs.fields(Parameters)
        if each.name in kinds
    ]
    function.__signature__ = signature.replace(parameters=own + named)  # type: ignore[attr-defined]
    return function


def check_no_copy(what: str, parameters: Mapping[str, object]) -> None:
    """Raises ParameterError for a `copy` to one that gives no choice."""
    if "copy" in parameters:
        raise ParameterError(f"{what} always copies: leave out 'copy'")


def check_keywords(reader: type, parameters: Mapping[str, object]) -> None:
    """Raises ParameterError for a keyword that `reader` has not. One of its own may be meant, such as `decode`."""
    check_names(parameters, inspect.signature(reader).parameters, reader.__name__)


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is msgspec.NODEFAULT else field.default
