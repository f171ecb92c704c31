"""The base of the layer types: made from a LayerParameter, with weights, and a forward over torch tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...layers.multi_process_input_layer import MultiProcessInputLayer
from ...layers.torch_blob import Blob
from ...readers.opening import locate
from ...workers.base import ParameterError
from ..prototxt import (
    Document,
    FillerParameter,
    Message,
    NetError,
    NetParameter,
    Phase,
    PrototxtError,
    message_class,
    message_classes,
    not_supported,
    own_fields,
)
from .blobs import ArrayBlob, Shape
from .fillers import FILLERS
from .refusals import REFUSALS

ANY = range(1, 1_000_000)
"""The count of bottoms or tops of types that take any number of them, at least one."""

Tensors = tuple[Tensor, ...]

DataParameters = Callable[[str], Mapping[str, object]]
"""Takes the name of a layer that is fed by loaders, and returns parameters in place of those in its param_str."""


def no_data_parameters(_name: str) -> Mapping[str, object]:
    return {}


@dataclass
class Generators:
    """The sources of a net's random numbers."""

    fillers: torch.Generator
    """Draws the numbers of fillers, on the CPU: the first weights, and DummyData's tops at each forward."""
    dropout: torch.Generator
    """Draws during forward, on the device."""
    data_seed: int
    """The seed of the order of samples, of crops and of mirroring, in Caffe's own data layers."""

    @property
    def device(self) -> torch.device:
        """The net's device."""
        return self.dropout.device

    def move(self, device: torch.device) -> None:
        """Draw on `device` from now on, as a net that was made there."""
        self.dropout = torch.Generator(device).manual_seed(self.dropout.initial_seed())

    @classmethod
    def seeded(cls, seed: int, device: torch.device, data_seed: int | None = None) -> Generators:
        fillers, dropout = torch.Generator().manual_seed(seed), torch.Generator(device).manual_seed(seed + 1)
        return cls(fillers, dropout, seed if data_seed is None else data_seed)


@dataclass(frozen=True)
class LayerContext:
    """The things that a layer is made from: its position in a prototxt, its phase, and its net's random generators."""

    net: Document[NetParameter]
    position: int
    phase: Phase
    generators: Generators
    data_parameters: DataParameters = no_data_parameters

    @property
    def device(self) -> torch.device:
        return self.generators.device

    @property
    def param(self) -> Any:
        return self.net.message.layer[self.position]

    @property
    def where(self) -> str:
        """For messages: file:line:column, layer 'name'."""
        return f"{self.net.where('layer', self.position)}: layer {self.param.name!r}"

    @property
    def folder(self) -> Path:
        return self.net.path.parent

    def prototxt_error(self, text: str, *field: str | int) -> PrototxtError:
        """An error about what the prototxt says, at the line of `field` of this layer."""
        return self.net.error(f"layer {self.param.name!r}: {text}", "layer", self.position, *field)

    def misfit(self, text: str) -> NetError:
        """An error about data that does not fit the layer."""
        return NetError(f"{self.where} ({self.param.type}): {text}")


