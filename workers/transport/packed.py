"""User code on its way to the loaders: packed in the trainer, carried unopened by the assembler.

The assembler never unpickles user code, so user code cannot bring it down. The assembler knows the names of the modules
that the code needs, and the nursery imports them before it forks. Otherwise each loader would import them itself: 0.1 s
for h5py alone, again after each death, in memory that no two loaders share.

Large arrays that the code holds travel beside the pickle. They are written once, into memory that every process maps
and none copies before it writes to it. Those that lie in a file, by np.memmap, are mapped there again.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache, partial
from importlib import import_module
from inspect import getclosurevars
from itertools import chain
from mmap import ALLOCATIONGRANULARITY
from operator import attrgetter
from pathlib import Path
from pickle import HIGHEST_PROTOCOL, PickleBuffer, PicklingError, Unpickler
from random import Random
from threading import local
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary
from zlib import crc32

import cloudpickle
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ..base import ParameterError, blake2b

_T = TypeVar("_T")

_SPAWNED = "__mp_main__"

_BESIDE_BYTES = 1 << 16
"""An array, or a pickle itself, of at least this size travels beside the pickle around it."""

_MAKERS = ("_make_skeleton_class", "_make_skeleton_enum")
"""cloudpickle's functions that make a class that was pickled by value."""

_sent: dict[str, tuple[object, int]] = {}
"""By module: its spec, which a reload replaces, and the checksum of its source."""

_log = logging.getLogger("blobfeed")


class Packed(Generic[_T]):
    """`value` itself in the process that made this; its bytes after pickling, until `value` is read.

    `modules`: what to import before forking. Pickling adds those that `value` refers to. `parts`: the user's objects in
    `value` by what messages call them; if `value` cannot be pickled, the ParameterError names the one that cannot.
    `maps`: false if other hosts get it, which need not have the files of memory maps.
    """

    def __init__(
        self, value: _T, modules: tuple[str, ...] = (), parts: Mapping[str, object] | None = None, *, maps: bool = True
    ) -> None:
        self._value: _T | None = value
        self._maps = maps
        self._parts = parts or {}
        self._bytes: bytes | memoryview = b""
        self._buffers: Sequence[PickleBuffer | memoryview] = ()
        self.modules = modules

    def require_sendable(self, *, to_all: bool) -> None:
        """Raises ParameterError, naming what is to blame, if one of `parts` cannot be pickled.

        If all loaders get a copy, warn of generators of random numbers.
        """
        with _naming_the_unsendable(self._parts):
            for name, part in self._parts.items():
                pickler = _pickler_of(part, maps=self._maps)
                if to_all:
                    _warn_of_generators(name, part, pickler.generators)

    @property
    def value(self) -> _T:
        if self._value is None:
            if "torch" in self.modules:
                with suppress(ImportError):  # the hook will say so, if it comes to its import at all
                    import_module("torch")
            self._value = cloudpickle.loads(self._bytes, buffers=self._buffers)
        return self._value

    def __getstate__(self) -> dict[str, object]:
        if self._value is None:  # on its way through the assembler, or to another host
            beside = [PickleBuffer(buffer) for buffer in self._buffers]
            return {**self.__dict__, "_bytes": _on_its_way(self._bytes), "_buffers": beside}
        with _naming_the_unsendable(self._parts):
            data, buffers, modules = pack(self._value, maps=self._maps)
        _warn_of_edited(modules)
        self.modules = tuple(dict.fromkeys((*self.modules, *modules)))
        packed: dict[str, object] = {"_value": None, "_bytes": _on_its_way(data), "_buffers": buffers, "_parts": {}}
        return {**self.__dict__, **packed}


def pack(value: object, *, maps: bool = True) -> tuple[bytes, list[PickleBuffer], tuple[str, ...]]:
    """`value` pickled, its large arrays, and the modules that it refers to: not __main__, which is sent by value.

    `maps`: what a file holds by a memory map is not among the arrays, but mapped again.

    In a process that multiprocessing has spawned, the main script's module has another name, and cloudpickle would take
    it for one that can be imported.
    """
    pickler = _pickler_of(value, maps=maps)
    modules = tuple(name for name in pickler.modules if name not in ("__main__", _SPAWNED))
    return pickler.file.getvalue(), pickler.buffers, modules


