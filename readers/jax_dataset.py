"""The pipeline for JAX: whole batches of its arrays, over all devices and processes if a sharding says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Unpack

import jax
from jax.sharding import Sharding

from ..workers.base import ParameterError, shortens_tracebacks
from .batch_reader import BatchReader, DatasetOverReader, owning_reader
from .keywords import ReaderArguments, SourceLike, names_arguments_of


class JaxDataset(DatasetOverReader):
    """Whole batches: plain dicts of jax.Array by name, as a function under `jax.jit` takes them.

        mesh = jax.make_mesh((jax.device_count(),), ("data",))
        sharding = NamedSharding(mesh, PartitionSpec("data"))
        for batch in JaxDataset("train.h5", batch_size=64, shuffle=True, sharding=sharding):
            train(batch["data"], batch["label"])

    The arguments are those of BatchReader, `reader` is the BatchReader underneath. `sharding`: of every array, a
    jax.sharding.Sharding; without one arrays go to the default device. Of several processes (jax.distributed) each
    reads its own shard, and its batch_size rows are its part of global arrays. As everywhere in JAX, 64-bit numbers
    become 32-bit ones unless `jax_enable_x64` is set.

    Raises ParameterError for a type that JAX does not have, and what BatchReader raises.
    """

    @names_arguments_of(BatchReader)
    @shortens_tracebacks
    def __init__(
        self, source: SourceLike = None, *, sharding: Sharding | None = None, **arguments: Unpack[ReaderArguments]
    ) -> None:
        has_no_shard = arguments.get("rank") is None and arguments.get("world_size") is None
        if has_no_shard and jax.process_count() > 1:
            arguments["rank"], arguments["world_size"] = jax.process_index(), jax.process_count()
        if sharding is not None:  # which divides the rows of every batch equally
            arguments.setdefault("last_batch", "wrap")
        self._sharding = sharding
        self.reader = owning_reader(JaxDataset, source, arguments)  # JAX may keep an array instead of copying it
        for name, spec in self.reader.specs.items():
            if spec.dtype.kind not in "biufc":
                self.close()
                raise ParameterError(
                    f"top {name!r} has the type {spec.dtype}, which JAX does not have: leave it out of 'tops', or make "
                    "numbers of it in decode"
                )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._arrays, self.reader)

    def _arrays(self, batch: dict[str, Any]) -> dict[str, Any]:
        if self._sharding is None:
            return dict(jax.device_put(dict(batch)))
        make: Any = jax.make_array_from_process_local_data  # which declares no types
        return {name: make(self._sharding, rows) for name, rows in batch.items()}
