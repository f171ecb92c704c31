"""How long each layer of a net takes, forward and backward."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from ..trainer.net.graph import Net
from ..trainer.net.stepwise import Stepwise


@dataclass
class LayerTime:
    """Means over the iterations, in seconds."""

    name: str
    type: str
    forward_s: float = 0.0
    backward_s: float = 0.0


def time_layers(net: Net, iterations: int) -> list[LayerTime]:
    """Run the net forward and backward; a first iteration, which takes memory and starts loaders, does not count."""
    stepwise = Stepwise(net)
    times = [LayerTime(name, layer.param.type) for name, layer in net.layers.items()]
    last = len(times) - 1

    def add(field: str) -> None:
        """Run through all layers, and add the time of each to `field`."""
        since = _now(net)

        def note(nth: int) -> None:
            nonlocal since
            now = _now(net)
            setattr(times[nth], field, getattr(times[nth], field) + (now - since) / iterations)
            since = now

        (stepwise.forward if field == "forward_s" else stepwise.backward)(0, last, note)

    stepwise.forward(0, last)
    stepwise.backward(0, last)
    for _ in range(iterations):
        add("forward_s")
        add("backward_s")
    return times


def _now(net: Net) -> float:
    if net.device.type == "cuda":
        torch.cuda.synchronize(net.device)
    return time.perf_counter()


def table(times: list[LayerTime]) -> str:
    """A line for each layer, and one for all of them."""
    total = LayerTime("all layers", "", sum(each.forward_s for each in times), sum(each.backward_s for each in times))
    rows = [("layer", "type", "forward ms", "backward ms")]
    rows += [(t.name, t.type, f"{1000 * t.forward_s:.3f}", f"{1000 * t.backward_s:.3f}") for t in (*times, total)]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(f"{a:<{first}}  {b:<{second}}  {c:>11}  {d:>11}" for a, b, c, d in rows)