def _pickler_of(value: object, *, maps: bool) -> _Pickler:
    """Return the pickler that has pickled `value`."""
    if (main := sys.modules["__main__"]).__name__ == _SPAWNED:
        cloudpickle.register_pickle_by_value(main)
    pickler = _Pickler(maps=maps)
    pickler.dump(value)
    return pickler


def _warn_of_generators(name: str, part: object, sent: Sequence[object]) -> None:
    """Warn of those that `part` names itself, as a function names what its module has, and of those that are `sent`."""
    function = getattr(part, "__func__", part)
    named = dict(getattr(getattr(part, "__self__", part), "__dict__", {}))
    with suppress(ValueError):  # a variable of the closure that has no value yet
        if isinstance(function, FunctionType):
            used = getclosurevars(function)
            named.update(used.globals, **used.nonlocals)
    names = {id(value): repr(what) for what, value in named.items() if _is_generator(value)}
    for each in {id(each): each for each in (*named.values(), *sent) if _is_generator(each)}.values():
        _log.warning(
            "%s holds a generator of random numbers, %s (%s): each loader has a copy, and all copies give the same "
            "numbers; take them from the argument `rng`; if the hook seeds it by `rng` before each use, all is well",
            *(name, names.get(id(each), "unnamed"), type(each).__name__),
        )


def _on_its_way(pickled: bytes | memoryview) -> bytes | PickleBuffer:
    """Return what the assembler carries. A large pickle, as of a list of files, is mapped there and not copied."""
    return bytes(pickled) if len(pickled) < _BESIDE_BYTES else PickleBuffer(pickled)


def trial_copy(value: _T) -> _T:
    """Return a copy as a loader gets it, for a trial in this process; `value` itself if it cannot be pickled.

    What the trial stores in objects, closures, classes and globals of the script stays in the copy. Large arrays are
    shared.
    """
    try:
        data, buffers, _ = pack(value)
        copy: _T = _Copier(io.BytesIO(data), buffers=buffers).load()
    except Exception as error:
        _log.debug("tried without a copy, since it cannot be pickled: %s: %s", type(error).__name__, error)
        return value
    return copy


class _Copier(Unpickler):
    """Makes new classes of those that are pickled by value; cloudpickle would overwrite the methods of the user's.

    Exceptions keep their class, or the user's `except` would not catch what a hook raises in the trial.
    """

    def find_class(self, module: str, name: str, /) -> Any:
        found = super().find_class(module, name)
        if not module.startswith("cloudpickle") or name not in _MAKERS:
            return found

        def make(*given: Any) -> Any:
            bases = given[2] if name == "_make_skeleton_class" else ()
            if any(issubclass(base, BaseException) for base in bases):
                return found(*given)
            return found(*given[:-2], None, given[-1])  # the last but one names the class to overwrite

        return make


def _warn_of_edited(modules: Iterable[str]) -> None:
    """Loaders import a module's file as it is when they start: for each loop of a stream, or after a jump, anew."""
    sent_whole = tuple(f"{name}." for name in cloudpickle.list_registry_pickle_by_value())
    for name in modules:
        if f"{name}.".startswith(sent_whole):
            continue
        file = Path(getattr(sys.modules.get(name), "__file__", None) or "")
        now = getattr(sys.modules.get(name), "__spec__", None), _checksum(file) if file.suffix == ".py" else 0
        if (before := _sent.get(name, now)) != now and before[0] is now[0]:
            _log.warning("%s was edited during the run: loaders that start now run its new code", file)
        _sent[name] = now


def _checksum(file: Path) -> int:
    """Return the checksum of the contents (git changes times, too), or 0 for an unreadable file, as in an archive."""
    try:
        return crc32(file.read_bytes())
    except OSError:
        return 0


