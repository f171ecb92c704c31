"""pycaffe's Net: a net to run from Python, all of it or from one layer to another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..layer_types import Array, ArrayBlob, Generators, Layer, MemoryData, PythonLayer
from ..net import Stepwise, graph, read_weights, write_weights
from ..prototxt import NetError, Phase
from . import mode


def _weights(layer: Layer, nth: int) -> Tensor:
    return layer.blobs[nth]


class Net:
    """`Net(file, phase)`, `Net(file, weights, phase)` or `Net(file, phase, weights=…)`.

    `layers` and `layer_dict` hold the very objects of Python layers.
    """

    def __init__(
        self,
        network_file: str | Path,
        weights_or_phase: str | Path | int | None = None,
        phase: int | None = None,
        level: int = 0,
        stages: Iterable[str] = (),
        weights: str | Path | None = None,
    ) -> None:
        if isinstance(weights_or_phase, int):
            phase = weights_or_phase
        elif weights_or_phase is not None:
            weights = weights_or_phase
        if phase is None:
            raise NetError(f"{network_file}: a net needs a phase, caffe.TRAIN or caffe.TEST")
        device = mode.device()
        generators = Generators.seeded(mode.seed(), device)
        net = graph.Net(
            network_file, Phase(phase), device, generators, level=level, stages=stages or (), weights=weights
        )
        for each in net.all_weights():  # else `data.reshape(-1)` of channels-last weights is a copy
            each.data = each.data.contiguous()
        self._wrap(net)

    @classmethod
    def of(cls, net: graph.Net) -> Self:
        """A net that a solver has made."""
        made = cls.__new__(cls)
        made._wrap(net)
        return made

    def _wrap(self, net: graph.Net) -> None:
        self._net = net
        self._sharing = WeakSet([self])
        self.stepwise = Stepwise(net)
        self.name = net.document.message.name
        self.blobs = {name: ArrayBlob(blob) for name, blob in net.blobs.items()}
        self.top_names = {name: list(layer.param.top) for name, layer in net.layers.items()}
        self.bottom_names = {name: list(layer.param.bottom) for name, layer in net.layers.items()}
        self.inputs = [
            top for name, layer in net.layers.items() if layer.param.type == "Input" for top in self.top_names[name]
        ]
        self.outputs = list(net.output_names)
        self._layer_names = list(net.layers)  # pycaffe has no other name for them
        self.blob_loss_weights = net.loss_weights
        layers = net.layers.items()
        self.params = {
            name: [ArrayBlob(partial(_weights, layer, nth)) for nth in range(len(layer.blobs))]
            for name, layer in layers
            if layer.blobs
        }
        self.layer_dict: dict[str, Any] = {
            name: layer.user_layer
            if isinstance(layer, PythonLayer)
            else SimpleNamespace(type=layer.param.type, blobs=self.params.get(name, ()))
            for name, layer in layers
        }

    @property
    def layers(self) -> list[Any]:
        return list(self.layer_dict.values())

    def forward(
        self,
        blobs: Iterable[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **inputs: ArrayLike,
    ) -> dict[str, Array]:
        """Fill the inputs, if any are given, and run the layers from `start` to `end`, or all.

        Returns the data of the net's outputs (with `end`: of that layer's tops), and of `blobs`.
        """
        if inputs:
            self._fill("data", inputs, self.inputs)
        self.upload()
        self.stepwise.forward(self._position(start, 0), self._position(end, len(self._layer_names) - 1))
        names = self.outputs if end is None else self.top_names[end]
        return {name: self.blobs[name].data for name in (*names, *(blobs or ()))}

    def backward(
        self,
        diffs: Iterable[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **tops: ArrayLike,
    ) -> dict[str, Array]:
        """Fill the diffs of the net's outputs, if any are given, and run from layer `start` back to `end`, or all.

        Returns the diffs of the net's inputs (with `end`: of that layer's bottoms), and of `diffs`. An input gets a
        gradient only with `force_backward: true`, or with `propagate_down: true` in a layer that takes it.
        """
        if tops:
            self._fill("diff", tops, self.outputs)
        self.upload()
        self.stepwise.backward(self._position(end, 0), self._position(start, len(self._layer_names) - 1))
        names = self.inputs if end is None else self.bottom_names[end]
        return {name: self.blobs[name].diff for name in (*names, *(diffs or ()))}

    def forward_all(self, blobs: Iterable[str] | None = None, **inputs: ArrayLike) -> dict[str, Array]:
        """Run `forward` over as many rows as are given, batch by batch; returns the outputs for all rows."""
        self._check_names(inputs, self.inputs)
        return self._in_batches(inputs, lambda batch: self.forward(blobs, **batch))[0]

    def forward_backward_all(
        self, blobs: Iterable[str] | None = None, diffs: Iterable[str] | None = None, **arrays: ArrayLike
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """`forward_all`, with `backward` after each batch; an array for an output is its diff.

        Returns what `forward` and what `backward` give, for all rows.
        """
        self._check_names(
            arrays, [*self.inputs, *(self.outputs if self.inputs and set(arrays) - set(self.inputs) else ())]
        )
        outputs, gradients = self._in_batches(
            arrays,
            lambda batch: self.forward(blobs, **{name: batch[name] for name in self.inputs}),
            lambda batch: self.backward(diffs, **{name: batch[name] for name in self.outputs if name in batch}),
        )
        return outputs, gradients

    def _in_batches(
        self, given: dict[str, ArrayLike], *runs: Callable[[dict[str, Any]], dict[str, Array]]
    ) -> list[dict[str, Array]]:
        """Return the results of each of `runs` for batches of the arrays, put together."""
        arrays = {name: np.asarray(array, np.float32) for name, array in given.items()}
        counts = {len(array) for array in arrays.values()}
        if len(counts) != 1:
            raise NetError(f"the inputs must have the same number of rows, got {sorted(counts)}")
        (rows,), size = counts, self.blobs[self.inputs[0]].shape[0]
        found: list[dict[str, list[Array]]] = [{} for _ in runs]
        for first in range(0, rows, size):
            batch: dict[str, Any] = {name: array[first : first + size] for name, array in arrays.items()}
            missing = size - min(size, rows - first)  # the last batch is filled up with zeros
            batch = {name: np.pad(part, [(0, missing), *[(0, 0)] * (part.ndim - 1)]) for name, part in batch.items()}
            for run, parts in zip(runs, found, strict=True):
                for name, array in run(batch).items():
                    parts.setdefault(name, []).append(np.atleast_1d(array).copy())
        return [{name: np.concatenate(each)[:rows] for name, each in parts.items()} for parts in found]

    def set_input_arrays(self, data: Array, labels: Array) -> None:
        """Let the first layer, a MemoryData, begin with `data` (samples, channels, height, width) and `labels`."""
        layer = next(iter(self._net.layers.values()))
        if not isinstance(layer, MemoryData):
            raise NetError(f"{layer.context.where}: set_input_arrays needs a first layer of type MemoryData")
        layer.reset(*(torch.from_numpy(np.asarray(each, np.float32)) for each in (data, labels)))

    def copy_from(self, path: str | Path) -> None:
        """Take the weights in a file, for the layers whose names it has."""
        self.upload()
        self._net.load_weights(read_weights(Path(path)), str(path), some=True)

    def save(self, path: str | Path) -> None:
        """Write a .caffemodel; if the name ends in .h5, its HDF5 form; in .pt, a state_dict for torch."""
        self.upload()
        write_weights(Path(path), self._net.weights(), self._net.layers, self.name)

    def save_hdf5(self, path: str | Path) -> None:
        """Write the HDF5 form of a .caffemodel, whatever the name ends in."""
        self.upload()
        write_weights(Path(path), self._net.weights(), hdf5=True)

    load_hdf5 = copy_from

    def share_with(self, other: Net) -> None:
        """Use the weights of `other` in the layers that have the same names."""
        self.upload()
        other.upload()
        self._net.share_weights(other._net)
        self._sharing |= other._sharing
        for net in self._sharing:
            net._sharing = self._sharing

    def clear_param_diffs(self) -> None:
        for blob in self._weights():
            blob.diff.fill(0)

    @torch.no_grad()
    def reshape(self) -> None:
        """Give all blobs the shapes that follow from those of the inputs, without computing them."""
        self.upload()
        for step in self._net.steps:
            step.shapes = None  # the layer is now set up for other shapes than those of its last forward
            if isinstance(step.layer, PythonLayer):
                step.layer.call_reshape()
                continue
            shapes = step.layer.top_shapes(*(self._net.blobs[name].shape for name in step.bottoms))
            for (_, blob, _), shape in zip(step.tops, shapes, strict=True):
                if blob.shape != tuple(shape):
                    blob.reshape(*shape)

    def close(self) -> None:
        """Close the Python layers, and the processes of those that have some."""
        self._net.close()

    def upload(self) -> None:
        """Bring to the device what was written to blobs and weights, also by way of nets that share the weights."""
        for net in self._sharing:
            for blob in (*net.blobs.values(), *net._weights()):
                blob.upload()

    def _weights(self) -> Iterable[ArrayBlob]:
        return (blob for blobs in self.params.values() for blob in blobs)

    def _position(self, name: str | None, default: int) -> int:
        if name is None:
            return default
        if name not in self._layer_names:
            raise NetError(f"the net has no layer {name!r}; its layers are {', '.join(self._layer_names)}")
        return self._layer_names.index(name)

    def _fill(self, which: str, arrays: dict[str, ArrayLike], names: Sequence[str]) -> None:
        self._check_names(arrays, names)
        for name, array in arrays.items():
            target, given = getattr(self.blobs[name], which), np.asarray(array)
            if given.shape[:1] != target.shape[:1]:
                raise NetError(
                    f"blob {name!r} has the shape {target.shape}, and the array for it {given.shape}: reshape the blob "
                    "first, or use forward_all"
                )
            target[...] = given

    def _check_names(self, arrays: dict[str, Any], names: Sequence[str]) -> None:
        if not names:
            raise NetError(
                f"the net has no blobs that take an array here, its data come from layers; got {list(arrays)}"
            )
        if set(arrays) != set(names):
            raise NetError(f"expected an array for each of {', '.join(names)}; got {', '.join(arrays)}")
