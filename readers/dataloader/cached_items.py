"""The items of a dataset in the decoded cache: each is made once, and read from the database ever after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from ...sources.cache import Database, checked, sealed
from ...workers.api import Cache, CacheCounts, check_options
from ...workers.base import ParameterError, in_folder, text_digest
from ...workers.order import draws_noted
from ...workers.transport import content_digest
from .packing import Memory, SlotWriter, read

_VERSION = 1
_SCRATCH_BYTES = 1 << 14


class CachedItems:
    """`dataset[index]` through the database that `cache` names.

    The content is the dataset as loaders get it: its values and its code, and not the files that it reads. Raises
    ParameterError for what gives other items at another time, and the exceptions of Database.
    """

    def __init__(self, dataset: Any, cache: Mapping[str, Any]) -> None:
        given = check_options(cache, Cache, "cache")
        kind = type(dataset).__qualname__
        for name in ("set_epoch", "state_dict"):
            if hasattr(dataset, name):
                raise ParameterError(
                    f"cache: {kind} has {name}(), so its items may be others in another epoch, and a cache would "
                    "repeat the first ones: leave out 'cache'"
                )
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise ParameterError(f"cache: {kind} is no dataset with indices and a length: leave out 'cache'")
        try:
            content = text_digest(f"items {_VERSION}: {content_digest(dataset)}")
        except Exception as error:
            raise ParameterError(f"cache: {kind} cannot be pickled, as its cache needs: {error}") from error
        self._dataset = dataset
        self._database = Database(in_folder(Path(), given.path), given.size_limit, content, len(dataset))

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, int | np.integer) or key < 0:
            raise ParameterError(
                f"cache: the sampler gave the key {key!r}, and a cache knows samples by index alone: leave out 'cache'"
            )
        index = int(key)
        with self._database.reading() as get:
            if (value := get(index)) is not None:
                if (body := checked(index, value)) is not None:
                    memory = np.frombuffer(body, np.uint8).copy()
                    self._database.count(hits=1)
                    return read(memory, memory)
                self._database.note_damaged(index, type(self._dataset).__name__)
        self._database.count(misses=1)
        with draws_noted() as drawn:
            item = self._dataset[key]
        if drawn:
            raise ParameterError(
                f"cache: sample {index} draws random numbers ({', '.join(sorted(drawn))}), and a cache would give the "
                "same ones in every epoch: leave out 'cache', or draw in collate_fn"
            )
        self._database.keep(self._packed(index, item))
        return item

    def _packed(self, index: int, item: object) -> Iterator[tuple[int, memoryview]]:
        """Yield the value of the item, behind its index: it is packed only if the database has room."""
        slot, writer = _Scratch(), SlotWriter(lasting=True)
        writer.begin(slot)
        try:
            writer.write(item)
        except Exception as error:
            raise ParameterError(
                f"cache: sample {index} cannot be stored: {error}; leave out 'cache', or return what another program "
                "can unpickle"
            ) from error
        yield index, sealed(index, slot.memory[: slot.used].data)

    @property
    def counts(self) -> CacheCounts:
        return self._database.counts

    def close(self) -> None:
        self._database.close()


class _Scratch:
    """Memory of this process with the face of a slot."""

    def __init__(self) -> None:
        self.memory: Memory = np.empty(_SCRATCH_BYTES, np.uint8)
        self.used = 0
        self._outgrown: list[Memory] = []
        """Kept, or the addresses of what was put there would become those of other arrays."""

    def reserve(self, size: int) -> None:
        larger = np.empty(2 * size, np.uint8)
        larger[: len(self.memory)] = self.memory
        self._outgrown.append(self.memory)
        self.memory = larger
