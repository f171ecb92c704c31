"""Parts of large arrays: random 64³ crops of gzip and zstd chunks, and hours of fields as in open-climate-fix 254.

`python -m benchmarks.patches` runs blobfeed, a gather written by hand and the peers one after the other, each in a
process of its own with two workers, and prints a table; `--seconds` and `--quick` make it shorter. Peers that are not
installed in `peers_python()` are left out. What counts is samples for each second of the processor, of all processes
together: it says the same on a busy machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

BATCH = 4
WORKERS = 2
_LIMIT_S = 120.0
_WARM_S = 2.0
_CACHE_BYTES = 32 << 20

_VOLUME: dict[str, Any] = {
    "shape": (512, 768, 768),
    "chunk": (64, 64, 64),
    "size": (64, 64, 64),
    "stride": (15, 15, 15),
}
WORKS: dict[str, dict[str, Any]] = {
    "64³ of gzip chunks, HDF5": {"file": "volume_gzip.h5", **_VOLUME},
    "64³ of gzip chunks, zarr": {"file": "volume_gzip.zarr", **_VOLUME},
    "64³ of zstd chunks, zarr": {"file": "volume_zstd.zarr", **_VOLUME},
    "fields (254), zarr": {
        "file": "fields_zstd.zarr", "shape": (576, 768, 768), "chunk": (12, 64, 64), "size": (24, 64, 64),
        "stride": (7, 7, 7),
    },
}  # fmt: skip
"""Arrays of 1.2 GB, decoded: a cache of 32 MB holds nothing of use, and a window of chunks is a sixth at most. By the
strides a run of some seconds goes through several windows."""

# ---- what is run: each yields the number of samples in a batch


def blobfeed(
    path: str, work: dict[str, Any], shuffle: bool | Literal["chunk"] = True, loaders: int = WORKERS
) -> Iterator[int]:
    from blobfeed import BatchReader

    kind = "hdf5" if path.endswith(".h5") else "zarr"
    source: dict[str, Any] = {kind: {"path": path, "patch": patch_of(work)}}
    if shuffle is True:  # by default the cache has room for a window of chunks, which these patches have no use of
        source[kind]["chunk_cache_bytes"] = _CACHE_BYTES
    with BatchReader(
        source, tops=["data"], batch_size=BATCH, num_loaders=loaders, shuffle=shuffle, epochs=None
    ) as reader:
        for batch in reader:
            yield len(batch["data"])


def blobfeed_by_chunks(path: str, work: dict[str, Any]) -> Iterator[int]:
    yield from blobfeed(path, work, "chunk")


def patch_of(work: dict[str, Any]) -> dict[str, Any]:
    return {"size": dict(enumerate(work["size"])), "stride": dict(enumerate(work["stride"]))}


def corners(work: dict[str, Any], seed: int) -> Iterator[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    while True:
        yield tuple(rng.integers(0, np.array(work["shape"]) - work["size"] + 1).tolist())


def region(corner: tuple[int, ...], work: dict[str, Any]) -> tuple[slice, ...]:
    return tuple(slice(at, at + size) for at, size in zip(corner, work["size"], strict=True))


def stored_chunks(path: str, work: dict[str, Any]) -> Callable[[tuple[int, ...]], tuple[str, int, int]]:
    """Return the file, the offset and the size of each chunk."""
    if not path.endswith(".h5"):

        def of_zarr(at: tuple[int, ...]) -> tuple[str, int, int]:
            file = f"{path}/data/c/" + "/".join(map(str, at))
            return file, 0, Path(file).stat().st_size

        return of_zarr
    import h5py  # type: ignore[import-untyped]

    found = {}
    with h5py.File(path) as file:
        data = file["data"]
        for number in range(data.id.get_num_chunks()):
            info = data.id.get_chunk_info(number)
            found[tuple(at // size for at, size in zip(info.chunk_offset, work["chunk"], strict=True))] = info
    return lambda at: (path, found[at].byte_offset, found[at].size)


def under(corner: tuple[int, ...], work: dict[str, Any]) -> Iterator[tuple[int, ...]]:
    spans = zip(corner, work["size"], work["chunk"], strict=True)
    yield from itertools.product(*(range(at // chunk, (at + size - 1) // chunk + 1) for at, size, chunk in spans))


def _gather(path: str, work: dict[str, Any], seed: int, memory: Any, ready: Any) -> None:
    import deflate

    where, files, bytes_of = stored_chunks(path, work), dict[str, int](), int(np.prod(work["chunk"])) * 4
    if "zstd" in path:
        import numcodecs.zstd  # type: ignore[import-untyped]

        undo: Any = numcodecs.zstd.decompress
    elif path.endswith(".h5"):
        undo = lambda data: deflate.zlib_decompress(data, bytes_of)  # noqa: E731
    else:
        undo = lambda data: deflate.gzip_decompress(data, bytes_of)  # noqa: E731
    rows = np.frombuffer(memory, np.float32).reshape(BATCH, *work["size"])
    for number, corner in enumerate(corners(work, seed)):
        row = rows[number % BATCH]
        for at in under(corner, work):
            file, offset, size = where(at)
            if file not in files:
                files[file] = os.open(file, os.O_RDONLY)
            values = np.frombuffer(undo(os.pread(files[file], size, offset)), np.float32).reshape(work["chunk"])
            start = np.array(at) * work["chunk"]
            low = np.maximum(corner, start)
            high = np.minimum(np.array(corner) + work["size"], start + work["chunk"])
            row[tuple(map(slice, low - corner, high - corner))] = values[tuple(map(slice, low - start, high - start))]
        if number % BATCH == BATCH - 1:
            ready.put(BATCH)


def by_hand(path: str, work: dict[str, Any]) -> Iterator[int]:
    """Two processes that read, decode by libdeflate or zstd and cut into shared memory, and do nothing else."""
    context = multiprocessing.get_context("fork")
    ready = context.Queue(2 * WORKERS)
    workers = []
    for seed in range(WORKERS):
        memory = context.RawArray("f", BATCH * int(np.prod(work["size"])))
        workers.append(context.Process(target=_gather, args=(path, work, seed, memory, ready), daemon=True))
        workers[-1].start()
    try:
        while True:
            yield ready.get()
    finally:
        for worker in workers:
            worker.kill()


class _Slices:
    """A map-style dataset for torch; `open_array` is called in each worker."""

    def __init__(self, work: dict[str, Any], open_array: Callable[[], Callable[[tuple[slice, ...]], Any]]) -> None:
        self.work, self.open_array, self.read = work, open_array, None

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Any:
        self.read = self.read or self.open_array()  # type: ignore[assignment]
        assert self.read is not None
        return self.read(region(next(corners(self.work, index)), self.work))


def _loader(work: dict[str, Any], open_array: Callable[[], Callable[[tuple[slice, ...]], Any]]) -> Iterator[int]:
    import torch.utils.data

    dataset: Any = _Slices(work, open_array)
    for batch in torch.utils.data.DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS):
        yield len(batch)


def h5py_slices(path: str, work: dict[str, Any]) -> Iterator[int]:
    def opened() -> Any:
        import h5py

        data = h5py.File(path)["data"]
        return lambda box: data[box]

    yield from _loader(work, opened)


def zarr_slices(path: str, work: dict[str, Any]) -> Iterator[int]:
    def opened() -> Any:
        import zarr

        data: Any = zarr.open_array(f"{path}/data", mode="r")
        return lambda box: data[box]

    yield from _loader(work, opened)


def _dataset(path: str) -> Any:
    import xarray  # type: ignore[import-not-found]

    if path.endswith(".h5"):
        return xarray.open_dataset(path, engine="h5netcdf", phony_dims="sort", chunks={})["data"]
    return xarray.open_zarr(path, chunks={}, consolidated=False)["data"]


def xarray_dask(path: str, work: dict[str, Any]) -> Iterator[int]:
    def opened() -> Any:
        import dask  # type: ignore[import-not-found]

        dask.config.set(scheduler="synchronous")  # threads of dask do not survive a worker's fork
        data = _dataset(path)
        return lambda box: data[box].load().values

    yield from _loader(work, opened)


def xbatcher(path: str, work: dict[str, Any]) -> Iterator[int]:
    def opened() -> Any:
        import dask
        import xbatcher as batches  # type: ignore[import-not-found]

        dask.config.set(scheduler="synchronous")
        data = _dataset(path)
        names = data.dims
        cut = batches.BatchGenerator(
            data.to_dataset(), input_dims=dict(zip(names, work["size"], strict=True)),
            input_overlap=dict(zip(names, np.subtract(work["size"], work["stride"]).tolist(), strict=True)),
            preload_batch=True,
        )  # fmt: skip
        rng = np.random.default_rng()
        return lambda _: cut[int(rng.integers(len(cut)))]["data"].values

    yield from _loader(work, opened)


def tensorstore(path: str, work: dict[str, Any]) -> Iterator[int]:
    """Its own threads, as many as the others have workers; four batches are under way."""
    import tensorstore as ts  # type: ignore[import-not-found]

    context = {"data_copy_concurrency": {"limit": WORKERS}, "cache_pool": {"total_bytes_limit": _CACHE_BYTES}}
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/data/"}, "context": context}
    data, places = ts.open(spec, read=True).result(), corners(work, 0)
    asked: list[list[Any]] = []
    while True:
        while len(asked) < 4:
            asked.append([data[region(next(places), work)].read() for _ in range(BATCH)])
        yield len(np.stack([each.result() for each in asked.pop(0)]))


ENTRANTS: dict[str, tuple[Callable[[str, dict[str, Any]], Iterator[int]], str, str]] = {
    "blobfeed, shuffled": (blobfeed, "", "blobfeed"),
    "blobfeed, by chunks": (blobfeed_by_chunks, "", "blobfeed"),
    "by hand, libdeflate or zstd": (by_hand, "", "deflate"),
    "h5py, DataLoader": (h5py_slices, ".h5", "h5py"),
    "zarr, DataLoader": (zarr_slices, ".zarr", "zarr"),
    "xarray + dask, DataLoader": (xarray_dask, "", "xarray"),
    "xbatcher, DataLoader": (xbatcher, "", "xbatcher"),
    "tensorstore": (tensorstore, ".zarr", "tensorstore"),
}
"""By name: what is run, the files that it reads ("" for all), and the library that it needs."""

OURS = [*ENTRANTS][:2]

# ---- measuring


def processor_s() -> float:
    """Seconds of the processor that this process and those that it has started have taken so far."""
    parents, taken = dict[int, int](), dict[int, float]()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.parent.name)] = int(fields[1])
        taken[int(entry.parent.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(taken.get(pid, 0.0) for pid in ours)


def measure(entrant: str, work: str, path: str, seconds: float) -> dict[str, float]:
    run = ENTRANTS[entrant][0](path, WORKS[work])
    warm = next(run) and time.monotonic() + min(_WARM_S, seconds)
    while next(run) and time.monotonic() < warm:  # until caches and slots are full, which peers have none of
        pass
    begun, used, samples = time.monotonic(), processor_s(), 0
    while time.monotonic() < begun + seconds or not samples:
        samples += next(run)
    elapsed, used = time.monotonic() - begun, processor_s() - used
    run.close()  # type: ignore[attr-defined]
    return {"rate": samples / elapsed, "per_processor_s": samples / used}


def read_share(path: str, work: dict[str, Any]) -> float:
    """The bytes that blobfeed asks the kernel for, divided by those of the chunks under each batch's patches."""
    from blobfeed import BatchReader

    kind, where = "hdf5" if path.endswith(".h5") else "zarr", stored_chunks(path, work)
    options = {"path": path, "patch": patch_of(work), "chunk_cache_bytes": 0}
    read, touched = 0, 0
    with BatchReader({kind: options}, tops=["data"], batch_size=BATCH, num_loaders=0, shuffle=True) as reader:
        loop = iter(reader)
        next(loop)
        for _ in range(10):
            before = int(Path("/proc/self/io").read_text().split()[1])
            batch = next(loop)
            read += int(Path("/proc/self/io").read_text().split()[1]) - before
            found = zip(*(each.tolist() for each in reader.corners(batch.indices).values()), strict=True)
            touched += sum(where(at)[2] for at in {at for corner in found for at in under(corner, work)})
    return read / touched


