"""Patches in a reader: each once an epoch, and each chunk decoded once for a window of chunks, in bounded memory."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest

from blobfeed import BatchReader

SIDE, CHUNK = 256, 16


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("field") / "field.h5"
    with h5py.File(path, "w") as file:
        values = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE), np.uint8)
        file.create_dataset("data", data=values, chunks=(CHUNK, CHUNK), compression="gzip")
    return str(path)


def patches(field: str, stride: int, **how: Any) -> BatchReader:
    source = {"hdf5": {"path": field, "patch": {"size": {0: 8, 1: 8}, "stride": {0: stride, 1: stride}}}}
    return BatchReader(source, **{"tops": ["data"], "batch_size": 32, "shuffle": "chunk", "num_loaders": 0, **how})


@pytest.mark.parametrize("stride", [8, 4])
def test_each_chunk_is_decoded_once_for_a_window_of_chunks(field: str, stride: int) -> None:
    """Counted by what the kernel was asked for, and that is what the chunks under the patches of each window take."""
    with h5py.File(field) as file:
        sizes = np.array([file["data"].id.get_chunk_info(number).size for number in range((SIDE // CHUNK) ** 2)])
    with patches(field, stride) as reader:
        first = next(reader_loop := iter(reader)).indices
        begin = _read_bytes()
        indices = np.concatenate([first, *(batch.indices.copy() for batch in reader_loop)])
        read = _read_bytes() - begin
        corners = np.stack([*reader.corners(indices).values()], axis=1)
    assert sorted(indices.tolist()) == list(range(len(indices)))
    touched = [
        {tuple(corner // CHUNK) for corner in (*part, *(part + 7))}
        | {(a // CHUNK, (b + 7) // CHUNK) for a, b in part}
        | {((a + 7) // CHUNK, b // CHUNK) for a, b in part}
        for part in np.array_split(corners, (SIDE // CHUNK) ** 2 // 16)
    ]
    assert read <= 1.1 * sum(sizes[a * (SIDE // CHUNK) + b] for chunks in touched for a, b in chunks)
    if stride == 8:
        assert read <= 1.1 * sizes.sum(), "patches that lie in their chunks: each once an epoch"


def _read_bytes() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def test_each_patch_comes_once_for_two_ranks_with_two_loaders_and_after_a_restart(field: str) -> None:
    found: list[int] = []
    for rank in range(2):
        how = {"num_loaders": 2, "rank": rank, "world_size": 2, "last_batch": "partial", "batch_size": 24}
        with patches(field, 8, **how) as reader:
            loop = iter(reader)
            found += [index for _, batch in zip(range(7), loop, strict=False) for index in batch.indices.tolist()]
            state = reader.state_dict()
        with patches(field, 8, **how) as reader:
            reader.load_state_dict(state)
            found += [index for batch in reader for index in batch.indices.tolist()]
    assert sorted(found) == list(range((SIDE // 8) ** 2))


@pytest.mark.parametrize("of", ["patches", "crops"])
def test_an_array_ten_times_the_memory_is_read_in_bounded_memory(of: str, tmp_path: Path) -> None:
    """A sparse file: chunks that were never written beside some that were."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    shape = (-(-10 * memory // (1 << 26)) * 64, 1 << 10, 1 << 10)
    lead = () if of == "patches" else (1,)
    with h5py.File(tmp_path / "large.h5", "w") as file:
        data = file.create_dataset("data", (*lead, *shape), "u1", chunks=(*lead, 64, 64, 64), compression="gzip")
        data[..., :64, :128, :64] = 7
    patch: dict[str, Any] = {"patch": {"size": {0: 64, 1: 64, 2: 64}}} if of == "patches" else {}
    how: dict[str, Any] = {} if of == "patches" else {"transform": {"crop_size": [64, 64, 64]}}
    source = {"hdf5": {"path": str(tmp_path / "large.h5"), **patch}}
    with BatchReader(source, tops=["data"], batch_size=8, num_loaders=0, shuffle="chunk", epochs=None, **how) as reader:
        assert reader.samples == (shape[0] // 64 * 16 * 16 if of == "patches" else 1)
        loop = iter(reader)
        next(loop)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _, batch in zip(range(50), loop, strict=False):
            assert batch["data"].shape == (8, 64, 64, 64)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100 << 10, f"{grown} KiB"
