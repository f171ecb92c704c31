"""A net run layer by layer, forward and backward, with the gradient of every blob in its `diff`, as Caffe does it.

Here any part of a net can be run, and whatever stands in a blob's `data` or `diff` counts, also if the user wrote it.
`Net.run` is the runner; here each layer has a graph of autograd's that ends at its bottoms, and `backward` carries the
gradients from graph to graph. So it is slower than `Net.forward` with torch's own backward, which copies no gradients.

One graph, with `retain_grad()` on the blobs, would not do. A script may write to a blob and run only the layers below
it: these are a second graph, and their gradients go on into the first. Autograd follows weights that two layers share
into layers outside the part that goes back. And it does not say how long each layer takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..layer_types import Layer, Tensors
from ..prototxt import NetError
from .graph import Net, Step, go_back

After = Callable[[int], object]
"""Called with the position of a layer that is done."""


class Stepwise:
    """Runs the layers of `net` from `first` to `last`, which are positions in `net.steps`."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self._in_need = _in_need(net.steps)
        self._graphs: dict[int, tuple[Tensors, Tensors]] = {}
        """By layer: its bottoms and its tops at the last forward; autograd's graph reaches no further."""
        self._has_run = False

    def forward(self, first: int, last: int, after: After = lambda nth: None) -> None:
        self._has_run = True
        self._begin_from_blobs(first, last)
        steps, positions = self._net.steps[first : last + 1], iter(range(first, last + 1))

        def call(layer: Layer, bottoms: Sequence[Tensor]) -> Tensors:
            leaves = tuple(bottom.detach().requires_grad_(bottom.requires_grad) for bottom in bottoms)
            tops: Tensors = layer(*leaves)
            if layer.has_views:  # a script that writes to a top must not write to the bottom
                tops = tuple(top.clone() for top in tops)
            nth = next(positions)
            self._graphs[nth] = leaves, tops
            after(nth)
            return tops

        self._net.run({}, slice(first, last + 1), call)
        for _, blob, weight in (top for step in steps for top in step.tops):
            if weight:
                blob.diff.fill_(weight)

    def _begin_from_blobs(self, first: int, last: int) -> None:
        """Take what layers before `first` have made from their blobs: a script may have written there."""
        made: set[str] = set()
        for nth in range(first, last + 1):
            step = self._net.steps[nth]
            for name in {*step.bottoms} - made:
                tensor = self._net.blobs[name].tensor.detach()
                self._net.values[name] = tensor.requires_grad_(name in self._in_need[nth])
            made.update(name for name, _, _ in step.tops)

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
        diffs: dict[str, Tensor | None] = {}
        for nth in range(last, first - 1, -1):
            if nth in self._graphs:
                self._go_back(nth, diffs)
                after(nth)
            elif (layer := self._net.steps[nth].layer).param.bottom:
                raise NetError(f"{layer.context.where}: backward needs a forward of this layer before it")
            # Else a script has filled its tops, and begun the forward below.
        for name, diff in diffs.items():
            if diff is not None:
                self._net.blobs[name].diff.copy_(diff)

    def _go_back(self, nth: int, diffs: dict[str, Tensor | None]) -> None:
        """Take the gradients of the tops of layer `nth` out of `diffs`, and put in those of its bottoms.

        A blob is in `diffs` once a layer has taken it; with None, if no layer had a gradient for it.
        """
        step, (bottoms, tops) = self._net.steps[nth], self._graphs[nth]
        begins: list[tuple[Tensor, Tensor]] = []
        for (name, blob, weight), top in zip(step.tops, tops, strict=True):
            if name in diffs:
                diff = _sum(diffs.pop(name), torch.full_like(top, weight) if weight else None)
            else:
                diff = blob.diff.as_subclass(Tensor).clone()
            if diff is not None:
                blob.diff.copy_(diff)
                begins += [(top, diff)] if top.requires_grad else []
        for bottom in bottoms:
            bottom.grad = None
        if begins:
            go_back([top for top, _ in begins], [diff for _, diff in begins], retain_graph=True)
        for name, bottom in zip(step.bottoms, bottoms, strict=True):
            diffs[name] = _sum(diffs.get(name), bottom.grad)


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return first + second


def _in_need(steps: Sequence[Step]) -> list[set[str]]:
    """For each layer, the bottoms that get a gradient. A forward finds them too, but one may begin at any layer."""
    found: set[str] = set()
    in_need: list[set[str]] = []
    for step in steps:
        in_need.append(found & {*step.bottoms})
        passed_on = {name for nth, name in enumerate(step.bottoms) if nth not in step.stopped}
        learns = any(weights.requires_grad for weights in step.layer.blobs)
        tops = {name for name, _, _ in step.tops}
        found -= tops  # in place, what it was before
        if learns or step.begins_graph or step.forced or in_need[-1] & passed_on:
            found |= tops
    return in_need
