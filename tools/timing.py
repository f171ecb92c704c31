"""The time of each layer of a net, forward and backward."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import torch

from ..trainer.net import Net, Stepwise


def layer_times(net: Net, iterations: int) -> str:
    """A table with a line for each layer and one for all of them: means over the iterations.

    A first iteration, which takes memory and starts loaders, does not count.
    """
    stepwise = Stepwise(net)
    runs = (stepwise.forward, stepwise.backward)
    mean_ms = np.zeros((len(net.layers), len(runs)))
    for run in runs:
        run(0, len(net.layers) - 1)
    for _ in range(iterations):
        for column, run in enumerate(runs):
            for nth, seconds in _timed(net, run):
                mean_ms[nth, column] += 1000 * seconds / iterations
    rows = [("layer", "type", "forward ms", "backward ms")]
    names = [*((name, layer.param.type) for name, layer in net.layers.items()), ("all layers", "")]
    rows += [
        (*name, *(f"{ms:.3f}" for ms in each)) for name, each in zip(names, (*mean_ms, mean_ms.sum(0)), strict=True)
    ]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(f"{a:<{first}}  {b:<{second}}  {c:>11}  {d:>11}" for a, b, c, d in rows)


def _timed(net: Net, run: Callable[..., None]) -> Iterator[tuple[int, float]]:
    """Run through all layers; gives the position of each and the seconds that it took."""
    stamps = [(-1, _now(net))]
    run(0, len(net.layers) - 1, lambda nth: stamps.append((nth, _now(net))))
    for (_, before), (nth, now) in pairwise(stamps):
        yield nth, now - before


def _now(net: Net) -> float:
    if net.device.type == "cuda":
        torch.cuda.synchronize(net.device)
    return time.perf_counter()
