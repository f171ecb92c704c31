"""The meaning of each parameter: from the typed definitions, for `blobfeed params` and docs/parameters.md."""

from __future__ import annotations

import inspect
import re
import textwrap
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from msgspec import inspect as types

from ..sources import KINDS, options_of
from ..sources.images import PictureOptions
from ..sources.stored import Enough, PatchOptions
from ..sources.table import WindowOptions
from ..workers.api import Cache, Pad, Parameters, RandomResizedCrop, RemoteLoaders, Transform, allowed, meant
from ..workers.base import ExtraMissing, ParameterError

_PARTS: dict[str, type[msgspec.Struct]] = {
    "transform": Transform,
    "random_resized_crop": RandomResizedCrop,
    "pad": Pad,
    "cache": Cache,
    "remote_loaders": RemoteLoaders,
    "window": WindowOptions,
    "patch": PatchOptions,
    "where": Enough,
}

_WITH_OPTIONS = [kind for kind, entry in KINDS.items() if entry.options]


@dataclass(frozen=True)
class Documented:
    """One parameter. `values`: which are allowed, in words; `default`: as it is written in YAML, or ""."""

    name: str
    values: str
    default: str
    text: str


def documented(options: type[msgspec.Struct]) -> list[Documented]:
    """The fields of `options` in their order, with what their class's docstring says of each: `name: text`."""
    struct = types.type_info(options)
    assert isinstance(struct, types.StructType)
    fields, made = {field.encode_name: field for field in struct.fields}, []
    for kind in options.__mro__:  # its own first, then those that it shares with others
        texts = described(kind)
        for name in [name for name in fields if name in vars(kind).get("__annotations__", ())]:
            field = fields.pop(name)
            values = "a mapping" if isinstance(field.type, types.StructType) else allowed(field.type)
            made.append(Documented(name, values, _default(field), texts.get(name, "")))
    return made


def described(options: type) -> dict[str, str]:
    """By name what the docstring says: lines `name: text`, continued by lines that are indented further."""
    found = re.finditer(r"^(\w+(?:, \w+)*): (.+(?:\n {4}.+)*)", inspect.cleandoc(options.__doc__ or ""), re.MULTILINE)
    return {name: " ".join(each[2].split()) for each in found for name in each[1].split(", ")}


def _default(field: types.Field) -> str:
    if field.required:
        return "required"
    if isinstance(field.default, bool):
        return str(field.default).lower()
    return str(field.default) if isinstance(field.default, str | int | float) else ""


def as_text(name: str = "") -> str:
    """For the terminal: all parameters, or those of a name, be it of a part such as transform or of a kind of source.

    Raises ParameterError for a name that none has.
    """
    if name in ("decode", "postprocess"):
        from ..layers import MultiProcessInputLayer

        text = textwrap.indent(inspect.getdoc(getattr(MultiProcessInputLayer, name)) or "", "  ")
        return (
            f"{name}: no key of param_str, but an argument of readers and a method of a layer; see your_code.md\n{text}"
        )
    everything = {each.name: each for each in documented(Parameters)}
    if not name:
        return "\n".join(map(_line, everything.values())) + f"\n\nkinds of source: {', '.join(KINDS)}"
    found: list[str] = []
    if name in everything or name in KINDS or name in _PARTS:
        head = _head(everything.get(name), name)
        part = options_of(name) if name in _WITH_OPTIONS else _PARTS.get(name)
        if name in KINDS and KINDS[name].about:
            head += f"\n  {KINDS[name].about}"
        found = [head, *(f"  {_line(each)}" for each in (documented(part) if part else ()))]
    found += _inside(name)
    if not found:  # such as weights, in the text of sampler
        found = [_line(each) for each in everything.values() if re.search(rf"\b{re.escape(name)}: ", each.text)]
    if not found:
        known = [*everything, *KINDS]
        raise ParameterError(f"unknown parameter {name!r}{meant(name, known)}; `blobfeed params` prints all")
    return "\n".join(found)


def _head(one: Documented | None, name: str) -> str:
    """Return what stands above the options of a parameter, a kind of source, or a part that only these have."""
    if one is not None:
        return _line(one)
    if name in KINDS:
        return f"source: {{{name}: …}}"
    return f"{name}: {(inspect.getdoc(_PARTS[name]) or '').partition(chr(10))[0]}"


def _inside(name: str) -> list[str]:
    """The options of that name in the parts and in the kinds of source, each under its heading."""
    found: list[str] = []
    for place in (*_PARTS, *_WITH_OPTIONS):
        with suppress(ExtraMissing):  # a kind whose library is not there cannot be read here either
            options = _PARTS[place] if place in _PARTS else options_of(place)
            heading = place if place in _PARTS else f"source: {{{place}: …}}"
            found += [f"{heading}\n  {_line(each)}" for each in documented(options) if each.name == name]
    return found


def _line(one: Documented) -> str:
    default = f"; {one.default if one.default == 'required' else f'default {one.default}'}" if one.default else ""
    return f"{one.name}: {one.text}\n    {one.values}{default}"


def as_markdown() -> str:
    """docs/parameters.md."""
    head = (
        "# Parameters\n\nThe same names in a layer's `param_str`, as keyword arguments of the readers, and in error "
        "messages. This page is made from the definitions in the code (`python -m blobfeed.tools.parameters`); in a "
        "terminal `blobfeed params NAME` prints the same.\n"
    )
    parts = [f"## {name}\n\n{_table(documented(part))}" for name, part in _PARTS.items()]
    for kind, entry in KINDS.items():
        about = f"{entry.about[:1].upper()}{entry.about[1:]}\n" if entry.about else ""
        options = _options(options_of(kind)) if entry.options else ""
        parts.append(f"## source: {kind}\n\n" + "\n".join(filter(None, (about, options))))
    pictures = f"## Options of pictures\n\n{_table(documented(PictureOptions))}"
    return "\n".join([head, _table(documented(Parameters)), *parts, pictures])


def _options(options: type[msgspec.Struct]) -> str:
    """The table of a kind's own options; those that all kinds of pictures share stand once on the page."""
    if not issubclass(options, PictureOptions):
        return _table(documented(options))
    shared = documented(PictureOptions)
    own = [each for each in documented(options) if each not in shared]
    return f"{_table(own)}\nIt has the [options of pictures](#options-of-pictures), too.\n"


def _table(parameters: list[Documented]) -> str:
    rows = [f"| `{each.name}` | {each.text} | {each.values} | {each.default} |" for each in parameters]
    table = "\n".join(["| parameter | what it says | values | default |", "|---|---|---|---|", *rows, ""])
    return re.sub(r"\b(\w+\.md)\b", r"[\1](\1)", table)  # links to other pages


if __name__ == "__main__":
    print(as_markdown(), end="")
