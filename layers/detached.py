"""The loaders' copy of a layer: an object of its class with only the attributes that the user has set."""

from __future__ import annotations

from types import MethodType
from typing import Any

from ..workers.api import Hooks

HOOKS = ("decode", "postprocess", "sampler", "batch_sampler")

_STAYS_BEHIND = frozenset({"_input", "blobs", "type", "trainer_parameters"})
"""Attributes that belong to the trainer's process: the pipeline, and those that Caffe has set."""


class DetachedLayer:
    """A copy of the layer's class and attributes, pickled to the loaders, which construct the object from it.

    `__init__` and `setup` of the class do not run there. An attribute that cannot be sent is refused as that of any
    hook is, under its name in `attributes`.
    """

    def __init__(self, layer: Any) -> None:
        self.layer_class: Any = type(layer)
        self.attributes = {name: value for name, value in vars(layer).items() if name not in _STAYS_BEHIND}
        if not isinstance(self.attributes.get("param_str", ""), str):
            del self.attributes["param_str"]  # a mapping, which may hold the source's arrays
        # The layer's bound methods, as in `self.decode = self.decode_test`, are bound to the copy again.
        attributes = self.attributes.items()
        own = [name for name, it in attributes if isinstance(it, MethodType) and it.__self__ is layer]
        self._methods = {name: self.attributes.pop(name).__func__ for name in own}
        self._layer: Any = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_layer": None}

    def made(self) -> Any:
        if self._layer is None:
            self._layer = self.layer_class.__new__(self.layer_class)
            bound = {name: MethodType(function, self._layer) for name, function in self._methods.items()}
            self._layer.__dict__.update(self.attributes, **bound)
        return self._layer


class LayerHook:
    """The hook `name` of a detached layer, with the signature of the user's method for `inspect.signature`."""

    def __init__(self, layer: DetachedLayer, name: str) -> None:
        self.layer = layer
        self._name = name
        self.__qualname__ = f"{layer.layer_class.__qualname__}.{name}"

    @property
    def __wrapped__(self) -> Any:
        return getattr(self.layer.made(), self._name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.__wrapped__(*arguments, **named)


def hooks_of(layer: Any, base: type[Any]) -> Hooks:
    """Return the hooks that `layer` or its class overrides, bound to a detached copy."""
    overridden = [
        name
        for name in HOOKS
        if getattr(type(layer), name) is not getattr(base, name) or callable(vars(layer).get(name))
    ]
    if not overridden:
        return Hooks()
    detached = DetachedLayer(layer)
    return Hooks(**{name: LayerHook(detached, name) for name in overridden})
