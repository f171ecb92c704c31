"""Arrays in memory as a store: one memory file, which every loader maps and none has a copy of."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from xxhash import xxh3_64_intdigest

from ...base.errors import SourceError
from ...base.keys import blake2b
from ...base.specs import AnyArray
from ...transport.shared_arrays import SharedArrays
from ..files.store import Store

_SUMMED_BYTES = 1 << 28
_BLOCK_BYTES = 1 << 16


class Memory(Store[str]):
    """The arrays by name, copied once into a memory file; the originals may be changed or dropped afterwards.

    `again`: makes them once more, for a process that unpickles them without having inherited the file. There
    SourceError is raised if they are others by then, or without `again`. `made_from`: begins its message.
    """

    def __init__(
        self,
        name: str,
        arrays: Mapping[str, AnyArray],
        again: Callable[[], Mapping[str, AnyArray]] | None = None,
        made_from: str = "",
    ) -> None:
        self._name = name
        self._made_from = made_from or f"source {name}"
        self._again = again
        self._keep(arrays)
        self._sum = self._checksum() if again else 0

    def _keep(self, arrays: Mapping[str, AnyArray]) -> None:
        self._arrays = SharedArrays(self._name, arrays)
        self._names = tuple(arrays)
        self.descriptors = (self._arrays.descriptor,)

    def __getitem__(self, name: str) -> AnyArray:
        return self._arrays[name]

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        if not self._arrays.is_lost:
            return
        if self._again is None:
            raise SourceError(f"{self._made_from}: this process has not inherited the arrays' memory file")
        self._keep(self._again())
        if self._checksum() != self._sum:
            raise SourceError(f"{self._made_from}: it was changed since training started; start it again")

    def _checksum(self) -> int:
        return sum(xxh3_64_intdigest(self._bytes(name).data) for name in self._names)

    def content(self) -> dict[str, str]:
        """Covers all values up to 256 MiB; of more, as many, spread over them."""
        size = sum(self[name].nbytes for name in self._names)
        summed = blake2b(str(size).encode())
        step = _BLOCK_BYTES * max(1, -(-size // _SUMMED_BYTES))
        for name in self._names:
            values = self._bytes(name)
            for start in range(0, len(values), step):
                summed.update(values.data[start : start + _BLOCK_BYTES])
        return {"values": summed.hexdigest()}

    def fingerprint(self) -> str:
        summed = blake2b()
        for name in self._names:
            summed.update(self._bytes(name).data)
        return summed.hexdigest()

    def _bytes(self, name: str) -> AnyArray:
        return self[name].reshape(-1).view(np.uint8)
