"""The sources of samples, opened by what stands under `source:` in the parameters; kinds.py is the table of kinds."""

from __future__ import annotations

if __name__ != "blobfeed.sources":
    raise ImportError(f"import blobfeed.sources: as {__name__!r} its classes would exist a second time")

from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

import msgspec

from ..workers.api import Source, Tops, nearest, paths_as_text, shown
from ..workers.base import BlobfeedError, ParameterError, SourceError, need
from .kinds import GROUP, KINDS, imported, installed_kinds

_SUCH_AS = "such as {hdf5: {path: train.h5}}, or {arrays: {data: x, label: y}} for arrays in memory"

_CROPPED = ("image_list", "files")
_SIZES = ("new_height", "new_width", "shorter_side", "max_height", "max_width", "equal_sizes")
_LARGEST = 1 << 14
"""Pixels; memory for a whole picture is reserved, and touched as far as pictures fill it."""


def open_source(spec: object, *, tops: Tops, base_dir: Path) -> Source:
    """The source that `spec` declares: a mapping with one key, the kind, over that kind's options; or a Source.

    A bare path instead of options stands for {path: …}, and a Source there for itself.

    Raises ParameterError for an unknown kind or a bad option, SourceError for what the files hold.
    """
    if isinstance(spec, Source):
        return spec
    if isinstance(spec, Mapping) and len(spec) > 1:
        named = [name for name in spec if name in KINDS]
        if len(named) == 1:
            kind, inner = named[0], spec[named[0]]
            inside = dict(inner) if isinstance(inner, Mapping) else {"path": paths_as_text(inner)}
            others = {name: value for name, value in spec.items() if name != kind}
            raise ParameterError(
                f"source: {', '.join(map(repr, others))} {'belongs' if len(others) == 1 else 'belong'} inside the "
                f"options of {kind!r}: {shown({kind: inside | others})}"
            )
    if not isinstance(spec, Mapping) or len(spec) != 1:
        raise ParameterError(
            f"source: expected a mapping with one key, the kind ({', '.join(KINDS)}), {_SUCH_AS}; got {shown(spec)}"
        )
    ((kind, options),) = spec.items()
    if isinstance(options, Source):
        return options
    if kind == "stream":
        raise ParameterError(
            "source: the samples of a stream have no indices, so it can be no part of mix, concat or zip, nor be "
            "inspected or packed: give it to a reader or a layer by itself, and mix streams in its function"
        )
    kinds = KINDS if kind in KINDS else {**installed_kinds(), **KINDS}
    if kind not in kinds:
        raise ParameterError(
            f"source: unknown kind {kind!r}{nearest(kind, kinds)}; the known kinds are {', '.join(kinds)}, {_SUCH_AS}"
        )
    entry = kinds[kind]
    if not isinstance(options, Mapping) and not entry.is_list:
        if entry.example:
            raise ParameterError(f"source {kind}: got {shown(options)}: give each top's name, such as {entry.example}")
        if not isinstance(options, str | PurePath):
            raise ParameterError(f"source {kind}: expected a mapping of options, got {shown(options)}")
        options = {"path": options}
    if entry.library:
        need(entry.library, f"source {kind}")
    try:
        open_it: Callable[..., Source] = imported(entry.opener)
    except (ImportError, AttributeError) as error:
        if kind in KINDS:
            raise
        raise ParameterError(
            f"source {kind}: {entry.opener!r}, which an installed package names as its opener (entry point group "
            f"{GROUP}), cannot be imported: {error}; install that package anew, or mend its entry point"
        ) from error
    try:
        return open_it(options, tops=tops, base_dir=base_dir)
    except (BlobfeedError, ImportError, MemoryError):
        raise
    except Exception as error:  # a library's, about a file that nobody has foreseen
        raise SourceError(
            f"source {kind}: {shown(options)} cannot be opened: {type(error).__name__}: {error}; if files are damaged, "
            "write or fetch them again"
        ) from error


def with_color(declared: Any, color: str) -> Any:
    """Return `declared`, which may be wrong, with `color` for its pictures wherever it does not say another."""
    if not isinstance(declared, Mapping):
        return declared
    return {kind: _colored(kind, options, color) for kind, options in declared.items()}


def _colored(kind: str, options: Any, color: str) -> Any:
    if kind in KINDS and KINDS[kind].is_list and isinstance(options, list | tuple):
        return [with_color(part, color) for part in options]
    if kind not in KINDS or not KINDS[kind].has_pictures:
        return options
    if isinstance(options, str | PurePath):
        options = {"path": options}
    return {"color": color, **options} if isinstance(options, Mapping) else options


def with_any_size(declared: dict[str, Any]) -> dict[str, Any]:
    """Return `declared`, of which a transform crops the pictures: if they are its one top, they may have any size."""
    ((kind, options),) = declared.items()
    if isinstance(options, str | PurePath):
        options = {"path": options}
    if kind not in _CROPPED or not isinstance(options, Mapping) or any(options.get(size) for size in _SIZES):
        return declared
    return {kind: {**options, "max_height": _LARGEST}}


def color_of(declared: Any) -> str:
    """Return the order of the channels of all pictures in `declared`, a source or a list of them; "" without one.

    Of a zip that of its first source.
    """
    if isinstance(declared, list | tuple):
        colors = {color_of(part) for part in declared}
        return colors.pop() if len(colors) == 1 else ""
    if not isinstance(declared, Mapping):
        return ""
    for kind, options in declared.items():  # a part of a mix has its weight beside it
        if kind in KINDS and KINDS[kind].is_list:
            return color_of(options[:1] if kind == "zip" and isinstance(options, list | tuple) else options)
        if kind in KINDS and KINDS[kind].has_pictures and not isinstance(options, Source):
            return str(options.get("color", "rgb")) if isinstance(options, Mapping) else "rgb"
    return ""


def lists_tops(declared: Any) -> bool:
    """Return true if `declared`, a source or a list of them, says itself in which order its tops come."""
    if isinstance(declared, list | tuple):
        return all(map(lists_tops, declared))
    if isinstance(declared, Mapping) and "tops" in declared:  # beside a part of a zip
        return True
    for kind, options in declared.items() if isinstance(declared, Mapping) else ():
        if kind in KINDS and KINDS[kind].is_list and not lists_tops(options):
            return False
        if kind in KINDS and KINDS[kind].finds_tops:
            return isinstance(options, Mapping) and any(options.get(name) for name in ("members", "columns", "arrays"))
    return True


def with_own_arrays(declared: Any, source: Any) -> Any:
    """Return `declared`, which `source` was opened from, with the source's own copies in place of arrays of the caller.

    The caller may then drop the arrays: there is no need for both.
    """
    if isinstance(declared, list | tuple):
        return [with_own_arrays(*part) for part in zip(declared, source.by_part if declared else (), strict=True)]
    if not isinstance(declared, Mapping) or source is None:
        return declared
    for kind in declared.keys() & KINDS:
        if KINDS[kind].is_list and isinstance(declared[kind], list | tuple):
            return {**declared, kind: with_own_arrays(declared[kind], source)}
    if isinstance(declared.get("arrays"), Mapping):
        return {**declared, "arrays": {**declared["arrays"], **source.own_arrays}}
    return declared


def options_of(kind: str) -> type[msgspec.Struct]:
    """The class of the options of a kind of source that has any; raises ExtraMissing."""
    entry = KINDS[kind]
    try:
        options: type[msgspec.Struct] = imported(entry.options)
    except ImportError:
        if entry.library:
            need(entry.library, f"source {kind}")
        raise
    return options
