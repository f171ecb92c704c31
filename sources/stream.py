"""Streams: samples that come one after the other, and have no number to ask for.

Each loader runs its own shards: it calls the given function with (shard, number of shards), which must give that part's
samples, the same ones in the same order at each call for an epoch. For if a loader dies, its shard is run again from
the start and skipped forward to where it was.
"""

from __future__ import annotations

import inspect
import pkgutil
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import cloudpickle
import msgspec
import numpy as np

from ..workers.api import (
    BY_POSITION,
    AnyArray,
    AnySource,
    ArraySpec,
    NotNegative,
    Positive,
    Tops,
    by_name,
    check_options,
    chosen,
    shown,
)
from ..workers.base import ParameterError, SampleTooLargeError, SourceError, derive_key
from ..workers.transport import trial_copy

_FIXED = (int, float, str, bytes)
"""The types whose values cannot be changed."""

Make = Callable[..., Iterable[object]]
_Item = TypeVar("_Item")


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of `source: {stream: …}`.

    make: `module:function`, or in Python the function itself; see StreamSource.
    shards: how many there are; without it as many as loaders. The data depend on it, not on the loaders.
    capacity: samples in each shard's shuffle buffer; 0 for no shuffling.
    string_bytes: the longest string that a component may be, in UTF-8.
    """

    make: str
    shards: Positive | None = None
    capacity: NotNegative = 0
    string_bytes: Positive = 256


class StreamSource(AnySource):
    """Samples from iterators, shuffled by a buffer of `capacity` samples for each shard.

    `make`: a function that returns an iterable of samples, or an iterable for one shard, which must be picklable; a
    generator is not, its function is. The function is called with (shard, number of shards) if it takes two arguments,
    and is one shard if it takes none; if it has an argument named `epoch`, it gets that too. A sample is a mapping of
    names to components, of which `names` are wanted, a tuple of components in the order of `names`, or one component:
    arrays, numbers, strings (bytes, of type S<string_bytes>).
    """

    kind = "stream"

    def __init__(
        self,
        make: Make | Iterable[object],
        *,
        names: Sequence[str] | None = None,
        shards: int | None = None,
        capacity: int = 0,
        string_bytes: int = 256,
    ) -> None:
        options = {"make": "a function", "shards": shards, "capacity": capacity, "string_bytes": string_bytes}
        given = check_options(options, StreamOptions, "source stream")
        self.shards = given.shards
        self.capacity = given.capacity
        self._string_bytes = given.string_bytes
        self.make: Make = make if callable(make) else _whole(make)
        self._by_position, self._by_name = _arguments(self.make)
        if "shard" not in self._by_position:
            if shards not in (None, 1):
                raise ParameterError(
                    f"shards is {shards}: an iterable, or a function without the arguments (shard, number of shards), "
                    "is one shard; give a function that has them"
                )
            self.shards = 1
        first = self._first()
        self.names = _names_of(first, names)
        self._leaves_out = bool(names)
        try:
            components = self.components(first)
        except ValueError as error:
            raise SourceError(f"source stream: the first sample cannot be used: {error}") from error
        self._specs = {name: ArraySpec(value.shape, value.dtype) for name, value in components.items()}

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self._specs

    @property
    def runs_user_code(self) -> bool:
        return True

    @classmethod
    def from_options(cls, options: Mapping[str, Any], *, tops: Tops) -> StreamSource:
        """From `source: {stream: {make: …}}`, `module:function` or the function; raises ParameterError, SourceError."""
        if isinstance(options, Mapping) and callable(function := options.get("make")):
            checked = check_options({**options, "make": "a function"}, StreamOptions, "source stream")
            return cls(**msgspec.structs.asdict(checked) | {"make": function}, names=tops)
        checked = check_options(options, StreamOptions, "source stream")
        try:
            make = pkgutil.resolve_name(checked.make)
        except (ImportError, AttributeError, ValueError) as error:
            raise ParameterError(
                f"source stream: parameter 'make' is {checked.make!r}: expected module:function that can be imported; "
                f"{error}"
            ) from error
        if ":" not in checked.make or not callable(make):
            raise ParameterError(f"source stream: parameter 'make' is {checked.make!r}: expected module:function")
        return cls(**msgspec.structs.asdict(checked) | {"make": make}, names=tops)

    def open(self, shard: int, num_shards: int, epoch: int) -> Iterator[object]:
        """The samples of one shard in one epoch from its start."""
        given = {"shard": shard, "shards": num_shards, "epoch": epoch}
        by_name = {name: given[name] for name in self._by_name}
        return iter(self.make(*(given[name] for name in self._by_position), **by_name))

    def copied(self, item: object) -> object:
        """`item` for a shuffle buffer: what gives the samples may fill the same dict, list or array for the next one.

        Without what `names` leaves out.
        """
        if isinstance(item, Mapping):
            wanted = self.names if self._leaves_out else ()
            return {name: _copied(value) for name, value in item.items() if not wanted or str(name) in wanted}
        return _copied(item)

    def components(self, item: object) -> dict[str, AnyArray]:
        """One sample's components as arrays by name; raises ValueError if they are not those expected."""
        if isinstance(item, Mapping):
            named = {str(name): value for name, value in item.items()}
            wanted = [name for name in self.names if name in named] if self._leaves_out else named
            item = {name: self._plain(named[name]) for name in wanted}
        elif isinstance(item, tuple | list):
            item = tuple(map(self._plain, item))
        else:
            item = self._plain(item)
        return by_name(item, self.names, "the stream gave")

    def _plain(self, value: object) -> object:
        """Strings become bytes in an array of fixed size: a slot has the same space for every sample."""
        if not isinstance(value, str | bytes):
            return value
        data = value.encode() if isinstance(value, str) else value
        if len(data) > self._string_bytes:
            raise SampleTooLargeError(
                f"a string of {len(data)} bytes does not fit string_bytes={self._string_bytes}: {value[:60]!r}…; "
                "raise string_bytes"
            )
        if data.endswith(b"\0"):  # NumPy takes them for what fills the array
            raise ValueError(
                f"the stream gave {value[-60:]!r}, whose zero bytes at its end would be lost: give bytes that are no "
                'text as np.frombuffer(value, np.uint8), and text without them, value.rstrip(b"\\0")'
            )
        return np.array(data, dtype=f"S{self._string_bytes}")

    def where(self, index: int) -> str:
        return f"the stream's sample number {index} of its shard"

    def _first(self) -> object:
        for item in trial_copy(self).open(0, self.shards or 1, 0):
            return item
        raise SourceError("the stream gave no sample at all: shard 0 is empty")


