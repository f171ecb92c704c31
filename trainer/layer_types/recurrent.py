"""Layers that carry a state from one time step to the next: RNN, LSTM, LSTMUnit.

Bottoms: the inputs (steps, streams, inputs...); cont (steps, streams), 0 if a new sequence begins and the state is
forgotten; optionally an input for all steps (streams, inputs...); with expose_hidden, the state before the first step.
Without it, a batch begins with the state in which the last one ended. As in Caffe, no gradient passes through the state
of a batch's begin or end, exposed or not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from .blobs import Shape
from .functions import row
from .layer import Layer, Tensors, layer_type


class _Recurrent(Layer):
    fields = ("recurrent_param",)
    bottoms = range(2, 6)
    tops = range(1, 4)
    states: ClassVar[int] = 1
    """The number of blobs of the state, each of shape (1, streams, num_output)."""
    gates: ClassVar[int] = 1
    """The number of rows of the weights for each output."""

    def read_options(self) -> None:
        exposed = self.states if self.options.expose_hidden else 0
        bottoms, tops = len(self.param.bottom), len(self.param.top)
        if bottoms - exposed not in (2, 3) or tops != 1 + exposed:
            raise self.context.prototxt_error(
                f"needs {2 + exposed} or {3 + exposed} bottoms and {1 + exposed} tops, got {bottoms} and {tops}"
            )
        self._exposed, self._static = exposed, bottoms - exposed == 3
        self._carried: Tensors = ()

    def make_weights(self, *bottom: Shape) -> None:
        outputs = self.options.num_output
        rows = self.gates * outputs
        self._add((rows, math.prod(bottom[0][2:])))
        self._add((rows,))
        if self._static:
            self._add((rows, math.prod(bottom[2][1:])))
        self._add((rows, outputs))

    def _add(self, shape: Shape) -> None:
        self.add_weights(shape, "weight_filler" if len(shape) > 1 else "bias_filler")

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        inputs, cont = bottom[:2]
        if len(inputs) < 3 or cont != inputs[:2]:
            raise self.context.misfit(
                f"needs bottoms (steps, streams, inputs...) and (steps, streams), got {inputs}, {cont}"
            )
        state = (1, inputs[1], self.options.num_output)
        static, given = bottom[2 : 2 + self._static], bottom[2 + self._static :]
        if any(len(shape) < 2 or shape[0] != inputs[1] for shape in static):
            raise self.context.misfit(
                f"needs an input for all steps of shape ({inputs[1]}, inputs...), got {static[0]}"
            )
        if any(shape != state for shape in given):
            raise self.context.misfit(f"needs a state of shape {state}, got {', '.join(map(str, given))}")
        return [(*inputs[:2], self.options.num_output), *(state,) * self._exposed]

    def forward(self, *bottom: Tensor) -> Tensors:
        inputs, cont = bottom[0], bottom[1]
        blobs = iter(self.blobs)
        # The inputs' products for all steps at once; the state's must wait for the step before.
        driven = functional.linear(inputs.flatten(2), next(blobs), next(blobs))
        if self._static:
            driven = driven + functional.linear(bottom[2].flatten(1), next(blobs))
        weights = list(blobs)
        if self._exposed:
            state = tuple(blob[0].detach() for blob in bottom[-self._exposed :])
        elif self._carried and len(self._carried[0]) == inputs.shape[1]:
            state = tuple(each.to(inputs.device) for each in self._carried)
        else:
            state = (inputs.new_zeros(inputs.shape[1], self.options.num_output),) * self.states
        outputs = []
        for step in range(len(inputs)):
            output, state = self._step(driven[step], cont[step].unsqueeze(1), state, weights)
            outputs.append(output)
        self._carried = tuple(each.detach() for each in state)
        return torch.stack(outputs), *(each.unsqueeze(0) for each in self._carried[: self._exposed])

    def _step(self, driven: Tensor, cont: Tensor, state: Tensors, weights: Sequence[Tensor]) -> tuple[Tensor, Tensors]:
        """The output of a step, and the state after it."""
        raise NotImplementedError


@layer_type("RNN")
class RNN(_Recurrent):
    """h = tanh(W_xh x + W_hh cont h + b_h), output tanh(W_ho h + b_o)."""

    def make_weights(self, *bottom: Shape) -> None:
        super().make_weights(*bottom)
        self._add((self.options.num_output, self.options.num_output))
        self._add((self.options.num_output,))

    def _step(self, driven: Tensor, cont: Tensor, state: Tensors, weights: Sequence[Tensor]) -> tuple[Tensor, Tensors]:
        hidden = torch.tanh(driven + functional.linear(cont * state[0], weights[0]))
        return torch.tanh(functional.linear(hidden, weights[1], weights[2])), (hidden,)


@layer_type("LSTM")
class LSTM(_Recurrent):
    """The state is (h, c); the rows of the weights are those of the input, forget, output gate and the candidate."""

    states = 2
    gates = 4

    def _step(self, driven: Tensor, cont: Tensor, state: Tensors, weights: Sequence[Tensor]) -> tuple[Tensor, Tensors]:
        gates = driven + functional.linear(cont * state[0], weights[0])
        cell, hidden = _lstm_unit(state[1], gates, cont)
        return hidden, (hidden, cell)


def _lstm_unit(cells: Tensor, gates: Tensor, cont: Tensor) -> tuple[Tensor, Tensor]:
    opened, candidate = torch.tensor_split(gates, [3 * cells.shape[-1]], -1)
    entry, forget, exit_ = torch.sigmoid(opened).chunk(3, -1)
    cells = cont * forget * cells + entry * torch.tanh(candidate)
    return cells, exit_ * torch.tanh(cells)


# One step: cells (1, streams, n), gates (1, streams, 4 n), cont (1, streams) → cells, hidden.
row(
    "LSTMUnit",
    lambda cells, gates, cont: _lstm_unit(cells, gates, cont.unsqueeze(-1)),
    bottoms=range(3, 4),
    tops=range(2, 3),
)
