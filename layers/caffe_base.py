"""The base class of the layers: Caffe's own if Caffe can be imported, else the stand-in."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import standin


def _find_layer_class() -> Any:
    # Loaders import this module with the user's layer class, but must not load Caffe and its libraries.
    if "BLOBFEED_ROLE" in os.environ:
        _let_caffe_be_imported()
        return standin.Layer
    if not caffe_exists():
        return standin.Layer
    try:
        caffe = importlib.import_module("caffe")
    except Exception as error:  # a broken build may raise anything, and blobfeed's own trainer needs no Caffe
        warnings.warn(
            f"there is a module caffe, but importing it raised {type(error).__name__}: {error}; layers are based on "
            "the stand-in, and Caffe itself will not take them",
            RuntimeWarning,
            stacklevel=2,
        )
        return standin.Layer
    return getattr(caffe, "Layer", standin.Layer)


def _let_caffe_be_imported() -> None:
    """Register modules caffe, caffe.io and so on, which a module of the user may import (see blobfeed.caffe)."""
    if not caffe_exists():
        sys.modules["caffe"] = caffe = _Later("caffe", "caffe")
        vars(caffe).update(Layer=standin.Layer, TRAIN=0, TEST=1)
        for name in (".io", ".net_spec", ".coord_map", ".proto", ".proto.caffe_pb2"):
            module = _Later(f"caffe{name}", f"trainer.pycaffe{name.removeprefix('.proto')}")
            sys.modules[module.__name__] = module
            above, _, last = module.__name__.rpartition(".")
            setattr(sys.modules[above], last, module)


class _Later(ModuleType):
    """A placeholder for the module `home`, which is imported at the first access to a name: most loaders need none.

    `home` is a text, since this package must not import the packages above it.
    """

    def __init__(self, name: str, home: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self._home = f"{__name__.partition('.')[0]}.{home}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self._home), name)


def caffe_exists() -> bool:
    """Return true for a real module caffe. A folder of that name, such as Caffe's sources, is importable, too."""
    if known := sys.modules.get("caffe"):
        return getattr(known, "__file__", None) is not None or not hasattr(known, "__path__")
    found = importlib.util.find_spec("caffe")
    return found is not None and found.origin is not None


if TYPE_CHECKING:
    _Found = standin.Layer
    _Metaclass = type
else:
    _Found = _find_layer_class()
    _Metaclass = type(_Found)

IS_STANDIN = _Found is standin.Layer


class LayerMeta(_Metaclass):
    """Caffe's metaclass under a name that every process can import.

    Boost.Python makes Caffe's layer class, and its metaclass is not importable. A user's class that is sent to the
    loaders by value refers to its metaclass by name. In a loader this name is the stand-in's metaclass.
    """


class CaffeLayer(_Found, metaclass=LayerMeta):
    """A `caffe.Layer` that can also be constructed without Caffe: in a harness, in another trainer."""

    _is_caffes = False
    """True if the real Caffe has constructed it."""

    def __init__(self, layer_param: object = None) -> None:
        # Caffe's constructor accepts only Caffe's own LayerParameter.
        if not IS_STANDIN and str(type(layer_param).__module__).partition(".")[0] == "caffe":
            self._is_caffes = True
        if IS_STANDIN or self._is_caffes:
            super().__init__(layer_param)


def new_layer(layer_class: type[Any], layer_param: object) -> Any:
    """Construct a `layer_class`, also a user's class over the real `caffe.Layer`, which only Caffe can construct."""
    is_class = isinstance(layer_class, type)  # or a function that makes the layer
    if not IS_STANDIN and is_class and issubclass(layer_class, _Found) and not issubclass(layer_class, CaffeLayer):
        # CaffeLayer goes between the user's class and Caffe's, whose `blobs` exist only in Caffe's own object.
        more = {"__module__": layer_class.__module__, "blobs": (), "takes_arrays": True}
        layer_class = LayerMeta(layer_class.__name__, (layer_class, CaffeLayer), more)
    return layer_class(layer_param)