def content_digest(value: object) -> str:
    """Return a digest of what a loader gets: values, the code of the script, and the files of modules that are named.

    It is the same in another run, but for sets of text, whose order is another there.
    """
    pickler = _ContentPickler(maps=True)
    pickler.dump(value)
    files = [Path(getattr(sys.modules.get(name), "__file__", None) or "") for name in pickler.modules]
    code = [_checksum(file) for file in files if file.suffix == ".py" and file.name != "__main__.py"]
    summed = blake2b(repr(code).encode())
    for part in (pickler.file.getbuffer(), *(buffer.raw() for buffer in pickler.buffers)):
        summed.update(part)
    return summed.hexdigest()[:64]


def unsendable(parts: Mapping[str, object]) -> str | None:
    """The name of the first of `parts` that cannot be pickled by itself."""
    for name, part in parts.items():
        try:
            pack(part)
        except Exception:
            return name
    return None


@contextmanager
def _naming_the_unsendable(parts: Mapping[str, object]) -> Iterator[None]:
    """Raise a ParameterError for what cannot be pickled, and not for a lack of memory."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise ParameterError(
            f"{unsendable(parts) or 'the pipeline'} cannot be sent to the loaders: {type(error).__name__}: {error}; "
            "make such an object inside the hook at its first call, a source at its first read (its close drops it, "
            "if it has one), or leave it out in the __getstate__ of its class"
        ) from None


def hook_name(hook: object) -> str:
    """Return the name in messages of a function, or of an object that is called like one."""
    return str(getattr(hook, "__qualname__", type(hook).__qualname__))


def _stays_inside(beside: list[PickleBuffer], buffer: PickleBuffer) -> bool:
    if small := buffer.raw().nbytes < _BESIDE_BYTES:
        return small
    beside.append(buffer)
    return False


_pickling_of = attrgetter("__getstate__", "__reduce__", "__reduce_ex__")
_Cached = type(lru_cache(len))
_NAMED = type | FunctionType | BuiltinFunctionType | _Cached


def _is_generator(value: object) -> bool:
    """Return true for a random generator; a process that has not imported numpy.random holds none of NumPy's."""
    random = sys.modules.get("numpy.random")
    return isinstance(value, Random) or (
        random is not None and isinstance(value, random.Generator | random.RandomState)
    )


def _reduce_cached(cached: Any) -> Any:
    """By its name only if a loader can import it: cloudpickle would do so for those of the script, too."""
    module = cached.__module__
    with suppress(KeyError, AttributeError):  # made within a function
        if module not in ("__main__", _SPAWNED) and attrgetter(cached.__qualname__)(sys.modules[module]) is cached:
            return cached.__reduce__()
    return _cache, (cached.__wrapped__, cached.cache_parameters())


def _cache(function: Any, given: dict[str, Any]) -> Any:
    return lru_cache(**given)(function)


def _reduce_mapped(array: NDArray[Any]) -> Any:
    """By its file, which loaders map again; None if that is not there, or if the program writes to memory of its own.

    A loader writes to its own memory: of what is pickled by value it has a copy, too.
    """
    # One with a mask or named fields is more than its memory.
    if array.nbytes < _BESIDE_BYTES or type(array) not in (np.ndarray, np.memmap):
        return None
    whole: Any = array
    while not isinstance(whole, np.memmap) and isinstance(whole, np.ndarray):
        whole = whole.base
    mapped: Any = whole if isinstance(whole, np.memmap) else None
    if mapped is None or mapped._mmap is None or mapped.filename is None or mapped.mode == "c":
        return None
    # NumPy maps from a whole page on; a part of an array says the offset of the whole.
    offset = mapped.offset - mapped.offset % ALLOCATIONGRANULARITY
    offset += array.ctypes.data - np.frombuffer(mapped._mmap, np.uint8).ctypes.data
    reach = [(extent - 1) * stride for extent, stride in zip(array.shape, array.strides, strict=True)]
    back = sum(-step for step in reach if step < 0)
    size = back + sum(step for step in reach if step > 0) + array.itemsize
    try:
        if Path(mapped.filename).stat().st_size < offset - back + size:
            return None
    except OSError:
        return None
    mode = "r" if mapped.mode == "r" else "c"
    return _map, (str(mapped.filename), mode, offset - back, size, back, array.shape, array.dtype, array.strides)


