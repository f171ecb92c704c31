"""The input layer: Caffe's four hooks over a pipeline of loader processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from ..readers.delivery.delivery import Blob, Delivery
from ..readers.delivery.host_delivery import make_delivery
from ..readers.delivery.tops import Shape, Top, describes_another, make_tops
from ..readers.sharding import with_shard
from ..workers.base.errors import ParameterError, PipelineClosed
from ..workers.base.hooks import HookBatch, Sample
from ..workers.base.parameters import Parameters
from ..workers.base.specs import AnyArray
from ..workers.base.statistics import Statistics
from ..workers.pipeline.pipeline import Pipeline
from ..workers.plan.plan import Plan, State
from .caffe_base import CaffeLayer
from .detached import hooks_of
from .last_words import says_its_errors
from .options import InnerSource, read_param_str

_TRAIN = 0
_HOOKS = ("setup", "reshape", "forward", "backward")


class TopBlob(Blob, Protocol):
    def reshape(self, *shape: int) -> None: ...


class Blobs(Protocol):
    """`bottom` and `top` as Caffe gives them: not a list."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class MultiProcessInputLayer(CaffeLayer):
    """A `type: "Python"` layer without bottoms, whose tops are filled from batches that other processes have made.

        layer {
          name: "input" type: "Python" top: "data" top: "label"
          python_param {
            module: "blobfeed.layers" layer: "MultiProcessInputLayer"
            param_str: "{source: {hdf5: {path: train.h5}}, batch_size: 64, shuffle: true}"
          }
        }

    A subclass may override `decode(sample, rng)` and `postprocess(batch)`, which run in the loaders, and declare
    parameters of its own in `extra_parameters`. No process is started before the first batch is needed.

    Every error that blobfeed raises can come out of `setup` (what is wrong with the parameters, the source, the decode
    hook) or out of `reshape` and `forward` (what went wrong since); see workers/errors.py.
    """

    extra_parameters: ClassVar[Mapping[str, object]] = {}
    """The subclass's own keys in param_str and their defaults; the default's type is the type that is expected.
    Declared anew in a further subclass, they add to those of its base."""

    base_dir: Path | str | None = None
    """What relative paths are taken from; None: the working directory. A trainer may set it before `setup`."""

    extra: Mapping[str, Any] = {}
    """The values of `extra_parameters`, from `setup` on, and in the loaders."""

    _input: _Input | None = None

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        for name in _HOOKS:
            if name in vars(cls):
                setattr(cls, name, says_its_errors(vars(cls)[name]))

    # ---- the hooks that Caffe calls

    @says_its_errors
    def setup(self, bottom: Blobs, top: Blobs) -> None:
        """Check everything, decode one sample, give the tops their first shapes; starts no process."""
        self.close()
        what = f"layer {type(self).__name__}"
        if len(bottom):
            raise ParameterError(f"{what}: an input layer has no bottoms, the net definition gives it {len(bottom)}")
        options = read_param_str(self.param_str, _extra_parameters(type(self)), self._inner_source(), what)
        self.extra = options.extra
        train = int(self.phase) == _TRAIN
        # The solvers of several devices share the training data between them; each test is over the whole test data.
        parameters = with_shard(options.parameters) if train else options.parameters
        base_dir = Path.cwd() if self.base_dir is None else Path(self.base_dir)
        pipeline = Pipeline(parameters, hooks_of(self, MultiProcessInputLayer), base_dir=base_dir, train=train)
        self._input = _Input(pipeline, parameters, base_dir, len(top), what)
        self._input.reshape_first(top)
        if parameters.delivery == "view":
            self._input.delivery_to(top)  # not every blob can be shown other memory: say so now

    @says_its_errors
    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        """Give the tops the shape of the next batch, which is waited for; right after setup, that of the declaration.

        Caffe calls it once when the net is made, and a net may never run: so the first call needs no batch.
        """
        feed = self._opened()
        if feed.is_fresh:
            feed.is_fresh = False
            feed.reshape_first(top)
        else:
            feed.reshape(top)

    @says_its_errors
    def forward(self, bottom: Blobs, top: Blobs) -> None:
        """Put the next batch into the tops: one copy."""
        delivery = self._opened().delivery_to(top)
        delivery.fill([top[i] for i in range(len(top))])
        delivery.filled = None

    @says_its_errors
    def backward(self, top: Blobs, propagate_down: Sequence[bool], bottom: Blobs) -> None:
        """Nothing: data has no gradient to pass on. (Caffe does not call it for a layer without bottoms.)"""

    # ---- hooks for subclasses, run in the loaders

    def decode(self, sample: Sample, rng: np.random.Generator) -> object:
        """Turn one raw sample into what its row of each top shall hold; runs in a loader.

        `sample`: the raw arrays by name, `index` and `epoch`. `rng`: this sample's own generator, the same however many
        loaders there are. Returns a mapping of top names to arrays, a tuple in the tops' order, or one array where
        there is one top; the same shapes and types for every sample. Without an override: the raw arrays.

        `self` is a copy of the layer as it was when `setup` of this class ran: `self.extra`, `self.phase`, and
        attributes that a subclass set before it called `super().setup(bottom, top)`.
        """
        return dict(sample)

    def postprocess(self, batch: HookBatch) -> Mapping[str, AnyArray] | None:
        """Change a whole batch, arrays of shape (rows, …) by name, in place, or return what replaces or joins them.

        Runs in a loader, on the same copy of the layer as `decode`. It may take the batch's own random generator too:
        `postprocess(self, batch, rng)`. `batch.indices` and `batch.epoch` say which samples it has. What it makes may
        have other types, shapes and names; they are learnt from a small batch in setup. A value that its top cannot
        hold is a SampleError.
        """
        return None

    # ---- for whoever holds the layer object: `net.layers[i]`, `net.layer_dict[name]` in pycaffe

    def statistics(self) -> Statistics:
        """Counts since setup: batches, stalls, loaders and what became of them."""
        return self._opened().pipeline.statistics()

    @property
    def plan(self) -> Plan:
        """What `setup` has found out and laid down: source, order, shapes and types."""
        return self._opened().pipeline.plan

    def state_dict(self) -> State:
        """Where the next batch stands: a few plain values to keep beside a snapshot."""
        return self._opened().state_dict()

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Go on where `state` was saved; after setup and before the first forward. Raises ParameterError."""
        self._opened().pipeline.load_state_dict(state)

    def close(self) -> None:
        """End the loaders and give everything back. It may be left out: they end with the trainer's process."""
        feed, self._input = self._input, None
        if feed is not None:
            feed.close()

    def _inner_source(self) -> InnerSource | None:
        """The source whose options a ready-made layer takes at the top level of param_str."""
        return None

    def _opened(self) -> _Input:
        if self._input is None:
            raise PipelineClosed(f"layer {type(self).__name__} was closed, or its setup has not run: call setup first")
        return self._input


