"""A net run layer by layer, forward and backward, with the gradient of every blob in its `diff`, as Caffe does it.

Slower than `Net.forward` with torch's own backward, which makes no copy of the gradients of blobs. Here any part of a
net can be run, and whatever stands in a blob's `data` or `diff` counts, also if the user wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..prototxt.errors import NetError
from .graph import Net, Step

After = Callable[[int], object]
"""Called with the position of a layer that is done."""


class Stepwise:
    """Runs the layers of `net` from `first` to `last`, which are positions in `net.steps`."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self._takers = _takers(net.steps)
        self._in_need = _in_need(net.steps)
        self._graphs: dict[int, tuple[Mapping[str, Tensor], Sequence[Tensor]]] = {}
        """By layer: its bottoms by name and its tops at the last forward; autograd's graph reaches no further."""
        self._has_run = False

    def forward(self, first: int, last: int, after: After = lambda nth: None) -> None:
        self._has_run = True
        blobs, values = self._net.blobs, self._net.values
        if first:  # what layers above `first` have made may have been written over
            for name, value in values.items():
                values[name] = blobs[name].tensor.detach().requires_grad_(value.requires_grad)
        for nth in range(first, last + 1):
            step = self._net.steps[nth]
            bottoms = {name: values[name] if name in values else blobs[name].tensor for name in step.bottoms}
            in_need = {step.bottoms[at] for at in step.forced} | (self._in_need - values.keys())
            bottoms = {
                name: each.detach().requires_grad_(each.requires_grad or name in in_need)
                for name, each in bottoms.items()
            }
            made, _ = self._net.run({}, slice(nth, nth + 1), dict(bottoms))
            self._graphs[nth] = bottoms, [made[name] for name, _, _ in step.tops]
            for name, blob, weight in step.tops:
                values[name] = made[name]
                if weight:
                    blob.diff.fill_(weight)
            after(nth)

    def forget(self) -> None:
        """The weights, or all blobs, are no longer those of the last forward: no layer can go back until the next."""
        self._has_run = True  # by a solver, if not here
        self._graphs.clear()

    def backward(self, first: int, last: int, after: After = lambda nth: None) -> None:
        """From layer `last` up to layer `first`. Gradients of weights are added to those that are there.

        A blob that no layer in between takes gives the gradient in its `diff`: the loss weight, or what was written
        there. In a net that never ran, the layers with bottoms run once before that, over the blobs as they are.
        """
        if not self._has_run:
            for nth in range(first, last + 1):
                if self._net.steps[nth].bottoms:
                    self.forward(nth, nth)
        diffs: dict[str, Tensor] = {}
        for nth in range(last, first - 1, -1):
            if nth not in self._graphs:
                layer = self._net.steps[nth].layer
                if not layer.param.bottom:  # a script has filled its tops, and begun the forward below
                    continue
                raise NetError(f"{layer.context.where}: backward needs a forward of this layer before it")
            bottoms, tops = self._graphs[nth]
            found = self._top_diffs(nth, last, diffs)
            pairs = [(top, diff) for top, diff in zip(tops, found, strict=True) if diff is not None]
            if pairs:
                for bottom in bottoms.values():
                    bottom.grad = None
                # On this thread, also on CUDA: a Python layer's backward may rely on the thread of its forward.
                with torch.autograd.set_multithreading_enabled(False):
                    torch.autograd.backward([top for top, _ in pairs], [diff for _, diff in pairs], retain_graph=True)
                for name, bottom in bottoms.items():
                    if bottom.grad is not None:
                        diffs[name] = diffs[name] + bottom.grad if name in diffs else bottom.grad
            after(nth)
        for name, diff in diffs.items():
            self._net.blobs[name].diff.copy_(diff)

    def _top_diffs(self, nth: int, last: int, diffs: dict[str, Tensor]) -> list[Tensor | None]:
        """The gradients of the tops of layer `nth`, which leave `diffs`; None for a top that needs none."""
        found: list[Tensor | None] = []
        _, tops = self._graphs[nth]
        for (name, blob, weight), top, takers in zip(self._net.steps[nth].tops, tops, self._takers[nth], strict=True):
            diff: Tensor | None
            if any(taker <= last for taker in takers):
                diff = diffs.pop(name, None)
                if weight:
                    diff = torch.full_like(top, weight) if diff is None else diff + weight
            else:
                diff = blob.diff.as_subclass(Tensor).clone()
            if diff is not None:
                blob.diff.copy_(diff)
            found.append(diff if top.requires_grad else None)
        return found


def _in_need(steps: Sequence[Step]) -> set[str]:
    """The blobs that get a gradient. A forward finds them too, but one may begin below the layers that make them."""
    found: set[str] = set()
    for step in steps:
        passed_on = {name for nth, name in enumerate(step.bottoms) if nth not in step.stopped}
        learns = any(weights.requires_grad for weights in step.layer.blobs)
        if learns or step.begins_graph or step.forced or found & passed_on:
            found.update(name for name, _, _ in step.tops)
    return found


def _takers(steps: Sequence[Step]) -> list[list[list[int]]]:
    """For each layer and each of its tops: the layers that take it before another layer writes it in place."""
    takers: list[list[list[int]]] = []
    latest: dict[str, list[int]] = {}
    for nth, step in enumerate(steps):
        for name in step.bottoms:
            latest[name].append(nth)
        takers.append([[] for _ in step.tops])
        latest.update(zip((name for name, _, _ in step.tops), takers[-1], strict=True))
    return takers
