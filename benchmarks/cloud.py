"""Shuffled samples of HDF5 files in object storage: blobfeed, a bare loop of obstore, and h5py over s3fs, in one run.

    python -P -m benchmarks.cloud [--rounds 3] [--delay-ms 20]

One nginx serves the files; between it and all of them stands a proxy that holds each request back, as a network would.
All speak S3 to it, without signatures. The bare loop gets byte ranges of the same size with as many requests at a time,
in as many processes, and puts each into an array of a batch's size, where it stays in its process; s3fs and h5py read
sample after sample, as a Dataset would. blobfeed's batches are read where the loaders put them (`delivery: view`), in
one process. Needs the extra `cloud`, s3fs, and nginx (or BLOBFEED_NGINX, its path).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np

from blobfeed import BatchReader
from tests.support.object_servers import nginx

from .report import table
from .slow_proxy import slow_proxy

_LOADERS = 2
_AT_ONCE = 32
_BATCH = 64
_KINDS = {"contiguous": {}, "chunked": {"chunks": True}}
_FILE_BYTES = 256 << 20
_SECONDS = 3.0


def _write(folder: Path, sample_bytes: int) -> None:
    samples = _FILE_BYTES // sample_bytes
    values = np.random.default_rng(0).integers(0, 256, (samples, sample_bytes), np.uint8)
    for kind in _KINDS:
        with h5py.File(folder / f"{kind}_{sample_bytes}.h5", "w") as file:
            chunks = (1, sample_bytes) if kind == "chunked" else None
            file.create_dataset("data", data=values, chunks=chunks)
            file["label"] = np.arange(samples)


def blobfeed_rate(name: str) -> float:
    source = {"hdf5": {"path": f"s3://bucket/{name}"}}
    given: Any = {"num_loaders": _LOADERS, "epochs": None}
    with BatchReader(source, batch_size=_BATCH, shuffle=True, seed=1, **given) as reader:
        batches = iter(reader)
        for _ in range(4):
            next(batches)
        taken, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < _SECONDS:
            next(batches)
            taken += _BATCH
        return taken / (time.perf_counter() - begun)


def bare_rate(name: str) -> float:
    """Read in as many processes as blobfeed has loaders, each with as many requests at a time."""
    command = [sys.executable, "-P", "-m", __spec__.name, "--bare", name]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(_LOADERS)]
    return sum(float(process.communicate()[0]) for process in processes)


async def _bare(name: str) -> float:
    import obstore
    from obstore.store import S3Store

    sample_bytes = int(name.partition("_")[2].partition(".")[0])
    store = S3Store("bucket", client_options={"allow_http": True})
    taken, begun = 0, 0.0
    random = np.random.default_rng(os.getpid())
    batch = np.empty((_BATCH, sample_bytes), np.uint8)

    async def reader() -> None:
        nonlocal taken
        while not begun or time.perf_counter() - begun < _SECONDS:
            start = int(random.integers(_FILE_BYTES // sample_bytes - 1)) * sample_bytes + 2048
            answer = await obstore.get_range_async(store, name, start=start, length=sample_bytes)
            batch[taken % _BATCH] = np.frombuffer(memoryview(answer), np.uint8)
            taken += 1

    readers = [asyncio.create_task(reader()) for _ in range(_AT_ONCE)]
    await asyncio.sleep(0.5)
    taken, begun = 0, time.perf_counter()
    await asyncio.gather(*readers)
    return taken / (time.perf_counter() - begun)


def h5py_rate(name: str) -> float:
    s3fs: Any = importlib.import_module("s3fs")

    files = s3fs.S3FileSystem(anon=True, endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    # The default reads 5 MB ahead of each sample, for nothing.
    with files.open(f"bucket/{name}", "rb", cache_type="none") as stream, h5py.File(stream, "r") as file:
        data, labels = file["data"], file["label"][:]
        order = np.random.default_rng(1).permutation(len(data))
        taken, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < _SECONDS:
            data[order[taken]], labels[order[taken]]
            taken += 1
        return taken / (time.perf_counter() - begun)


def main(rounds: int, delay_s: float) -> None:
    with tempfile.TemporaryDirectory(prefix="blobfeed-cloud-") as folder:
        objects = Path(folder) / "objects" / "bucket"
        objects.mkdir(parents=True)
        rows = []
        with nginx(Path(folder)) as behind, slow_proxy(behind, delay_s) as port:
            os.environ |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_SKIP_SIGNATURE": "true"}
            os.environ |= {"AWS_REGION": "us-east-1", "XDG_CACHE_HOME": folder}
            for sample_bytes in (1 << 16, 1 << 18, 1 << 20):
                _write(objects, sample_bytes)
                for kind in _KINDS:
                    name = f"{kind}_{sample_bytes}.h5"
                    taken = [[rate(name) for rate in (blobfeed_rate, bare_rate, h5py_rate)] for _ in range(rounds)]
                    mine, bare, slow = (statistics.median(column) for column in zip(*taken, strict=True))
                    of_bare = statistics.median(row[0] / row[1] for row in taken)
                    of_h5py = statistics.median(row[0] / row[2] for row in taken)
                    speeds = [f"{mine:,.0f}", f"{mine * sample_bytes / 1e6:,.0f}", f"{bare:,.0f}", f"{slow:,.0f}"]
                    ratios = [f"{of_bare:.2f}", f"{of_h5py:.1f}"]
                    rows.append([f"{kind}, {sample_bytes >> 10} KiB", *speeds, *ratios])
                    print(*rows[-1], file=sys.stderr, flush=True)
    head = ["samples", "blobfeed, samples/s", "MB/s", "bare obstore", "h5py over s3fs", "of obstore", "of h5py"]
    print(table(head, rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay-ms", type=float, default=20.0)
    parser.add_argument("--bare", metavar="NAME", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bare:
        print(asyncio.run(_bare(given.bare)))
    else:
        main(given.rounds, given.delay_ms / 1000)
