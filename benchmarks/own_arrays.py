"""`python -P -m benchmarks.own_arrays`: `BatchReader.into` against a layer and against a copy of the user's own.

All three read the same HDF5 file of uint8 images into float32 memory that is there before. They take turns of half a
second within one process, so that what disturbs one turn disturbs its neighbours. While one has its turn the others'
rings are full, so their loaders rest.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np

from blobfeed import BatchReader, LayerHarness, MultiProcessInputLayer

from .report import machine, table

_TURN_S = 0.5
_BATCH = 64
_LAYER, _INTO, _COPY = "layer", "BatchReader.into", "BatchReader and numpy.copyto"

Step = Callable[[], object]


def own_arrays(shape: tuple[int, ...]) -> dict[str, Any]:
    """Float32 memory for a batch of images and labels; its pages are there."""
    return {"data": np.ones((_BATCH, *shape), np.float32), "label": np.ones(_BATCH, np.float32)}


def opened(stack: ExitStack, given: Mapping[str, Any], shape: tuple[int, ...]) -> dict[str, Step]:
    """A step of each kind: it brings the next batch into memory that was there before. `given`: parameters."""
    layer = stack.enter_context(LayerHarness(MultiProcessInputLayer, given))
    into = stack.enter_context(BatchReader(**given)).into(own_arrays(shape))
    loop, own = iter(stack.enter_context(BatchReader(**given))), own_arrays(shape)

    def copy() -> None:
        for name, array in next(loop).items():
            np.copyto(own[name], array)

    return {_LAYER: layer.forward, _INTO: lambda: next(into), _COPY: copy}


def rates(steps: Mapping[str, Step], turns: int, turn_s: float) -> dict[str, list[float]]:
    """Samples per second of each kind in each of its turns."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(turns):
        order = list(steps.items())
        first = turn % len(order)
        for name, step in order[first:] + order[:first]:
            for _ in range(8):  # what lay ready in the ring
                step()
            count, begun = 0, time.perf_counter()
            while (took := time.perf_counter() - begun) < turn_s:
                step()
                count += 1
            found[name].append(count * _BATCH / took)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -P -m benchmarks.own_arrays", description=__doc__)
    parser.add_argument("--turns", type=int, default=15, help="of each kind, half a second each")
    parser.add_argument("--quick", action="store_true", help="small data and a moment each: does everything run?")
    chosen = parser.parse_args(arguments)
    turns, turn_s = (1, 0.02) if chosen.quick else (chosen.turns, _TURN_S)
    rows = []
    with TemporaryDirectory() as folder:
        for shape, samples in (((3, 224, 224), 1000), ((1, 28, 28), 60_000)):
            samples = 256 if chosen.quick else samples
            path = Path(folder, f"{shape[-1]}.h5")
            with h5py.File(path, "w") as file:
                file["data"] = np.random.default_rng(0).integers(0, 256, (samples, *shape), np.uint8)
                file["label"] = np.arange(samples) % 10
            for loaders in (0, 2):
                given = {"source": {"hdf5": {"path": str(path)}}, "batch_size": _BATCH, "num_loaders": loaders}
                with ExitStack() as stack:
                    found = rates(opened(stack, {**given, "shuffle": True}, shape), turns, turn_s)
                ratios = {  # of neighbouring turns
                    name: statistics.median(own / layer for own, layer in zip(found[name], found[_LAYER], strict=True))
                    for name in found
                }
                cells = [f"{statistics.median(found[name]):,.0f} ({ratios[name]:.2f})" for name in found]
                rows.append([f"{'×'.join(map(str, shape))}, {loaders} loaders", *cells])
    print(f"{machine()}\n\n{table(['samples/s (of the layer)', _LAYER, _INTO, _COPY], rows)}")


if __name__ == "__main__":
    main()