def write(folder: Path) -> None:
    """Noise that fills an eighth of each array; all other chunks are those of this part again."""
    import h5py
    import zarr
    from zarr.codecs import GzipCodec, ZstdCodec

    for work in WORKS.values():
        path, rng = folder / work["file"], np.random.default_rng(0)
        if path.exists():
            continue
        half = tuple(extent // 2 for extent in work["shape"])
        values = np.cumsum(rng.integers(-3, 4, half, np.int8), axis=-1, dtype=np.float32)
        grid = np.array(half) // work["chunk"]
        others = [at for at in np.ndindex(*(2 * grid)) if (at >= grid).any()]
        made = folder / f"unfinished {path.name}"
        if path.suffix == ".h5":
            with h5py.File(made, "w") as file:
                how = {"compression": "gzip", "compression_opts": 1}
                data = file.create_dataset("data", work["shape"], "f4", chunks=work["chunk"], **how)
                data[tuple(map(slice, half))] = values
                for at in others:
                    _, stored = data.id.read_direct_chunk(tuple(at % grid * work["chunk"]))
                    data.id.write_direct_chunk(tuple(np.multiply(at, work["chunk"])), stored)
        else:
            shutil.rmtree(made, ignore_errors=True)
            further: dict[str, Any] = {
                "chunks": work["chunk"],
                "compressors": [GzipCodec(level=1) if "gzip" in path.name else ZstdCodec()],
            }
            array = zarr.create_group(made).create_array(
                "data", shape=work["shape"], dtype="f4", dimension_names=("z", "y", "x"), **further
            )
            array[tuple(map(slice, half))] = values
            for at in others:
                target = made / "data" / "c" / "/".join(map(str, at))
                target.parent.mkdir(parents=True, exist_ok=True)
                target.hardlink_to(made / "data" / "c" / "/".join(map(str, at % grid)))
        made.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.patches", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        print(json.dumps(measure(given.run[0], given.run[1], given.run[2], given.seconds)), flush=True)
        os._exit(0)  # some libraries' threads do not end
    from .datasets import data_folder
    from .harness import peers_python
    from .report import table

    seconds, folder = 0.5 if given.quick else given.seconds, data_folder() / "patches"
    folder.mkdir(parents=True, exist_ok=True)
    write(folder)
    rows: dict[tuple[str, str], list[dict[str, float]]] = {}
    for _ in range(1 if given.quick else given.rounds):
        for work, (name, (_, suffix, library)) in itertools.product(WORKS, ENTRANTS.items()):
            path = str(folder / WORKS[work]["file"])
            python = sys.executable if library in ("blobfeed", "deflate") else peers_python()
            look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({library!r}) is None)"
            if not path.endswith(suffix) or subprocess.run([python, "-c", look], check=False).returncode:
                continue
            command = [python, "-m", "benchmarks.patches", "--run", name, work, path, "--seconds", str(seconds)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_LIMIT_S)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                said = (error.stderr or "") if isinstance(error.stderr, str) else ""
                print(f"{work}: {name} gave no figure: {said.strip().splitlines()[-1:]}", file=sys.stderr, flush=True)
                continue
            rows.setdefault((work, name), []).append(json.loads(done.stdout.splitlines()[-1]))
            print(f"{work}: {name}: {rows[work, name][-1]}", file=sys.stderr, flush=True)
    lines = []
    for work, entry in WORKS.items():
        for name in ENTRANTS:
            if found := rows.get((work, name)):
                rate, by_cpu = (max(each[key] for each in found) for key in ("rate", "per_processor_s"))
                ours = [max(each["per_processor_s"] for each in rows[work, order]) / by_cpu for order in OURS]
                lines.append([work, name, f"{rate:.1f}/s", f"{by_cpu:.1f}", *(f"{share:.2f} ×" for share in ours)])
        share = read_share(str(folder / entry["file"]), entry)
        lines.append([work, "bytes read by blobfeed, of the chunks touched", "", "", f"{share:.3f} ×", ""])
    print(table(["work", "loader", "samples", "a processor second", *(f"{order}, is" for order in OURS)], lines))


if __name__ == "__main__":
    main()
