"""The input layer: Caffe's four hooks over a pipeline of loader processes."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from ..readers.delivery import Delivery, Shape, Top, describes_another, make_delivery, make_tops
from ..readers.opening import open_pipeline
from ..readers.sharding import with_shard
from ..workers.api import AnyArray, HookBatch, Parameters, Sample, Statistics
from ..workers.base import (
    ParameterError,
    PipelineClosed,
    RingAllocationError,
    absolute,
    close_all,
    shorten,
    shortens_tracebacks,
)
from ..workers.pipeline import Pipeline
from ..workers.plan import Plan, Position, State
from ..workers.transport import available_memory
from .caffe_base import CaffeLayer
from .detached import hooks_of
from .last_words import says_its_errors
from .options import read_param_str
from .snapshots import iteration_of, iteration_of_command

_TRAIN = 0
_LARGEST_BLOB = 2**31 - 1
_HOOKS = ("setup", "reshape", "forward", "backward")
_MANY = 3
"""The number of earlier nets' layers with processes at which a warning says how to close them."""


class Blobs(Protocol):
    """The type of `bottom` and `top` in Caffe, which is no list."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class MultiProcessInputLayer(CaffeLayer):
    """A `type: "Python"` layer without bottoms that fills its tops from batches made by other processes.

        layer {
          name: "input" type: "Python" top: "data" top: "label"
          python_param {
            module: "blobfeed.layers" layer: "MultiProcessInputLayer"
            param_str: "{source: {hdf5: {path: train.h5}}, batch_size: 64, shuffle: true}"
          }
        }

    A subclass may override `decode(sample, rng)` and `postprocess(batch)`, which run in the loaders, and `sampler` or
    `batch_sampler`, which choose the samples of an epoch. It may declare its own parameters in `extra_parameters`. No
    process is started before the first batch is needed, or `start` is called.

    `setup` raises errors in the parameters, the source and the decode hook; `reshape` and `forward` raise errors during
    the run. See workers/base/errors.py.
    """

    extra_parameters: ClassVar[Mapping[str, object]] = {}
    """The subclass's own keys in param_str and their defaults; a value must have the type of its default.
    A further subclass's declaration adds to those of its base."""

    param_str: Any
    """Caffe's text. The `setup` of a subclass may replace it by a mapping, with a source that it has made."""

    base_dir: Path | str | None = None
    """The folder of relative paths; None: the working directory. A trainer may set it before `setup`."""

    trainer_parameters: Mapping[str, object] = {}
    """Parameters that override those in param_str. A trainer may set them before `setup`."""

    extra: Mapping[str, Any] = {}
    """The values of `extra_parameters`, from `setup` on, and in the loaders."""

    _source_kind: ClassVar[str] = ""
    """The source whose options a ready-made layer takes at the top level of param_str."""

    _input: _Input | None = None

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        for name in _HOOKS:
            if name in vars(cls):
                setattr(cls, name, says_its_errors(vars(cls)[name]))

    # ---- the hooks that Caffe calls

    @says_its_errors
    @shortens_tracebacks
    def setup(self, bottom: Blobs, top: Blobs) -> None:
        """Check everything, decode one sample, set the tops' first shapes; starts no process."""
        if self._input is not None:  # a subclass's close() may need what its setup has not made yet
            self.close()
        what = f"layer {type(self).__name__}"
        if len(bottom):
            raise ParameterError(f"{what}: an input layer has no bottoms, the net definition gives it {len(bottom)}")
        _warn_of_forgotten(what)
        parameters, self.extra = read_param_str(
            self.param_str, _extra_parameters(type(self)), self._source_kind, what, self.trainer_parameters
        )
        train = int(self.phase) == _TRAIN
        # The solvers of several devices divide the training data among them; each test uses the whole test data.
        base_dir = absolute(self.base_dir)
        parameters = with_shard(parameters) if train else parameters
        pipeline = open_pipeline(parameters, hooks_of(self, MultiProcessInputLayer), base_dir=base_dir, train=train)
        if len(top) > 1:
            pipeline.plan.require_order(f"{what}: the net takes its tops by position")
        self._input = _Input(pipeline, parameters, base_dir, len(top), what)
        # A net that is garbage-collected closes none of its layers. At exit of the trainer the loaders end anyway.
        end = weakref.finalize(self, self._input.close)
        end.atexit = False
        self._input.forget = end.detach
        self._input.reshape_first(top)
        if train and parameters.resume is not None:  # Caffe's own data layers begin each test run anew, too
            from_command = parameters.resume == "snapshot"
            self.restore(iteration_of_command(in_caffe=self._is_caffes) if from_command else parameters.resume)
        if parameters.delivery == "view":
            self._input.delivery_to(top)  # raises now if the blobs cannot be redirected to other memory

    @says_its_errors
    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        """Wait for the next batch and set the tops' shapes; right after setup, set the declared shapes.

        Caffe calls it once when the net is constructed, and a net may never run: so the first call needs no batch.
        """
        # As shortens_tracebacks does, without one call more for each batch; so does `forward`.
        __tracebackhide__ = True
        try:
            feed = self._opened()
            if feed.is_fresh:
                feed.is_fresh = False
                feed.reshape_first(top)
            else:
                feed.reshape(top)
        except Exception as error:
            shorten(error)
            raise

    @says_its_errors
    def forward(self, bottom: Blobs, top: Blobs) -> None:
        """Copy the next batch into the tops."""
        __tracebackhide__ = True
        try:
            feed = self._opened()
            delivery = feed.delivery_to(top)
            delivery.fill(lambda _: [top[i] for i in range(len(top))])
            delivery.before = None
        except Exception as error:
            shorten(error)
            raise

    @says_its_errors
    def backward(self, top: Blobs, propagate_down: Sequence[bool], bottom: Blobs) -> None:
        """Do nothing: data has no gradient. Caffe does not call it for a layer without bottoms."""

    # ---- hooks for subclasses, run in the loaders

    def decode(self, sample: Sample, rng: np.random.Generator) -> object:
        """Turn one raw sample into its row of each top; runs in a loader.

        `sample`: the raw arrays by name; `.index`, `.epoch`. `rng`: this sample's own generator, equal for any number
        of loaders. Returns a mapping of top names to arrays, a tuple in the tops' order, or one array if there is one
        top. Types must be equal for all samples; shapes too, unless `max_shapes` or `max_rows` declares the largest.
        Without an override: the raw arrays.

        `self` is a copy of the layer from the time at which `setup` of this class ran: `self.extra`, `self.phase`, and
        attributes that a subclass set before it called `super().setup(bottom, top)`.
        """
        return dict(sample)

    # With `*args: Any, **kwargs: Any` type checkers accept an override with `rng`, and one without.
    def postprocess(self, batch: HookBatch, *args: Any, **kwargs: Any) -> Mapping[str, AnyArray] | None:
        """Change a whole batch, arrays of shape (rows, …) by name, in place, or return replacements and additions.

        Runs in a loader, on the same copy of the layer as `decode`. It may also take the batch's own random generator:
        `postprocess(self, batch, rng)`. `batch.indices` and `batch.epoch` identify its samples. The results have as
        many rows; types, shapes and names may be others, which setup learns from a small batch. A value that its top
        cannot hold raises SampleError.
        """
        return None

    # ---- hooks for subclasses, run in a loader, one epoch ahead

    def sampler(self, epoch: int, samples: int, rng: np.random.Generator) -> Any:
        """Return the indices of the epoch's samples, in order: any number, repetitions allowed.

        `samples`: the number of samples in the source. `rng`: keyed by the seed and the epoch. The result must depend
        on these arguments alone, since the epoch is drawn again after a restart. Without an override `shuffle`
        determines the order. Runs on the same copy of the layer as `decode`.
        """
        raise NotImplementedError("a layer without a sampler of its own was asked for one")

    def batch_sampler(self, epoch: int, samples: int, rng: np.random.Generator) -> Any:
        """Yield arrays of sample indices, one for each batch of the epoch, of 1 to `batch_size` samples each."""
        raise NotImplementedError("a layer without a batch_sampler of its own was asked for one")

    # ---- for users of the layer object: `net.layers[i]`, `net.layer_dict[name]` in pycaffe

    def start(self) -> None:
        """Start the loaders now, so that the first batches lie ready by the first forward; see `BatchReader.start`."""
        self._opened().pipeline.start()

    def statistics(self) -> Statistics:
        """Return the counts since setup: batches, stalls, loaders and their deaths."""
        return self._opened().pipeline.statistics()

    @property
    def plan(self) -> Plan:
        """The plan that `setup` has made: source, order, shapes and types."""
        return self._opened().pipeline.plan

    def state_dict(self) -> State:
        """Return the position of the next batch: a few plain values to store with a snapshot."""
        return self._opened().progress.state()

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Continue from a saved `state`; after setup and before the first forward. Raises ParameterError."""
        self._opened().pipeline.load_state_dict(state)

    def restore(self, snapshot: Path | str | int) -> None:
        """Continue where the data stood at `snapshot`, a `.solverstate` of Caffe or its iteration; before any forward.

        That is so many iterations of `batches_per_iteration` batches from the run's start. Raises ParameterError.
        """
        pipeline = self._opened().pipeline
        iteration = snapshot if isinstance(snapshot, int) else iteration_of(snapshot)
        each = pipeline.parameters.batches_per_iteration
        try:
            pipeline.begin_at(iteration * each)
        except ParameterError as error:
            raise ParameterError(f"iteration {iteration}, with batches_per_iteration {each}: {error}") from None

    def set_weights(self, weights: Any) -> None:
        """Draw by new weights from the next epoch on; see `BatchReader.set_weights`.

        Raises ParameterError.
        """
        feed = self._opened()
        feed.pipeline.set_weights(weights, received=feed.progress)

    def close(self) -> None:
        """End the loaders and release all memory. Optional: they also end with the layer, or the process."""
        if self._input is not None:
            self._input.close()
            self._input.forget()
            self._input = None

    def _opened(self) -> _Input:
        if self._input is None:
            raise PipelineClosed(
                f"layer {type(self).__name__} was closed, or its setup has not run: call setup first, "
                "and in a setup of your own super().setup(bottom, top)"
            )
        return self._input


class _Input:
    """The resources of a layer from setup to close."""

    made: ClassVar[list[weakref.ref[_Input]]] = []
    """References to all inputs; those that are gone are removed at the next setup."""

    def __init__(self, pipeline: Pipeline, parameters: Parameters, base_dir: Path, top_count: int, what: str) -> None:
        self.pipeline = pipeline
        self.is_fresh = True
        """True until the first reshape after setup."""
        self._tops = _tops_for(make_tops(pipeline.specs, parameters, base_dir), top_count, what)
        self._delivery: Delivery | None = None
        self.forget: Callable[[], object] = lambda: None
        """Drops the last reference to the input, once it is closed."""
        self.made.append(weakref.ref(self))

    def reshape_first(self, top: Blobs) -> None:
        rows = self.pipeline.parameters.batch_size
        for made in self._tops:
            _check_size(made, rows)
        self._reshape(top, [made.largest_shape(rows) for made in self._tops])

    def reshape(self, top: Blobs) -> None:
        self._reshape(top, self.delivery_to(top).next_shapes())

    @property
    def progress(self) -> Position:
        return (self.pipeline if self._delivery is None else self._delivery).progress

    @property
    def holds_processes(self) -> bool:
        return self.pipeline.is_ours and bool(self.pipeline.activities())

    def close(self) -> None:
        parts = (self._delivery, self.pipeline) if self.pipeline.is_ours else ()
        close_all(*(part.close for part in parts if part is not None))

    def delivery_to(self, top: Blobs) -> Delivery:
        if self._delivery is None:
            self._delivery = make_delivery(self.pipeline, self._tops, [top[i] for i in range(len(top))])
        return self._delivery

    def _reshape(self, top: Blobs, shapes: Sequence[Shape]) -> None:
        for i, shape in enumerate(shapes):
            # Caffe accepts no tuple, and only Python's own integers.
            top[i].reshape(*map(int, shape))


def _warn_of_forgotten(what: str) -> None:
    """Warn if layers with processes probably belong to nets that are no longer used.

    All layers of a net, and of a solver's nets, are set up before one of them runs. Caffe destroys no layer, so it is
    unknown which are still in use.
    """
    _Input.made[:] = [made for made in _Input.made if made() is not None]
    if sum(other.holds_processes for made in _Input.made if (other := made()) is not None) >= _MANY:
        warnings.warn(
            f"{what}: {_MANY} layers of earlier nets still hold processes, memory and files, for Caffe destroys no "
            "layer: call close() on each data layer of a net that you are done with, as in "
            "solver.net.layer_dict['data'].close(), those of its test nets too",
            RuntimeWarning,
            stacklevel=2,
        )


def _tops_for(tops: list[Top], count: int, what: str) -> list[Top]:
    """Return the tops for a net that declares `count`: all, or all except those that describe others.

    Raises ParameterError.
    """
    for choice in (tops, [top for top in tops if not describes_another(top)]):
        if len(choice) == count:
            for top in choice:
                if not np.can_cast(top.dtype, np.float32, "same_kind"):
                    raise ParameterError(
                        f"{what}: top {top.name!r} has values of type {top.dtype.name}, and a blob holds float32: make "
                        "numbers of them in decode, or leave the top out of 'tops'"
                    )
            return choice
    names = ", ".join(top.name for top in tops)
    less = f", or the first {len(choice)}" if len(choice) < len(tops) else ""
    raise ParameterError(
        f"{what} gives {len(tops)} tops ({names}), the net definition has {count}: declare as many{less}, or say with "
        "the parameter 'tops' which of them come out"
    )


def _check_size(top: Top, rows: int) -> None:
    """Raises ParameterError or RingAllocationError for a top too large for a blob or memory: Caffe would abort."""
    count = math.prod(shape := top.largest_shape(rows))
    if count > _LARGEST_BLOB:
        raise ParameterError(
            f"parameter 'batch_size' is {rows:,}: top {top.name!r} would have the shape {shape}, {count:,} numbers, "
            f"and Caffe's blobs hold at most {_LARGEST_BLOB:,}: lower batch_size"
        )
    if 4 * count > (have := available_memory()):
        raise RingAllocationError(
            f"parameter 'batch_size' is {rows:,}: top {top.name!r} would have the shape {shape}, {4 * count:,} bytes, "
            f"and {have:,} bytes are available: lower batch_size, or give the process more memory"
        )


def _extra_parameters(layer_class: type[MultiProcessInputLayer]) -> dict[str, object]:
    extra: dict[str, object] = {}
    for base in reversed(layer_class.__mro__):
        extra.update(vars(base).get("extra_parameters", {}))
    return extra
