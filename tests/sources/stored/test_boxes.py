"""Parts of stored samples are slices as h5py, zarr and NumPy give them, and nothing else is read for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
import zarr
from blobfeed.workers.api import AnyArray, Boxes
from zarr.codecs import BytesCodec, TransposeCodec

from blobfeed import Source
from tests.support.object_servers import range_server
from tests.support.part import some_of
from tests.support.stored import bytes_read, in_loader, opened, some_array

TYPES = ["u1", "i2", ">i2", "f4", ">f4", "f8", "b1"]
FILTERS: list[dict[str, Any]] = [
    {},
    {"compression": "gzip"},
    {"compression": "gzip", "shuffle": True, "fletcher32": True},
    {"compression": "lzf"},
]


def some_shape(rng: np.random.Generator, samples: int) -> tuple[int, ...]:
    return samples, *rng.integers(1, 9, rng.integers(1, 4)).tolist()


def some_chunk(rng: np.random.Generator, shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(rng.integers(1, np.array(shape) + 1).tolist())


def write_hdf5(path: Path, arrays: Mapping[str, AnyArray], rng: np.random.Generator) -> None:
    with h5py.File(path, "w", libver=["earliest", "latest"][rng.integers(2)]) as file:
        for name, values in arrays.items():
            filters = FILTERS[rng.integers(len(FILTERS))]
            how = {"chunks": some_chunk(rng, values.shape), **filters} if rng.integers(4) else {}
            file.create_dataset(name, data=values, **how)


def write_zarr(path: Path, arrays: Mapping[str, AnyArray], rng: np.random.Generator) -> None:
    versions: list[Literal[2, 3]] = [2, 3]
    group = zarr.create_group(path, zarr_format=versions[rng.integers(2)])
    for name, values in arrays.items():
        chunk, how = some_chunk(rng, values.shape), dict[str, Any]()
        if group.metadata.zarr_format == 3 and rng.integers(2):
            how["shards"] = tuple(int(size * rng.integers(1, 3)) for size in chunk)
        elif group.metadata.zarr_format == 3:
            how["filters"] = [TransposeCodec(order=tuple(rng.permutation(values.ndim).tolist()))]
            how["serializer"] = BytesCodec(endian=["big", "little"][rng.integers(2)])
        native = values.astype(values.dtype.newbyteorder("="))
        group.create_array(name, shape=values.shape, dtype=native.dtype, chunks=chunk, **how)[...] = native


def write_npy(path: Path, arrays: Mapping[str, AnyArray], rng: np.random.Generator) -> None:
    path.mkdir()
    for name, values in arrays.items():
        np.save(path / f"{name}.npy", np.asfortranarray(values) if rng.integers(2) else values)


def read_parts(source: Source, indices: Sequence[int], parts: Mapping[str, Boxes]) -> dict[str, AnyArray]:
    out = {
        name: np.full((len(indices), *(parts[name].shape if name in parts else spec.shape)), 99, spec.dtype)
        for name, spec in source.specs.items()
    }
    source.will_need_parts(np.array(indices), parts)
    source.read_parts(np.array(indices), parts, out)
    return out


@pytest.mark.parametrize("first", some_of(range(0, 120, 10), 12))
@pytest.mark.parametrize("kind", ["hdf5", "zarr", "npy"])
def test_parts_of_any_array_are_its_slices(kind: str, first: int, tmp_path: Path) -> None:
    """Draw shapes, chunks, filters, byte orders and types by chance: 2,160 arrays of HDF5 and zarr, 1,080 of npy."""
    write: Callable[..., None] = {"hdf5": write_hdf5, "zarr": write_zarr, "npy": write_npy}[kind]
    for seed in range(first, first + 10):
        rng = np.random.default_rng(seed)
        samples = int(rng.integers(1, 6))
        arrays = {f"x{k}": some_array(some_shape(rng, samples), TYPES[rng.integers(7)], k) for k in range(10)}
        path = tmp_path / f"{seed}"
        write(path, arrays, rng)
        files = {name: f"{path}/{name}.npy" for name in arrays}
        options: dict[str, Any] = files if kind == "npy" else {"path": str(path)}
        if kind != "npy" and rng.integers(2):
            options["chunk_cache_bytes"] = int(rng.integers(0, 2000))
        indices = rng.integers(0, samples, rng.integers(1, 5))
        parts = {}
        for name, values in [*arrays.items()][:9]:  # the last one is read whole
            shape = some_chunk(rng, values.shape[1:])
            spare = np.array(values.shape[1:]) - np.array(shape, np.int64)
            parts[name] = Boxes(rng.integers(0, spare + 1, (len(indices), len(shape))), shape)
        with closing(in_loader(opened(kind, tmp_path, [*arrays], **options))) as source:
            rows = read_parts(source, indices.tolist(), parts)
        for name, values in arrays.items():
            for row, index in enumerate(indices.tolist()):
                expected = values[index]
                if name in parts:
                    box = zip(parts[name].corners[row].tolist(), parts[name].shape, strict=True)
                    expected = expected[tuple(slice(at, at + size) for at, size in box)]
                np.testing.assert_array_equal(rows[name][row], expected, err_msg=f"seed {seed}, {name}")


def test_a_crop_reads_the_chunks_that_it_touches_and_no_others(tmp_path: Path) -> None:
    """Counted by the kernel for files, by the server for objects; of an array in one piece the planes."""
    values = np.random.default_rng(0).random((2, 128, 128, 128), np.float32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("data", data=values, chunks=(1, 32, 32, 32), compression="gzip")
        chunk = data.id.get_chunk_info(0).size
    np.save(tmp_path / "a.npy", values)
    boxes = {"data": Boxes(np.array([[17, 30, 40], [0, 96, 60]]), (32, 32, 32))}
    touched = 1.1 * chunk * (2 * 2 * 2 + 1 * 1 * 2)
    with range_server() as server:
        server.objects.update({name: (tmp_path / name).read_bytes() for name in ("a.h5", "a.npy")})
        for kind, option, most in (
            ("hdf5", {"path": str(tmp_path / "a.h5")}, touched),
            ("hdf5", {"path": server.url("a.h5")}, touched),
            ("npy", {"data": server.url("a.npy")}, 2 * 32 * values[0, 0].nbytes),
        ):
            with closing(in_loader(opened(kind, tmp_path, ["data"], **option))) as source:
                read_parts(source, [0], {"data": Boxes(np.zeros((1, 3), int), (1, 1, 1))})  # imports what it needs
                server.requests.clear()
                before = bytes_read()
                out = read_parts(source, [1, 0], boxes)["data"]
                read = sum(map(_size, server.requests)) if server.requests else bytes_read() - before
            np.testing.assert_array_equal(out[0], values[1, 17:49, 30:62, 40:72])
            np.testing.assert_array_equal(out[1], values[0, 0:32, 96:128, 60:92])
            assert read <= most, (kind, option)


def _size(request: tuple[str, str]) -> int:
    first, last = request[1].removeprefix("bytes=").split("-")
    return int(last) + 1 - int(first)
