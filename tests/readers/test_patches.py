"""Patches in a reader: each once an epoch, and each chunk decoded once for a window of chunks, in bounded memory."""

from __future__ import annotations

import os
import resource
import zlib
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest

from blobfeed import BatchReader
from tests.support.stored import bytes_read

SHAPE, SIDE = (256, 512, 768), 64
CHUNKS = 4 * 8 * 12


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write chunks that decode to 96 MB, of which a window takes a half."""
    path = tmp_path_factory.mktemp("field") / "field.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("data", SHAPE, "u1", chunks=(SIDE, SIDE, SIDE), compression="gzip")
        stored = zlib.compress(np.arange(SIDE**3 // 8).tobytes(), 1)
        for at in np.ndindex(4, 8, 12):
            data.id.write_direct_chunk(tuple(SIDE * each for each in at), stored)
    return str(path)


def patches(field: str, stride: int, **how: Any) -> BatchReader:
    patch = {"size": dict.fromkeys(range(3), SIDE), "stride": dict.fromkeys(range(3), stride)}
    how = {"tops": ["data"], "batch_size": 16, "shuffle": "chunk", "num_loaders": 0, **how}
    return BatchReader({"hdf5": {"path": field, "patch": patch}}, **how)


@pytest.mark.parametrize("stride", [SIDE, 23])
def test_each_chunk_is_decoded_once_for_a_window_of_chunks(field: str, stride: int) -> None:
    """Counted by what the kernel was asked for, and that is what the chunks under the patches of each window take."""
    with h5py.File(field) as file:
        size = file["data"].id.get_chunk_info(0).size
    window = 16 * round(SIDE / stride) ** 3
    with patches(field, stride) as reader:
        loop = iter(reader)
        indices, begin = [next(loop).indices], bytes_read()
        indices += [batch.indices for _, batch in zip(range(3 * window // 16 - 1), loop, strict=False)]
        read = bytes_read() - begin
        corners = np.stack([*reader.corners(np.concatenate(indices)).values()], axis=1)
    touched = [
        {tuple(at) for ends in np.ndindex(2, 2, 2) for at in ((part + np.multiply(ends, SIDE - 1)) // SIDE).tolist()}
        for part in np.split(corners, 3)
    ]
    assert read <= 1.1 * size * sum(map(len, touched))


def test_each_patch_comes_once_for_two_ranks_with_two_loaders_and_after_a_restart(field: str) -> None:
    found: list[int] = []
    for rank in range(2):
        how = {"num_loaders": 2, "rank": rank, "world_size": 2, "last_batch": "partial", "batch_size": 24}
        with patches(field, SIDE, **how) as reader:
            loop = iter(reader)
            found += [index for _, batch in zip(range(7), loop, strict=False) for index in batch.indices.tolist()]
            state = reader.state_dict()
        with patches(field, SIDE, **how) as reader:
            reader.load_state_dict(state)
            found += [index for batch in reader for index in batch.indices.tolist()]
    assert sorted(found) == list(range(CHUNKS))


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
