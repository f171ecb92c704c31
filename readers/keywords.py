"""The arguments of a reader: checked, and by name for `help` and for editors that inspect a running program."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar, get_type_hints

import msgspec

from ..workers.api import (
    FOR_LAYERS,
    AnySource,
    DecodeHook,
    Parameters,
    PostprocessHook,
    ReaderParameters,
    check_names,
    check_parameters,
)
from ..workers.base import ParameterError

SourceLike = AnySource | Mapping[str, object] | str | Path | None

_OWN = ("tuples",)
"""Arguments of a reader that its datasets declare themselves, or do without."""

EPOCHS = 1
"""The epochs of a loop over a reader by default, as of any other loader. A layer's data have no end."""

_LAST_BATCH = "partial"
"""The default of readers where a loop ends: by then it should have had each sample once."""

_HELP_WIDTH = 90
"""Characters of a line of the signature that `help` shows, which puts the name in front of it."""

_Function = TypeVar("_Function", bound=Callable[..., object])
_Hook = TypeVar("_Hook")


class ReaderArguments(ReaderParameters, total=False):
    """The arguments that a dataset passes on to the BatchReader underneath."""

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
    """The same for `**arguments` that are passed on to `reader`; `tuples` is none of them."""
    shown = [given for given in inspect.signature(reader).parameters.values() if given.name not in _OWN]
    return lambda function: _showing(function, shown)


def _showing(function: _Function, others: Iterable[inspect.Parameter]) -> _Function:
    signature = inspect.signature(function)
    own = {name: given for name, given in signature.parameters.items() if given.kind is not given.VAR_KEYWORD}
    more = [given for given in others if given.name not in own]
    shown = _InOneScreen([*own.values(), *more], return_annotation=signature.return_annotation)
    function.__signature__ = shown  # type: ignore[attr-defined]
    return function


class _InOneScreen(inspect.Signature):
    """A signature that `help` shows by names and plain defaults: with the types of forty parameters it fills pages."""

    def __str__(self) -> str:
        names = [_named(each) for each in self.parameters.values()]
        if any(each.kind is each.KEYWORD_ONLY for each in self.parameters.values()):
            names.insert(sum(each.kind is not each.KEYWORD_ONLY for each in self.parameters.values()), "*")
        return textwrap.fill(f"({', '.join(names)})", _HELP_WIDTH, subsequent_indent="    ", break_long_words=False)

    def format(self, **_: object) -> str:
        """Return the same for the pydoc of Python 3.13, which would give each parameter a line."""
        return str(self)


def _named(parameter: inspect.Parameter) -> str:
    default = parameter.default
    if default is inspect.Parameter.empty:
        return parameter.name
    return f"{parameter.name}={default!r}" if isinstance(default, str | int | float | None) else f"{parameter.name}=…"


def check_hook(what: str, name: str, hook: _Hook | None) -> _Hook | None:
    """Return `hook` if it can be called, or None; raises ParameterError."""
    if hook is not None and not callable(hook):
        raise ParameterError(f"{what}: parameter {name!r} is {hook!r}: expected a function or another callable")
    return hook


def check_reader_parameters(what: str, source: SourceLike, values: Mapping[str, object]) -> Parameters:
    """Return the parameters that `values` give, with `source`; raises ParameterError, begun by `what`."""
    declared: dict[str, object] = dict(values)
    if isinstance(source, AnySource):
        declared["source"] = {source.kind: {}}
    elif source is not None:
        declared["source"] = source
    declared.setdefault("epochs", EPOCHS)
    if declared["epochs"] is not None:
        declared.setdefault("last_batch", _LAST_BATCH)
    return check_parameters(declared, what)


def check_keywords(reader: Callable[..., object], parameters: Mapping[str, object]) -> None:
    """Raises ParameterError for a keyword that `reader` has not. One of its own may be meant, such as `decode`."""
    for name in parameters.keys() & FOR_LAYERS.keys():
        raise ParameterError(
            f"{reader.__name__}: parameter {name!r} is {parameters[name]!r}: it is for layers; {FOR_LAYERS[name]}"
        )
    check_names(parameters, inspect.signature(reader).parameters, reader.__name__)


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.name in ("epochs", "last_batch"):
        return EPOCHS if field.name == "epochs" else _LAST_BATCH
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is msgspec.NODEFAULT else field.default
