"""A long list of plain items, pickled one by one into an array whose pages loaders share.

Pages with Python objects are not shared for long: to look at an item is to count a reference, which writes. After a
thousand shuffled batches each loader had a copy of most pages of such a list. An array is mapped, and nothing has to be
unpickled before the first batch.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

_LONG = 100_000
_MOST_BYTES = 1 << 10
"""The mean size of an item up to which a list is packed: items may share what is large, and packed they do not."""


class PackedList(Sequence[Any]):
    """`data`: the pickles of all items, one behind the other; `places`: where they begin, and the end."""

    def __init__(self, data: NDArray[np.uint8], places: NDArray[np.int64]) -> None:
        self._data, self._places = data, places

    def __len__(self) -> int:
        return len(self._places) - 1

    def __getitem__(self, index: Any) -> Any:
        place = range(len(self))[index]
        if isinstance(place, range):
            return [self[each] for each in place]
        begin, end = self._places[place : place + 2].tolist()
        return pickle.loads(self._data[begin:end].data)


class LongList:
    """A list on its way to loaders: they get it packed if its items are plain values, such as (path, label)."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def __reduce__(self) -> Any:
        try:
            return PackedList, _pickled(self._items)
        except pickle.PicklingError:
            return _same, (self._items,)


def on_its_way(dataset: Any) -> Any:
    """Return what stands for `dataset` while it is sent to loaders."""
    return LongList(dataset) if type(dataset) is list and len(dataset) >= _LONG else dataset


def _pickled(items: list[Any]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return all items for a PackedList; raises pickle.PicklingError if some are no plain values, or large."""
    file, most = io.BytesIO(), len(items) * _MOST_BYTES
    pickler = _PlainPickler(file, pickle.HIGHEST_PROTOCOL)
    places = np.zeros(len(items) + 1, np.int64)
    for number, item in enumerate(items, 1):
        pickler.dump(item)
        pickler.clear_memo()
        places[number] = end = file.tell()
        if end > most:
            raise pickle.PicklingError(f"the items have more than {_MOST_BYTES} bytes")
    return np.frombuffer(file.getbuffer(), np.uint8), places


class _PlainPickler(pickle.Pickler):
    def reducer_override(self, thing: object) -> NoReturn:
        raise pickle.PicklingError(f"{type(thing).__name__} is no plain value")


def _same(items: list[Any]) -> list[Any]:
    return items
