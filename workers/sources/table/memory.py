"""Arrays in memory as a store: one memory file, which every loader maps and none has a copy of."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...base.errors import SourceError
from ...base.keys import blake2b
from ...base.specs import AnyArray
from ...transport.shared_arrays import SharedArrays
from ..files.store import Store

_SUMMED_BYTES = 1 << 28
_BLOCK_BYTES = 1 << 16


class Memory(Store[str]):
    """The arrays by name, copied once into a memory file; the originals may be changed or dropped afterwards."""

    def __init__(self, name: str, arrays: Mapping[str, AnyArray]) -> None:
        self._name = name
        self._arrays = SharedArrays(name, arrays)
        self._names = tuple(arrays)
        self.descriptors = (self._arrays.descriptor,)

    def __getitem__(self, name: str) -> AnyArray:
        return self._arrays[name]

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        if self._arrays.is_lost:
            raise SourceError(
                f"source {self._name}: this process has not inherited the memory file of its arrays: open the source "
                "here, or pass on its `descriptors`"
            )

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