class Layer(nn.Module):
    """Base of the layer types: `forward` takes the bottoms' tensors and returns those of the tops, in a tuple.

    Weights are parameters called "0", "1", …, in the order of the layer's `param { ... }`; those that no solver
    updates by a gradient, as BatchNorm's sums, are buffers.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    """The `..._param` fields of LayerParameter that this type reads; any other is refused. `layer_type` adds the one
    that is named after the type, in front."""
    bottoms: ClassVar[range] = range(1, 2)
    tops: ClassVar[range] = range(1, 2)
    in_place: ClassVar[bool] = False
    """True if the top may have the name of the bottom."""
    is_loss: ClassVar[bool] = False
    """True if the first top has weight 1 in the objective without a loss_weight."""
    has_views: ClassVar[bool] = False
    """True if tops may be views of the bottom where Caffe copies."""
    is_on_host = staticmethod(ArrayBlob.is_on_host)

    def __init__(self, context: LayerContext) -> None:
        super().__init__()
        self.training = context.phase == Phase.TRAIN
        self.context = context
        self.param = context.param
        self.options: Any = getattr(self.param, self.fields[0]) if self.fields else None
        """The first of `fields`."""
        self.arguments: dict[str, Any] = {}
        """The options that a row's function takes."""
        self.top_count = len(self.param.top)
        self.has_warned = False
        """A warning about this layer's data has been logged; it is not repeated for each batch."""
        self.views: dict[str, tuple[Layer, int, Shape]] = {}
        """Weights of another layer that this one shows in another shape: that layer, their number there, the shape."""
        self.feeders: Mapping[str, MultiProcessInputLayer] = {}
        """By the name of a blob: the layer whose loaders fill it."""
        self._first_wrong = torch.empty(0)
        """Shape (3, 1): 1 if `refuse` has found a wrong number, the first one, and its position in the bottom."""
        self._wrong_in: Callable[[int], str] = str
        """Says of a position in the bottom where its number comes from."""
        self._why = ""
        """The message about it; empty if there is nothing to check."""
        self._check_options()
        self.read_options()

    def _check_options(self) -> None:
        """Raises PrototxtError for what REFUSALS say of this type."""
        for field, is_wrong, text in REFUSALS.get(self.param.type, ()):
            of_layer = field.startswith(".")
            value = self.param if of_layer else self.options
            if not is_wrong(value):
                continue
            name = field.removeprefix(".")
            steps = [name] if of_layer else [*self.fields[:1], name]
            raise self.context.prototxt_error(text.format(getattr(value, name)), *steps)

    def read_options(self) -> None:
        """Read and check what is used often; most layers need none."""

    @property
    def blobs(self) -> list[Tensor]:
        """The weights, in the order of the layer's `param { ... }`."""
        own: dict[str, Any] = self._parameters
        if not self._buffers and not self.views:
            return list(own.values())
        views = {name: owner.blobs[nth].reshape(shape) for name, (owner, nth, shape) in self.views.items()}
        return [tensor for _, tensor in sorted({**own, **self._buffers, **views}.items())]

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Make the weights and give the tops their first shapes."""
        shapes = [blob.shape for blob in bottom]
        self.make_weights(*shapes)
        made = self.top_shapes(*shapes)
        if len(made) != len(top):
            raise self.context.misfit(f"makes {len(made)} tops, and the net names {len(top)}")
        for blob, shape in zip(top, made, strict=True):
            blob.reshape(*shape)

    def make_weights(self, *bottom: Shape) -> None:
        """Call `add_weights` for each of the layer's weights; most layers have none."""

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        """The tops' shapes; raises if the bottoms do not fit.

        By default a forward on torch's meta device tells, which a layer with weights cannot run.
        """
        try:
            tops = self.forward(*(torch.empty(shape, device="meta") for shape in bottom))
        except (RuntimeError, IndexError, ValueError) as error:
            reason, _, _ = str(error).partition("\n")
            raise self.context.misfit(f"bottoms of shapes {', '.join(map(str, bottom))}: {reason}") from error
        return [tuple(top.shape) for top in tops]

    def add_weights(self, shape: Shape, name: str = "", value: float = 0.0) -> None:
        """Append weights of `shape`, filled as the option `name` says, or with `value` if it is not given."""
        given = bool(name) and self.options.HasField(name)
        filler = getattr(self.options, name) if given else message_class(FillerParameter)(value=value)
        self.check_filler(filler, name)
        weights = self.filled(shape, filler, *([name] if name else []))
        self.add_parameter(weights)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *how: Any) -> None:
        """Load as torch does, and take weights with other leading ones: files of before 2015 have four axes for all."""
        for nth, own in enumerate(self.blobs):
            given = state_dict.get(f"{prefix}{nth}")
            if given is not None and significant(tuple(given.shape)) == significant(tuple(own.shape)):
                state_dict[f"{prefix}{nth}"] = given.reshape(own.shape)
            if str(nth) in self.views:
                state_dict.pop(f"{prefix}{nth}", None)
        super()._load_from_state_dict(state_dict, prefix, *how)

    def add_parameter(self, weights: Tensor) -> None:
        """Append `weights` themselves. As in Caffe, those that the solver does not update get no gradient."""
        nth = len(self._parameters) + len(self._buffers)
        self.register_parameter(str(nth), nn.Parameter(weights, self.spec(nth).lr_mult != 0))

    def check_filler(self, filler: FillerParameter, *field: str | int) -> None:
        """Raises PrototxtError, at the line of the option `field`, if there is no filler of this type."""
        if filler.type not in FILLERS:
            raise self.wrong(not_supported("filler type", filler.type, FILLERS), *field, "type")

    def filled(self, shape: Shape, filler: FillerParameter, *field: str | int) -> Tensor:
        """Numbers on the device; raises PrototxtError, at the line of the option `field`, if `filler` cannot make them.

        torch says what it cannot make: of too many numbers, of a negative deviation and the like.
        """
        try:
            # Made on the CPU, so that a seed gives the same net on every device.
            weights = torch.empty(shape, device="cpu")
            FILLERS[filler.type](filler, weights, self.context.generators.fillers)
            return weights.to(self.context.device)
        except (RuntimeError, ValueError, ZeroDivisionError) as error:
            reason, _, _ = str(error).partition("\n")
            raise self.wrong(f"a filler of type {filler.type!r} cannot fill shape {shape}: {reason}", *field) from error

    def add_weights_and_bias(self, shape: Shape) -> None:
        """Add the weights of a sum of products, of `shape`, and a number for each output if the options want one."""
        self.add_weights(shape, "weight_filler")
        if self.options.bias_term:
            self.add_weights((self.options.num_output,), "bias_filler")

    def indices(self, numbers: Tensor, count: int, why: str, bottom: int = 0) -> Tensor:
        """Return `numbers`, a bottom, as integers from 0 to `count` - 1; `refuse` takes the others, and 0 is there."""
        whole = numbers.long()
        wrong = (whole < 0) | (whole >= count) | numbers.isnan()
        self.refuse(numbers, wrong, f"{why}: 0 to {count - 1}", bottom)
        return whole.masked_fill(wrong, 0)

    def refuse(self, numbers: Tensor, wrong: Tensor, why: str, bottom: int) -> None:
        """Raises NetError if any of `numbers`, those of a bottom, is `wrong`; "{}" in `why` stands for the first one.

        On CUDA only `check` raises it, and the device keeps the first one: the host does not wait for it.
        """
        if numbers.numel():
            place = wrong.reshape(-1).to(torch.uint8).argmax().reshape(1)
            first = torch.stack(
                [*(each.reshape(-1).gather(0, place).double() for each in (wrong, numbers.detach())), place.double()]
            )
            self._first_wrong = torch.where(self._first_wrong[0] > 0, self._first_wrong, first) if self._why else first
            self._why = why
            name, rows = self.param.bottom[bottom], numbers.shape[0] if numbers.dim() else 1
            # The host is batches ahead of a device, so the feeder's last batch is not the one.
            feeder = self.feeders.get(name) if self.is_on_host(numbers) else None
            self._wrong_in = partial(_row, name, feeder, rows, numbers.numel() // rows)
        if self.is_on_host(numbers):
            self.check()

    def check(self) -> None:
        """Raise what `refuse` has found since the last check; waits for the device."""
        if why := self._why:
            self._why = ""
            (is_wrong,), (number,), (place,) = self._first_wrong.tolist()
            if is_wrong:
                raise self.context.misfit(f"{why.format(f'{number:.15g}')}; it is in {self._wrong_in(int(place))}")

    def wrong(self, text: str, *field: str | int) -> PrototxtError:
        """An error about the options, at the line of `field` in them."""
        return self.context.prototxt_error(text, *self.fields[:1], *field)

    def spec(self, index: int) -> Message:
        """The name and the multipliers of weights `index`, or the defaults of these."""
        given: Sequence[Message] = self.param.param
        return given[index] if index < len(given) else message_classes()["ParamSpec"]()

    def axis(self, shape: Shape) -> int:
        """The option `axis`, counted from the front; raises if `shape` has no such axis."""
        axis = self.options.axis
        if not -len(shape) <= axis < len(shape):
            raise self.wrong(f"a bottom of shape {shape} has no axis {axis}", "axis")
        return int(axis % len(shape))

    def need_equal_rows(self, bottom: Sequence[Shape]) -> None:
        if len({shape[:1] for shape in bottom}) > 1:
            raise self.context.misfit(f"needs bottoms with the same number of rows, got {', '.join(map(str, bottom))}")

    def need_axes(self, count: int, shape: Shape) -> None:
        if len(shape) != count:
            raise self.context.misfit(f"needs a bottom of {count} axes, got shape {shape}")


def _row(name: str, feeder: MultiProcessInputLayer | None, rows: int, each: int, place: int) -> str:
    """Say which row of bottom `name` has the number at `place`, and which sample that is.

    `feeder`: the layer that has just filled the bottom. `rows`, `each`: of the bottom, and the numbers of a row.
    """
    row = place // each
    if feeder is None:
        return f"row {row} of {name!r}"
    batch = int(feeder.state_dict()["batches"]) - 1
    with contextlib.suppress(ParameterError):  # samples of a stream have no places
        if len(places := locate([feeder.plan], [batch])[batch]) == rows:  # else they are put end to end
            return places[row].line(batch, row)
    return f"batch {batch} row {row} of {name!r}"


def significant(shape: Shape) -> Shape:
    """`shape` without leading ones."""
    first = next((nth for nth, extent in enumerate(shape) if extent != 1), len(shape))
    return shape[first:]


class Elementwise(Layer):
    """Base: the top has the shape of the bottom and may be in place."""

    in_place = True

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        return [bottom[0]]


LAYER_TYPES: dict[str, type[Layer]] = {}
"""By the name in `type:`; filled by importing `trainer.layer_types`."""


def layer_type(name: str) -> Callable[[type[Layer]], type[Layer]]:
    """Class decorator: this is the layer type `name`. Raises ValueError if there is one of that name."""

    def register(layer_class: type[Layer]) -> type[Layer]:
        if name in LAYER_TYPES:
            first, second = (f"{each.__module__}.{each.__name__}" for each in (LAYER_TYPES[name], layer_class))
            raise ValueError(f"layer type {name!r} is {first} already: give {second} another name")
        LAYER_TYPES[name] = layer_class
        if (own := own_fields().get(name)) and own not in layer_class.fields:
            layer_class.fields = (own, *layer_class.fields)
        return layer_class

    return register
