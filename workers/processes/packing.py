"""The recipe as bytes for the loaders, and the modules that they will need to read it.

The nursery imports those before it forks: else each loader would import the source's code, the hooks' and all that they
use for itself, which takes 0.1 s for h5py alone, again after each death, and memory that no two of them share.
"""

from __future__ import annotations

import io
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import cloudpickle


def pack(recipe: object) -> tuple[bytes, tuple[str, ...]]:
    """`recipe` pickled, and the modules that it refers to, without __main__, which is sent by value."""
    with io.BytesIO() as file:
        pickler = _Pickler(file)
        pickler.dump(recipe)
        return file.getvalue(), tuple(name for name in pickler.modules if name != "__main__")


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Sees every class, function and module on its way; numbers, strings and lists pass it by and cost nothing."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.modules: dict[str, None] = {}

    def reducer_override(self, thing: object) -> Any:
        if isinstance(thing, ModuleType):
            self.modules[thing.__name__] = None
        elif isinstance(thing, type | FunctionType | BuiltinFunctionType) and isinstance(thing.__module__, str):
            self.modules[thing.__module__] = None
        return super().reducer_override(thing)