def _map(
    path: str, mode: Any, offset: int, size: int, first: int, shape: Any, dtype: Any, strides: Any
) -> NDArray[Any]:
    memory = np.memmap(path, np.uint8, mode, offset, (size,))
    return as_strided(memory[first : first + dtype.itemsize].view(dtype), shape, strides, subok=True)


def _is_open_file(thing: Any) -> bool:
    """Return true for what has a file of the kernel open. cloudpickle would send what is left of a text file.

    A class beside Python's own that says itself how it is pickled may leave its file out.
    """
    kind = type(thing)
    # The class is asked first: an object may answer to any name.
    if not hasattr(kind, "fileno") or any(thing is each for each in (sys.stdin, sys.stdout, sys.stderr)):
        return False
    if _pickling_of(kind) != _pickling_of(object) and not isinstance(thing, io.IOBase):
        return False
    try:
        return isinstance(thing.fileno(), int)
    except (OSError, ValueError):  # as those in memory, and closed ones
        return False


def _is_global(thing: object) -> bool:
    """Return false for what was made within a function: that is sent whole, without its module."""
    return "<locals>" not in getattr(thing, "__qualname__", "")


def _names_torch(thing: object) -> bool:
    """Report whether a function, or a method of a class, names torch, as `import torch` in its body does.

    Torch is loaded before the first call then: only a generator that is there can be seeded for that call.
    """
    functions = vars(thing).values() if isinstance(thing, type) else (thing,)
    names = chain.from_iterable(each.__code__.co_names for each in functions if isinstance(each, FunctionType))
    return any(name.partition(".")[0] == "torch" for name in names)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Notes every class, function and module on its way; numbers, strings and lists pass it by and cost nothing."""

    # What cloudpickle cannot send, and scripts have. singledispatch has a weak dictionary.
    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child(
        {
            _Cached: _reduce_cached,
            cached_property: lambda made: (cached_property, (made.func,), {"attrname": made.attrname}),
            WeakKeyDictionary: lambda weak: (WeakKeyDictionary, (dict(weak),)),
            local: lambda _: (local, ()),
        }
    )

    def __init__(self, *, maps: bool) -> None:
        self._maps = maps
        self.file = io.BytesIO()
        self.generators: list[object] = []
        self.modules: dict[str, None] = {}
        self.buffers: list[PickleBuffer] = []
        # Bound to the list and not to the pickler, which would hold itself, and all that it has pickled, until the
        # garbage collector comes.
        super().__init__(self.file, HIGHEST_PROTOCOL, buffer_callback=partial(_stays_inside, self.buffers))

    def reducer_override(self, thing: object) -> Any:
        if isinstance(thing, ModuleType):
            self.modules[thing.__name__] = None
            # cloudpickle takes a global named `classes` beside torch for torch.classes: a module of a class of its
            # own, which it then cannot pickle. Any module that is imported by its name can be found by it.
            by_value = thing.__name__ in cloudpickle.list_registry_pickle_by_value()
            if sys.modules.get(thing.__name__) is thing and not by_value:
                return import_module, (thing.__name__,)
        elif _is_generator(thing):
            self.generators.append(thing)
        elif _is_open_file(thing):
            name = getattr(thing, "name", "")
            raise PicklingError(
                f"{name!r} is an open file ({type(thing).__name__}): its position is this process's own"
            )
        elif self._maps and isinstance(thing, np.ndarray) and (mapped := _reduce_mapped(thing)):
            return mapped
        elif isinstance(thing, _NAMED):
            if isinstance(thing.__module__, str) and _is_global(thing):
                self.modules[thing.__module__] = None
            if _names_torch(thing):
                self.modules["torch"] = None
        return super().reducer_override(thing)


class _ContentPickler(_Pickler):
    """Leaves out the number that cloudpickle draws for each class, for which the pickle differs in each process."""

    def reducer_override(self, thing: object) -> Any:
        reduced = super().reducer_override(thing)
        if isinstance(reduced, tuple) and getattr(reduced[0], "__name__", "") in _MAKERS:
            make, given, *rest = reduced
            return make, (*given[:-2], None, given[-1]), *rest
        return reduced
