"""Layers written in Python: made and called as Caffe does it, with the gradient in `diff`."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from ...layers.caffe_base import new_layer
from ...layers.multi_process_input_layer import MultiProcessInputLayer
from ...layers.torch_blob import Blob
from .blobs import ArrayBlob, Shape
from .layer import ANY, Layer, LayerContext, Tensors, layer_type


class WeightBlobs(list[Blob | ArrayBlob]):
    """`self.blobs` of a user's layer: its setup may add learnt blobs and fill them; they begin as zeros.

    `made` are the blobs, and the items what `show` makes of them: NumPy arrays if `as_arrays`.
    """

    as_arrays = False

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.made: list[Blob] = []
        self._device = device

    def add_blob(self, *shape: int) -> Blob | ArrayBlob:
        blob = Blob(self._device)
        blob.reshape(*shape)
        self.made.append(blob)
        self.append(self.show(blob))
        return self[-1]

    def show(self, blob: Blob) -> Blob | ArrayBlob:
        return ArrayBlob(blob) if self.as_arrays else blob


class _Bottom(Blob):
    """The data of `source`, with a `diff` of its own, as behind Caffe's Split.

    A layer may leave a `diff` as it is; what another layer has written there, or the layer itself for the same blob as
    another bottom, would count as its gradient.
    """

    def __init__(self, source: Blob, device: torch.device) -> None:
        super().__init__(device)
        self._source = source

    @property
    def shape(self) -> Shape:
        return self._source.shape

    @property
    def tensor(self) -> Tensor:
        return self._source.tensor

    def reshape(self, *shape: int) -> None:
        self._source.reshape(*shape)


@layer_type("Python")
class PythonLayer(Layer):
    """Calls the hooks of `user_layer`, an instance of the class that `module` and `layer` name.

    It may have `statistics()`, whose stall_s are the seconds that training has waited for data; `state_dict()` and
    `load_state_dict(state)`, a mapping of plain values that snapshots keep; and `close()`.
    """

    fields: ClassVar[tuple[str, ...]] = ("python_param",)
    bottoms = range(ANY.stop)
    tops = range(ANY.stop)
    in_place = True

    def __init__(self, context: LayerContext) -> None:
        super().__init__(context)
        self._bottom: Sequence[Blob] = ()
        self._top: Sequence[Blob] = ()
        self._shown_bottom: Sequence[Any] = ()
        self._shown_top: Sequence[Any] = ()
        """The same blobs as the hooks get them."""
        self._weights = WeightBlobs(context.device)  # knows nothing of this layer: a cycle would keep loaders running
        self.user_layer = self._make()

    def _make(self) -> Any:
        user_class = self._find_class()
        with self._noting("__init__"):
            user_layer = new_layer(user_class, self.param)
        self._weights.as_arrays = getattr(user_layer, "takes_arrays", False)  # it was written for Caffe
        user_layer.param_str = self._param_str()
        user_layer.phase = int(self.context.phase)
        # base_dir and device are not in Caffe's contract. A layer with __slots__ may refuse what it does not use.
        beyond = {"base_dir": self.context.folder, "device": str(self.context.device)}
        if isinstance(user_layer, MultiProcessInputLayer):
            user_layer.trainer_parameters = self.context.data_parameters(self.param.name)
        for name, value in {"blobs": self._weights, **beyond}.items():
            with contextlib.suppress(AttributeError):
                setattr(user_layer, name, value)
        return user_layer

    def _param_str(self) -> str | Mapping[str, object]:
        return str(self.options.param_str)

    def _find_class(self) -> Any:
        options = self.options
        _make_importable(self.context.folder)
        try:
            with self._noting(f"the import of {options.module!r}"):
                module = importlib.import_module(options.module)
        except ImportError as error:
            where = "; it is looked for beside the prototxt, in the working directory and on PYTHONPATH"
            itself = error.name == options.module.partition(".")[0]
            raise self.wrong(
                f"cannot import module {options.module!r}: {error}{where if itself else ''}", "module"
            ) from error
        if not callable(found := getattr(module, options.layer, None)):
            raise self.wrong(
                f"module {options.module!r} ({getattr(module, '__file__', 'built in')}) has no class {options.layer!r}",
                "layer",
            )
        return found

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self._bottom = tuple(blob if blob in top else _Bottom(blob, self.context.device) for blob in bottom)
        self._top = tuple(top)
        shown = {blob: self._weights.show(blob) for blob in (*self._bottom, *top)}
        self._shown_bottom, self._shown_top = (
            tuple(shown[blob] for blob in blobs) for blobs in (self._bottom, self._top)
        )
        with self._noting("setup"):
            self.user_layer.setup(self._shown_bottom, self._shown_top)
        for blob in self._weights.made:
            self.add_parameter(blob.tensor.detach())
        self.call_reshape()

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        return [blob.shape for blob in self._top]

    def forward(self, *bottom: Tensor) -> Tensors:
        for blob in self._top:
            blob.own()
        for blob, tensor in zip(self._bottom, bottom, strict=True):
            if blob in self._top:  # in place: not in the bottom's memory, which the backward of others may need
                blob.renew(tensor)
        for blob, tensor in zip(self._weights.made, self.blobs, strict=True):
            blob.adopt(tensor)  # a test net uses those of the train net
        self.call_reshape()
        if any(tensor.requires_grad for tensor in (*bottom, *self.blobs)):
            return cast(Tensors, _UserFunction.apply(self, *bottom, *self.blobs))  # type: ignore[no-untyped-call]
        return self.call_forward()

    def call_reshape(self) -> None:
        with self._noting("reshape"):
            self.user_layer.reshape(self._shown_bottom, self._shown_top)

    def call_forward(self) -> Tensors:
        with self._noting("forward"):
            self.user_layer.forward(self._shown_bottom, self._shown_top)
        return tuple(blob.tensor for blob in self._top)

    def call_backward(self, top_diffs: Sequence[Tensor], wanted: Sequence[bool]) -> list[Tensor | None]:
        """The gradients of the bottoms and of the weights, each if `wanted`."""
        for blob, diff in zip(self._top, top_diffs, strict=True):
            blob.diff.copy_(diff)
        for blob in self._weights.made:
            blob.diff.zero_()  # Caffe's layers add to these
        with self._noting("backward"):
            self.user_layer.backward(self._shown_top, list(wanted[: len(self._bottom)]), self._shown_bottom)
        # Copies: the next backward writes into the same diffs.
        blobs = zip((*self._bottom, *self._weights.made), wanted, strict=True)
        return [blob.diff.clone() if wants else None for blob, wants in blobs]

    @contextlib.contextmanager
    def _noting(self, hook: str) -> Iterator[None]:
        """Adds a note to an exception of the author's code: which hook of which layer raised it.

        After the hook, arrays that the author's code has written to go to the device.
        """
        try:
            yield
            for blob in (*self._shown_bottom, *self._shown_top, *self._weights):
                if isinstance(blob, ArrayBlob):
                    blob.upload()
        except Exception as error:
            error.add_note(f"in {hook}, {self.context.where}")
            raise


def _make_importable(folder: Path) -> None:
    """Let Python find modules beside the prototxt and in the working directory.

    `sys.path` keeps the entries: a layer may import more when it runs, and its loaders look for its module there too.
    """
    for entry in (str(Path.cwd()), str(folder.resolve())):
        if entry not in sys.path:
            sys.path.insert(0, entry)


class _UserFunction(torch.autograd.Function):
    """Puts a layer's own backward into torch's graph."""

    @staticmethod
    def forward(ctx: FunctionCtx, layer: PythonLayer, *inputs: Tensor) -> Tensors:
        ctx.layer = layer  # type: ignore[attr-defined]
        return layer.call_forward()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *top_diffs: Tensor) -> tuple[Tensor | None, ...]:
        layer: PythonLayer = ctx.layer
        return (None, *layer.call_backward(top_diffs, ctx.needs_input_grad[1:]))
