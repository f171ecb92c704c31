"""The base class of our layers: Caffe's own where Caffe can be imported, else the stand-in."""

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
    # Loaders and samplers get the user's layer class and with it this module, but not Caffe with all that it brings.
    if "BLOBFEED_ROLE" in os.environ:
        _let_caffe_be_imported()
        return standin.Layer
    if not caffe_exists():
        return standin.Layer
    try:
        caffe = importlib.import_module("caffe")
    except Exception as error:  # whatever a broken build raises: the trainer may still be our own
        warnings.warn(
            f"there is a module caffe, but importing it raised {type(error).__name__}: {error}; layers are based on "
            "the stand-in, and Caffe itself will not take them",
            RuntimeWarning,
            stacklevel=2,
        )
        return standin.Layer
    return getattr(caffe, "Layer", standin.Layer)


def _let_caffe_be_imported() -> None:
    """The module of the user's class may say `import caffe.io`, where the trainer has blobfeed.caffe."""
    if not caffe_exists():
        sys.modules["caffe"] = caffe = _Later("caffe", "caffe")
        vars(caffe).update(Layer=standin.Layer, TRAIN=0, TEST=1)
        for name in (".io", ".net_spec", ".coord_map", ".proto", ".proto.caffe_pb2"):
            module = _Later(f"caffe{name}", f"trainer.pycaffe{name.removeprefix('.proto')}")
            sys.modules[module.__name__] = module
            above, _, last = module.__name__.rpartition(".")
            setattr(sys.modules[above], last, module)


class _Later(ModuleType):
    """Stands for our module `home`, which is imported when a name in it is asked for: most loaders need none.

    By its name, since nothing here may import what stands above.
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
    """A folder of that name, such as one with Caffe's sources, can be imported too, but has no file."""
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

    Caffe's layer class is made by Boost.Python, whose metaclass can be imported nowhere; a user's class that is sent to
    the loaders by value takes its metaclass along by name. There the name stands for the stand-in's.
    """


class CaffeLayer(_Found, metaclass=LayerMeta):
    """`caffe.Layer`, which can also be made where there is no Caffe to make it: in a harness, in another trainer."""

    _is_caffes = False
    """Whether the real Caffe has made it."""

    def __init__(self, layer_param: object = None) -> None:
        # Caffe's constructor takes Caffe's own LayerParameter, and nothing else. Ours may be of no module.
        if not IS_STANDIN and str(type(layer_param).__module__).partition(".")[0] == "caffe":
            self._is_caffes = True
        if IS_STANDIN or self._is_caffes:
            super().__init__(layer_param)


def new_layer(layer_class: type[Any], layer_param: object) -> Any:
    """An object of `layer_class`, which may be a user's over the real `caffe.Layer`: only Caffe can make that."""
    is_class = isinstance(layer_class, type)  # or a function that makes the layer
    if not IS_STANDIN and is_class and issubclass(layer_class, _Found) and not issubclass(layer_class, CaffeLayer):
        # CaffeLayer comes between the user's class and Caffe's, whose `blobs` belong to Caffe's object.
        more = {"__module__": layer_class.__module__, "blobs": (), "takes_arrays": True}
        layer_class = LayerMeta(layer_class.__name__, (layer_class, CaffeLayer), more)
    return layer_class(layer_param)
