"""A long list of plain items, pickled one by one into an array whose pages loaders share.

Pages with Python objects are not shared for long: to look at an item is to count a reference, which writes. After a
thousand shuffled batches each loader had a copy of most pages of such a list. An array is mapped, and nothing has to be
unpickled before the first batch.
"""

from __future__ import annotations

import io
import pickle
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ...workers.base import ParameterError

_LONG = 100_000
_ANY_SIZE = sys.maxsize
_MOST_BYTES = 1 << 10
"""The mean size of an item up to which a list is packed: items may share what is large, and packed they do not."""


class PackedList(Sequence[Any]):
    """The items of a list in two arrays. They cannot be changed.

        dataset = ImageFolder("photos")
        dataset.samples = PackedList(dataset.samples)  # (path, label) of each picture
        loader = DataLoader(dataset, num_workers=8)

    Items are plain values: numbers, texts, bytes, None, and tuples, lists, dicts and sets of these. Each access makes
    the item anew. A DataLoader packs the list that is its dataset by itself, and none in an object of yours, since that
    may sort it, append to it, or give it to code which knows lists alone.
    """

    def __init__(self, items: Iterable[Any]) -> None:
        try:
            self._data, self._places = _pickled(items, _ANY_SIZE)
        except pickle.PicklingError as error:
            raise ParameterError(f"PackedList: {error}: expected plain values, such as (path, label)") from error

    def __len__(self) -> int:
        return len(self._places) - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        try:
            place = range(len(self))[index]
        except IndexError:
            raise IndexError(f"list index {index} out of range: the list has {len(self)} items") from None
        begin, end = self._places[place : place + 2].tolist()
        return pickle.loads(self._data[begin:end].data)

    def __reduce__(self) -> Any:
        return _of_parts, (self._data, self._places)


def _of_parts(data: NDArray[np.uint8], places: NDArray[np.int64]) -> PackedList:
    """Return a list: the pickles of all items, one behind the other, where they begin, and the end."""
    packed = PackedList(())
    packed._data, packed._places = data, places
    return packed


class LongList:
    """A list on its way to loaders: they get it packed if its items are plain values, such as (path, label)."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def __reduce__(self) -> Any:
        try:
            return _of_parts, _pickled(self._items, len(self._items) * _MOST_BYTES)
        except pickle.PicklingError:
            return _same, (self._items,)


def on_its_way(dataset: Any) -> Any:
    """Return what stands for `dataset` while it is sent to loaders."""
    return LongList(dataset) if type(dataset) is list and len(dataset) >= _LONG else dataset


def _pickled(items: Iterable[Any], most: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the parts of a PackedList; raises pickle.PicklingError if some items are no plain values, or all large."""
    file, places = io.BytesIO(), array("q", [0])
    pickler = _PlainPickler(file, pickle.HIGHEST_PROTOCOL)
    for number, item in enumerate(items):
        try:
            pickler.dump(item)
        except pickle.PicklingError as error:
            raise pickle.PicklingError(f"item {number} has {error}") from None
        pickler.clear_memo()
        places.append(end := file.tell())
        if end > most:
            raise pickle.PicklingError(f"the items have more than {most} bytes")
    return np.frombuffer(file.getbuffer(), np.uint8), np.frombuffer(places, np.int64)


class _PlainPickler(pickle.Pickler):
    def reducer_override(self, thing: object) -> NoReturn:
        name = thing.__qualname__ if isinstance(thing, type) else type(thing).__qualname__
        raise pickle.PicklingError(f"an object of {name}")


def _same(items: list[Any]) -> list[Any]:
    return items