class _Input:
    """What a layer holds from setup to close."""

    def __init__(self, pipeline: Pipeline, parameters: Parameters, base_dir: Path, top_count: int, what: str) -> None:
        self.pipeline = pipeline
        self.is_fresh = True
        """No reshape has been called since setup."""
        self._tops = _tops_for(make_tops(pipeline.specs, parameters, base_dir), top_count, what)
        self._delivery: Delivery | None = None

    def reshape_first(self, top: Blobs) -> None:
        rows = self.pipeline.parameters.batch_size
        self._reshape(top, [made.largest_shape(rows) for made in self._tops])

    def reshape(self, top: Blobs) -> None:
        self._reshape(top, self.delivery_to(top).next_shapes())

    def state_dict(self) -> State:
        return self.pipeline.state_dict() if self._delivery is None else self._delivery.state_dict()

    def close(self) -> None:
        try:
            if self._delivery is not None:
                self._delivery.close()
        finally:
            self.pipeline.close()

    def delivery_to(self, top: Blobs) -> Delivery:
        if self._delivery is None:
            self._delivery = make_delivery(self.pipeline, self._tops, [top[i] for i in range(len(top))])
        return self._delivery

    def _reshape(self, top: Blobs, shapes: Sequence[Shape]) -> None:
        for i, shape in enumerate(shapes):
            # Caffe takes no tuple, and of integers only Python's own.
            top[i].reshape(*map(int, shape))


def _tops_for(tops: list[Top], count: int, what: str) -> list[Top]:
    """The tops that a net with `count` of them gets: all, or all but those that describe others; raises
    ParameterError."""
    for choice in (tops, [top for top in tops if not describes_another(top)]):
        if len(choice) == count:
            return choice
    names = ", ".join(top.name for top in tops)
    raise ParameterError(
        f"{what} gives {len(tops)} tops ({names}), the net definition has {count}: declare as many, or choose among "
        "them with the parameter 'tops'"
    )


def _extra_parameters(layer_class: type[MultiProcessInputLayer]) -> dict[str, object]:
    extra: dict[str, object] = {}
    for base in reversed(layer_class.__mro__):
        extra.update(vars(base).get("extra_parameters", {}))
    return extra
