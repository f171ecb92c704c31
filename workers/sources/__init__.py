"""The sources of samples, found by the key under `source:` in the parameters; imported when first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

import msgspec

from ..base.checks import nearest, paths_as_text, shown
from ..base.errors import ParameterError
from ..base.extras import need
from ..base.source import Source, Tops

_CLASSES = {
    "hdf5": "hdf5.source:HDF5Source",
    "hdf5_samples": "hdf5_samples.source:HDF5SamplesSource",
    "npy": "stored.npy:NpySource",
    "lmdb": "lmdb.source:LmdbSource",
    "image_list": "images.source:ImageListSource",
    "zarr": "zarr.source:ZarrSource",
    "tar": "tar.source:TarSource",
    "windows": "images.windows:WindowSource",
    "arrays": "arrays:ArraysSource",
    "npz": "arrays:NpzSource",
    "idx": "arrays:IdxSource",
    "concat": "mixed:open_concat",
}

OPTIONS = {
    "hdf5": "hdf5.source:HDF5Options",
    "hdf5_samples": "hdf5_samples.source:HDF5SamplesOptions",
    "npy": "stored.npy:NpyOptions",
    "npz": "arrays:NpzOptions",
    "image_list": "images.options:ImageListOptions",
    "windows": "images.windows:WindowOptions",
    "lmdb": "lmdb.source:LmdbOptions",
    "tar": "tar.source:TarOptions",
    "zarr": "zarr.source:ZarrOptions",
    "stream": "stream:StreamOptions",
}
"""The classes of the options of those kinds that have any."""

_LIBRARIES = {"lmdb": "lmdb", "image_list": "cv2", "windows": "cv2", "zarr": "zarr"}
"""What a kind cannot do without, if it is not among the requirements of blobfeed itself."""

_TOP_BY_TOP = {
    "npy": "{data: data.npy, label: label.npy}",
    "idx": "{data: train-images-idx3-ubyte.gz, label: train-labels-idx1-ubyte.gz}",
    "arrays": "{data: x, label: y}",
}
"""Examples of the kinds whose options name the tops: a bare path would be a top called "path"."""


def open_source(spec: object, *, tops: Tops, base_dir: Path) -> Source:
    """The source that `spec` declares: a mapping with one key, the kind, over that kind's options; or a Source.

    A bare path instead of options stands for {path: …}, and a Source there for itself.

    Raises ParameterError for an unknown kind or a bad option, SourceError for what the files hold.
    """
    if isinstance(spec, Source):
        return spec
    if isinstance(spec, Mapping) and len(spec) > 1:
        named = [name for name in spec if name in _CLASSES or name == "stream"]
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
            f"source: expected a mapping with one key, the kind ({', '.join(_CLASSES)}), got {shown(spec)}"
        )
    ((kind, options),) = spec.items()
    if isinstance(options, Source):
        return options
    if kind == "stream":
        raise ParameterError(
            "source: the samples of a stream have no indices, so it can be no part of mix or concat, nor be inspected "
            "or packed: give it to a reader or a layer by itself, and mix streams in its function"
        )
    if kind not in _CLASSES:
        kinds = (*_CLASSES, "stream")
        raise ParameterError(
            f"source: unknown kind {kind!r}{nearest(kind, kinds)}; the known kinds are {', '.join(kinds)}"
        )
    if isinstance(options, str | PurePath) and kind != "concat":
        if kind in _TOP_BY_TOP:
            raise ParameterError(
                f"source {kind}: got {shown(options)}: give each top's name, such as {_TOP_BY_TOP[kind]}"
            )
        options = {"path": options}
    if not isinstance(options, Mapping) and kind != "concat":
        raise ParameterError(f"source {kind}: expected a mapping of options, got {shown(options)}")
    if kind in _LIBRARIES:
        need(_LIBRARIES[kind], f"source {kind}")
    open_it: Callable[..., Source] = _named(_CLASSES[kind])
    return open_it(options, tops=tops, base_dir=base_dir)


def options_of(kind: str) -> type[msgspec.Struct]:
    """The class of the options of a kind of source; raises ExtraMissing."""
    if kind in ("lmdb", "windows"):
        need("cv2" if kind == "windows" else "lmdb", f"source {kind}")
    options: type[msgspec.Struct] = _named(OPTIONS[kind])
    return options


def _named(place: str) -> Any:
    """What `place` names, `module:name`."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(f".{module}", __name__), name)


def is_our_own(source: Source) -> bool:
    """Whether reading `source` runs no code of the user's."""
    of_one_kind = source.kind in _CLASSES and source.kind != "concat"
    return of_one_kind and type(source).__module__.startswith(f"{__name__}.")


def is_in_memory(source: Source) -> bool:
    """Whether `source`, one of our own, holds all samples in memory, and no file."""
    return source.kind in ("arrays", "npz", "idx")


__all__ = ["OPTIONS", "Source", "is_in_memory", "is_our_own", "open_source", "options_of"]