def shuffled(items: Iterable[_Item], capacity: int, seed: int) -> Iterator[_Item]:
    """All `items` in random order, as TensorFlow's RandomShuffleQueue gives them, but without threads.

    A buffer holds up to `capacity` of them, and gives one of those that it holds, all equally likely, whenever it is
    full: so the order depends on the seed alone, never on timing.
    """
    held: list[_Item] = []
    chance = random.Random(derive_key(seed, "shuffle buffer"))
    for item in items:
        held.append(item)
        if len(held) == capacity:
            yield _taken(held, chance)
    while held:
        yield _taken(held, chance)


def _copied(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, bytearray | memoryview):
        return np.array(value)
    if isinstance(value, tuple | list):
        return [each if type(each) in _FIXED else _copied(each) for each in value]
    return value.clone() if hasattr(value, "clone") else value  # a tensor


def _taken(held: list[_Item], chance: random.Random) -> _Item:
    # Of random.Random only random() is sure to stay the same in later versions of Python.
    chosen = int(chance.random() * len(held))
    held[chosen], held[-1] = held[-1], held[chosen]
    return held.pop()


def _arguments(make: Make) -> tuple[list[str], list[str]]:
    """Return which of shard, shards and epoch `make` gets by position, and which by name; raises ParameterError."""
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):  # written in C, and says nothing
        return ["shard", "shards"], []
    parameters = signature.parameters
    positions = [name for name, given in parameters.items() if given.kind in BY_POSITION]
    others = [parameters[name] for name in positions if name != "epoch"]
    takes_any = any(given.kind is given.VAR_POSITIONAL for given in others)
    needed = [given for given in others if given.default is given.empty and given.kind is not given.VAR_POSITIONAL]
    by_position = ["shard", "shards"] if needed or takes_any or "shard" in parameters else []
    by_name = ["epoch"] if "epoch" in parameters else []
    if "epoch" in positions[: len(by_position) + 1]:
        by_position.insert(positions.index("epoch"), by_name.pop())
    try:
        signature.bind(*by_position, **dict.fromkeys(by_name))
        fits = len(needed) in ((0, 1, 2) if takes_any else (0, 2))
    except TypeError:
        fits = False
    if not fits:
        raise ParameterError(
            f"the stream's function takes ({', '.join(parameters)}): expected no argument, or (shard, number of "
            "shards) by position, and epoch if it wants to know it; give every other argument a default"
        )
    return by_position, by_name


def _whole(samples: Iterable[object]) -> Make:
    """A function that gives a fresh copy of `samples` for each epoch: an iterator can be gone through only once."""
    if isinstance(samples, str | bytes | Mapping) or not (
        hasattr(samples, "__iter__") or hasattr(samples, "__getitem__")
    ):
        raise ParameterError(
            f"StreamSource: make is {shown(samples)}: expected a function that returns an iterable of samples, or such "
            "an iterable; a file's lines are samples if the function opens and yields them"
        )
    try:
        packed = cloudpickle.dumps(samples)
    except TypeError as error:
        raise ParameterError(
            f"a {type(samples).__name__} cannot be sent to the loaders ({error}): give the function that makes it"
        ) from error
    return lambda: cloudpickle.loads(packed)


def _names_of(item: object, names: Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(item, Mapping):
        return tuple(chosen(dict.fromkeys(map(str, item)), names or None, "source stream"))
    count = len(item) if isinstance(item, tuple | list) else 1
    if names and len(names) != count:
        raise ParameterError(
            f"source stream: a sample has {count} components, and {len(names)} names are given for them, "
            f"{', '.join(names)}: expected one for each"
        )
    if names:
        return tuple(names)
    return ("data", "label")[:count] if count <= 2 else tuple(f"component{number}" for number in range(count))
