"""One column of a row group as NumPy arrays, out of which rows are cut."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from ...workers.api import AnyArray, IndexArray
from .forms import Form


class Values:
    """A decoded column of a form.

    `levels`: from the outermost lists inwards, the length of all lists, or where each begins and the last one ends in
    the next level; of a tensor the length of each axis. `numbers`: the items of the innermost lists, shape (items,);
    the bytes of text and binary, uint8.
    """

    def __init__(self, array: pa.Array, form: Form) -> None:
        self._form, self._rows = form, len(array)
        self.levels: list[int | IndexArray] = []
        self._nulls: list[NDArray[np.bool_] | None] = []
        array = self._next(array)
        for size in form.sizes:
            if size is None:
                self.levels.append(_as_numpy(array.offsets))
                array = array.values
            else:
                items = math.prod(size)
                if not isinstance(array, pa.FixedSizeListArray):  # a tensor, which is stored as lists of one length
                    array = array.cast(pa.list_(array.type.value_type, items))
                self.levels += size
                self._nulls += [None] * (len(size) - 1)
                array = array.values.slice(array.offset * items, len(array) * items)
            array = self._next(array)
        if form.is_bytes:
            _, ends, data = array.buffers()
            wide = array.type in (pa.large_string(), pa.large_binary())
            edges: Any = np.frombuffer(ends or bytes(8), np.int64 if wide else np.int32)
            self.levels.append(edges[array.offset : array.offset + len(array) + 1])
            self._nulls.append(None)  # a byte is never null
            self.numbers: AnyArray = np.frombuffer(data or b"", np.uint8)
        else:
            zero = False if pa.types.is_boolean(array.type) else 0
            numbers = _as_numpy(array.fill_null(zero) if array.null_count else array)
            self.numbers = numbers != 0 if form.is_truth else numbers
        ragged = [level for level in self.levels if not isinstance(level, int)]
        if any((np.diff(level) < 0).any() for level in ragged):
            raise ValueError("its lists end before they begin: it is damaged")
        self.nbytes = self.numbers.nbytes + sum(level.nbytes for level in ragged)

    def _next(self, array: pa.Array) -> pa.Array:
        """Note the nulls of the next level; strips an extension's name, a dictionary, and the path beside a picture."""
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if isinstance(array, pa.DictionaryArray):
            array = array.dictionary_decode()
        if isinstance(array, pa.StructArray):
            array = array.flatten()[array.type.get_field_index("bytes")]
        self._nulls.append(array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None)
        return array

    def lengths(self) -> tuple[int, ...]:
        """The length of the longest list of each level, from the outermost inwards."""
        return tuple(level if isinstance(level, int) else int(np.diff(level).max(initial=0)) for level in self.levels)

    def sizes(self) -> IndexArray:
        """The items of each row, shape (rows,)."""
        edges: IndexArray = np.arange(self._rows + 1)
        for level in self.levels:
            edges = edges * level if isinstance(level, int) else level[edges]
        return np.diff(edges)

    def rows(self, numbers: IndexArray) -> AnyArray | None:
        """The rows of these numbers as one array; None if rows differ in shape or some are null."""
        if self._form.shape is None or any(nulls is not None for nulls in self._nulls):
            return None
        found: AnyArray = self.numbers.reshape(-1, *self.lengths())[numbers]
        return found.transpose(0, *(axis + 1 for axis in self._form.order))

    def row(self, number: int) -> AnyArray:
        """A view of one row; raises ValueError for a null in it, and for lists that form no array."""
        begin, end = number, number + 1
        shape: list[int] = []
        for level, nulls in zip([*self.levels, None], self._nulls, strict=True):
            if nulls is not None and nulls[begin:end].any():
                raise ValueError("it is null, or holds one: fill nulls before training, or leave the column out")
            if isinstance(level, int):
                shape.append(level)
                begin, end = begin * level, end * level
            elif level is not None:
                shape.append(int(level[begin + 1] - level[begin]) if begin < end else 0)
                if end - begin > 1 and ((lengths := np.diff(level[begin : end + 1])) != shape[-1]).any():
                    raise ValueError(f"its inner lists have {lengths.min()} to {lengths.max()} items: no array")
                begin, end = int(level[begin]), int(level[end])
        return self.numbers[begin:end].reshape(shape).transpose(self._form.order)


def _as_numpy(array: pa.Array) -> Any:
    """Return the values of an array without nulls. Arrow's own way imports pandas if it is there, which is slow."""
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        return np.from_dlpack(array)
    return array.to_numpy(zero_copy_only=False)
