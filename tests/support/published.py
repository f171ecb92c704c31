"""Readers of many kinds and the digests of what they deliver.

`python -P -m tests.support.published > tests/readers/published_bytes.txt` writes the digests anew. A release must
deliver the same bytes as the one before it, so a changed line needs a reason and an entry in CHANGELOG.md.
"""

from __future__ import annotations

import hashlib
import itertools
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
from blobfeed.workers.api import AnyArray

import blobfeed
from blobfeed import Sample

SAMPLES = {"photos.h5": 230, "drawings.h5": 70}
_CHUNK = 8
_BATCH = 16
_BATCHES = 34
"""More than two epochs of the longest source: every case meets an epoch's end."""

_SOURCES: Mapping[str, Mapping[str, Any]] = {
    "hdf5": {"source": "photos.h5"},
    "mix": {"mix": [{"hdf5": {"path": "photos.h5"}, "weight": 0.7}, {"hdf5": {"path": "drawings.h5"}, "weight": 0.3}]},
    "concat": {"source": {"concat": [{"hdf5": {"path": "drawings.h5"}}, {"hdf5": {"path": "photos.h5"}}]}},
}
_CROP = {"crop_size": 7, "mirror": True}
_SAMPLERS: Mapping[str, Mapping[str, Any]] = {
    "draws": {"sampler": {"draws": 100}},
    "weights": {"sampler": {"weights": [float(index % 5) for index in range(230)], "draws": 150}},
    "balance": {"sampler": {"balance": "label"}},
    "indices": {"sampler": {"indices": list(range(0, 230, 3))}},
    "indices, shuffled": {"sampler": {"indices": list(range(0, 230, 3))}, "shuffle": True},
}


def write_files(folder: Path) -> None:
    for start, (name, samples) in enumerate(SAMPLES.items()):
        values = np.arange(samples * 3 * 12 * 10, dtype=np.uint64) * np.uint64(7919) + np.uint64(start)
        with h5py.File(folder / name, "w") as file:
            pictures = (values >> np.uint64(3)).astype(np.uint8).reshape(samples, 3, 12, 10)
            file.create_dataset("data", data=pictures, chunks=(_CHUNK, 3, 12, 10))
            file["label"] = (np.arange(samples) ** 2 % 11).astype(np.int64)


def noisy(sample: Sample, rng: np.random.Generator) -> dict[str, AnyArray]:
    """A decode hook whose result depends on every one of its numbers.

    The numbers are the generator's raw ones: NumPy keeps those in all its versions.
    """
    noise = rng.bit_generator.random_raw(sample["data"].size).astype(np.uint8)
    return {"data": sample["data"] ^ noise.reshape(sample["data"].shape), "label": sample["label"]}


def numbers(shard: int, shards: int) -> Iterator[tuple[AnyArray, int]]:
    """A stream of 160 records over all shards."""
    for number in range(shard, 160, shards):
        yield np.full((5,), number, np.float32), number % 7


def cases() -> dict[str, dict[str, Any]]:
    """The reader's parameters by the name of the case, in a fixed order."""
    found: dict[str, dict[str, Any]] = {}
    hooks: dict[str, dict[str, Any]] = {"as stored": {}, "crop": {"transform": _CROP}, "decode": {"decode": noisy}}
    every = itertools.product(_SOURCES, (False, True, "chunk"), (0, 7), (1, 3), ("wrap", "drop", "partial"), hooks)
    for source, shuffle, seed, ranks, last_batch, hook in every:
        name = f"{source}, shuffle {shuffle}, seed {seed}, ranks {ranks}, {last_batch}, {hook}"
        found[name] = {
            **_SOURCES[source], **hooks[hook], "shuffle": shuffle, "seed": seed, "last_batch": last_batch,
            "rank": ranks - 1, "world_size": ranks,
        }  # fmt: skip
    for (name, sampler), ranks, (hook, made) in itertools.product(_SAMPLERS.items(), (1, 3), hooks.items()):
        found[f"sampler {name}, ranks {ranks}, {hook}"] = {
            **_SOURCES["hdf5"], **sampler, **made, "seed": 7, "rank": ranks - 1, "world_size": ranks,
        }  # fmt: skip
    for capacity in (0, 50):
        stream = blobfeed.StreamSource(numbers, shards=2, capacity=capacity)
        found[f"stream, capacity {capacity}"] = {"source": stream, "tops": ("data", "label")}
    found["rand_skip"] = {**_SOURCES["hdf5"], "shuffle": True, "rand_skip": 100}
    return found


def digest(parameters: Mapping[str, Any], folder: Path, *, num_loaders: int, resume_at: int = 0) -> str:
    """The first batches of a reader, or of two where the second goes on from the state of the first."""
    hash_ = hashlib.sha256()

    def make() -> blobfeed.BatchReader:
        return blobfeed.BatchReader(
            batch_size=_BATCH, num_loaders=num_loaders, base_dir=folder, epochs=None, **parameters
        )

    with make() as reader:
        for batch in itertools.islice(reader, resume_at or _BATCHES):
            _add(hash_, batch)
        state = reader.state_dict()
    if resume_at:
        with make() as reader:
            reader.load_state_dict(state)
            for batch in itertools.islice(reader, _BATCHES - resume_at):
                _add(hash_, batch)
    return hash_.hexdigest()[:16]


def _add(hash_: hashlib._Hash, batch: blobfeed.NamedBatch) -> None:
    for name in sorted(batch):
        values = np.asarray(batch[name])
        hash_.update(f"{name} {values.dtype.str} {values.shape}".encode())
        hash_.update(np.ascontiguousarray(values).tobytes())


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        for name, parameters in cases().items():
            print(f"{digest(parameters, Path(folder), num_loaders=0)}  {name}")


if __name__ == "__main__":
    main()
