"""Memory that is lent: the holder's own for as long as any array refers to it, and then given back.

NumPy keeps the array that another one was made on, as `base`, if it is of a class of its own; views of the array, views
of these, torch.from_numpy and DLPack keep it, too. When it dies, what was lent goes into a deque, from which the lender
takes it at its next step. Nothing else is done there: a weak reference calls the deque's own `append`, in any thread or
in the middle of a garbage collection.
"""

from __future__ import annotations

import math
import os
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from ...workers.api import AnyArray

_Lent = TypeVar("_Lent")
_LoanRef: TypeAlias = "weakref.ref[_Loan]"

LOANS = 3
"""Batches whose slots the user may keep: the last one, the one that takes its place, and one more.

While there are so many, the next one is a copy.
"""

_BLOCKS = 4


_Bytes = np.ndarray[Any, np.dtype[np.uint8]]  # no class can be made of NDArray from NumPy 2.5 on


class _Loan(_Bytes):
    """All of a memory; the lent arrays keep it alive, as their `base`."""

    base = None  # who goes up the bases and keeps the last one keeps this
    __hash__ = object.__hash__  # type: ignore[assignment]  # a weak reference to it is found by that


class _Memory(_Bytes):
    """The array that loans are views of; if it had no class of its own, NumPy would leave out the loan as a base."""


class Lendable:
    """Arrays that lie in one memory, and where: NumPy takes 3 µs to say it, so a slot's arrays are asked only once."""

    def __init__(self, arrays: Sequence[AnyArray]) -> None:
        base = arrays[0].base
        memory: AnyArray = base if isinstance(base, np.ndarray) else arrays[0]
        self._memory = memory.view(_Memory)
        begin = memory.ctypes.data
        self._places = [(array.shape, array.dtype, array.ctypes.data - begin) for array in arrays]

    def loan(self) -> _Loan:
        """Return a new loan of the memory."""
        return self._memory.view(_Loan)

    def on(self, loan: _Loan) -> list[AnyArray]:
        """Return the arrays, kept by `loan`, which is one of this memory."""
        return [np.ndarray(shape, dtype, loan, offset) for shape, dtype, offset in self._places]


class SlotLoans(Generic[_Lent]):
    """Batches whose slots are lent, at most `most` at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._back: deque[_LoanRef] = deque()
        self._out: dict[_LoanRef, _Lent] = {}
        self._shared = 0
        """The number of slots that forks of this process see."""
        if most:
            _living.add(self)

    @property
    def are_left(self) -> bool:
        return len(self._out) + self._shared < self._most

    def lend(self, lent: _Lent, arrays: Lendable) -> list[AnyArray]:
        """Return arrays on the memory of these, which are in the slot of `lent`."""
        loan = arrays.loan()
        self._out[weakref.ref(loan, self._back.append)] = lent
        return arrays.on(loan)

    def returned(self) -> Iterator[_Lent]:
        """Yield what has come back, each once."""
        while self._back:
            if (lent := self._out.pop(self._back.popleft(), None)) is not None:
                yield lent

    def keep_all(self) -> None:
        """Never take back the slots that are lent now: a fork sees them too, and may keep its arrays forever."""
        seen = [loan for loan in self._out if loan() is not None]
        self._shared += len(seen)
        for loan in seen:
            del self._out[loan]


_living: weakref.WeakSet[SlotLoans[Any]] = weakref.WeakSet()


def _keep_all() -> None:
    for loans in list(_living):
        loans.keep_all()


os.register_at_fork(before=_keep_all)


class LentBlocks:
    """Uninitialised arrays in memory of this process, of which a few blocks are used again.

    The allocator gives large blocks back to the kernel when they are freed, and gets them anew page by page: for a
    batch of 38 MB that made a copy 3.6 times as long as one into memory that is already there.
    """

    def __init__(self) -> None:
        self._back: deque[_LoanRef] = deque()
        self._out: dict[_LoanRef, _Memory] = {}

    def empty(self, shape: Sequence[int], dtype: DTypeLike) -> AnyArray:
        """An array of `shape`, C-contiguous, holding anything; if all blocks are in use, allocated as NumPy does."""
        dtype = np.dtype(dtype)
        block = self._block(math.prod(shape) * dtype.itemsize)
        if len(self._out) < _BLOCKS:
            loan = block.view(_Loan)
            self._out[weakref.ref(loan, self._back.append)] = block
            return np.ndarray(shape, dtype, loan)
        return np.ndarray(shape, dtype, block)

    def _block(self, nbytes: int) -> _Memory:
        while self._back:
            block = self._out.pop(self._back[0], None)
            self._back.popleft()
            if block is not None and len(block) >= nbytes:  # else it will be too small for the next batch, too
                return block
        return np.empty(nbytes, np.uint8).view(_Memory)
