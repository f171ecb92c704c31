"""The input layer: Caffe's four hooks over a pipeline of loader processes."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from ..readers.delivery.delivery import Delivery
from ..readers.delivery.make_delivery import make_delivery
from ..readers.delivery.tops import Shape, Top, describes_another, make_tops
from ..readers.sharding import with_shard
from ..workers.base.closing import close_all
from ..workers.base.errors import ParameterError, PipelineClosed, RingAllocationError
from ..workers.base.files import absolute
from ..workers.base.hooks import HookBatch, Sample
from ..workers.base.parameters import Parameters
from ..workers.base.specs import AnyArray
from ..workers.base.statistics import Statistics
from ..workers.base.tracebacks import shortens_tracebacks
from ..workers.pipeline.pipeline import Pipeline
from ..workers.pipeline.variants import make_pipeline
from ..workers.plan.plan import Plan, State
from ..workers.processes.process import interrupts_deferred
from ..workers.transport.memory import available_memory
from .caffe_base import CaffeLayer
from .detached import hooks_of
from .last_words import says_its_errors
from .options import read_param_str
from .state_file import StateFile, of_command, path_of

_TRAIN = 0
_LARGEST_BLOB = 2**31 - 1
_HOOKS = ("setup", "reshape", "forward", "backward")
_MANY = 3
"""Layers of earlier nets that hold processes, before it is said how to close them."""


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

    A subclass may override `decode(sample, rng)` and `postprocess(batch)`, which run in the loaders, `sampler` or
    `batch_sampler`, which say which samples an epoch has, and declare parameters of its own in `extra_parameters`. No
    process is started before the first batch is needed, but with `start: at_setup`.

    Every error that blobfeed raises can come out of `setup` (what is wrong with the parameters, the source, the decode
    hook) or out of `reshape` and `forward` (what went wrong since); see workers/base/errors.py.
    """

    extra_parameters: ClassVar[Mapping[str, object]] = {}
    """The subclass's own keys in param_str and their defaults; the default's type is the type that is expected.
    Declared anew in a further subclass, they add to those of its base."""

    param_str: Any
    """Caffe's text. The `setup` of a subclass may put a mapping in its place, with a source that it has made."""

    base_dir: Path | str | None = None
    """What relative paths are taken from; None: the working directory. A trainer may set it before `setup`."""

    trainer_parameters: Mapping[str, object] = {}
    """Parameters that take the place of those in param_str. A trainer may set them before `setup`."""

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
        """Check everything, decode one sample, give the tops their first shapes.

        Starts no process, unless `start: at_setup` says so.
        """
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
        # The solvers of several devices share the training data between them; each test is over the whole test data.
        base_dir = absolute(self.base_dir)
        parameters = self._prepared(parameters, base_dir)
        parameters = with_shard(parameters) if train else parameters
        pipeline = make_pipeline(parameters, hooks_of(self, MultiProcessInputLayer), base_dir=base_dir, train=train)
        self._input = _Input(pipeline, parameters, base_dir, len(top), what)
        # A net that is let go closes none of its layers. At the end of the trainer's process the loaders end anyway.
        end = weakref.finalize(self, self._input.close)
        end.atexit = False
        self._input.end = end
        self._input.reshape_first(top)
        if parameters.state_file and train:
            path = path_of(parameters.state_file, base_dir, parameters.rank or 0, in_caffe=self._is_caffes)
            if path is not None:
                self._input.keep_state(StateFile(path))
        if parameters.delivery == "view":
            self._input.delivery_to(top)  # not every blob can be shown other memory: say so now
        if parameters.start == "at_setup":
            pipeline.start(ahead=True)

    @says_its_errors
    @shortens_tracebacks
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
    @shortens_tracebacks
    def forward(self, bottom: Blobs, top: Blobs) -> None:
        """Put the next batch into the tops: one copy."""
        feed = self._opened()
        delivery = feed.delivery_to(top)
        if feed.state_file is not None:
            feed.state_file.before_batch(feed.state_dict())
        delivery.fill([top[i] for i in range(len(top))])
        delivery.filled = None
        if feed.state_file is not None:
            feed.state_file.after_batch(feed.state_dict())

    @says_its_errors
    def backward(self, top: Blobs, propagate_down: Sequence[bool], bottom: Blobs) -> None:
        """Nothing: data has no gradient to pass on. (Caffe does not call it for a layer without bottoms.)"""

    # ---- hooks for subclasses, run in the loaders

    def decode(self, sample: Sample, rng: np.random.Generator) -> object:
        """Turn one raw sample into what its row of each top shall hold; runs in a loader.

        `sample`: the raw arrays by name; `.index`, `.epoch`. `rng`: this sample's own generator, the same however many
        loaders there are. Returns a mapping of top names to arrays, a tuple in the tops' order, or one array where
        there is one top; the same shapes and types for every sample. Without an override: the raw arrays.

        `self` is a copy of the layer as it was when `setup` of this class ran: `self.extra`, `self.phase`, and
        attributes that a subclass set before it called `super().setup(bottom, top)`.
        """
        return dict(sample)

    # Only to `*args: Any, **kwargs: Any` is an override with `rng`, as one without, the same method for type checkers.
    def postprocess(self, batch: HookBatch, *args: Any, **kwargs: Any) -> Mapping[str, AnyArray] | None:
        """Change a whole batch, arrays of shape (rows, …) by name, in place, or return what replaces or joins them.

        Runs in a loader, on the same copy of the layer as `decode`. It may take the batch's own random generator too:
        `postprocess(self, batch, rng)`. `batch.indices` and `batch.epoch` say which samples it has. What it makes may
        have other types, shapes and names; they are learnt from a small batch in setup. A value that its top cannot
        hold is a SampleError.
        """
        return None

    # ---- hooks for subclasses, run in a process of their own, one epoch ahead

    def sampler(self, epoch: int, samples: int, rng: np.random.Generator) -> Any:
        """Return the indices of the epoch's samples, in their order: any number, repetitions allowed.

        `samples`: how many the source has. `rng`: keyed by the seed and the epoch; the result must depend on these
        arguments alone, for after a restart the epoch is drawn again. Without an override `shuffle` decides. Runs on
        the same copy of the layer as `decode`.
        """
        raise NotImplementedError("a layer without a sampler of its own was asked for one")

    def batch_sampler(self, epoch: int, samples: int, rng: np.random.Generator) -> Any:
        """Yield arrays of sample indices, one for each batch of the epoch, of 1 to `batch_size` samples each."""
        raise NotImplementedError("a layer without a batch_sampler of its own was asked for one")

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

    def restore(self, snapshot: Path | str) -> None:
        """Go on where the data stood when Caffe wrote `snapshot`, a `.solverstate`; before the first forward.

        Needs the parameter `state_file`. Raises ParameterError.
        """
        self._opened().restore(Path(snapshot))

    def set_weights(self, weights: Any) -> None:
        """Draw by other weights from an epoch on that is not yet planned; as `BatchReader.set_weights`.

        Raises ParameterError.
        """
        self._opened().set_weights(weights)

    def close(self) -> None:
        """End the loaders and give everything back. It may be left out: they end with the layer, or the process."""
        with interrupts_deferred():  # whoever interrupts it and closes again would find nothing to close
            feed, self._input = self._input, None
            if feed is not None:
                feed.end()

    def _prepared(self, parameters: Parameters, base_dir: Path) -> Parameters:
        """What a ready-made layer changes in the parameters, before its hooks are copied."""
        return parameters

    def _opened(self) -> _Input:
        if self._input is None:
            raise PipelineClosed(
                f"layer {type(self).__name__} was closed, or its setup has not run: call setup first, "
                "and in a setup of your own super().setup(bottom, top)"
            )
        return self._input


class _Input:
    """What a layer holds from setup to close."""

    made: ClassVar[list[weakref.ref[_Input]]] = []
    """All that are still there, with those that have gone since the last setup."""

    def __init__(self, pipeline: Pipeline, parameters: Parameters, base_dir: Path, top_count: int, what: str) -> None:
        self.pipeline = pipeline
        self.is_fresh = True
        """No reshape has been called since setup."""
        self._tops = _tops_for(make_tops(pipeline.specs, parameters, base_dir), top_count, what)
        self._delivery: Delivery | None = None
        self.state_file: StateFile | None = None
        self.end: Callable[[], object] = self.close
        """Closes it, once: then nothing keeps it."""
        self.made.append(weakref.ref(self))

    def keep_state(self, state_file: StateFile) -> None:
        """Have the position noted beside the snapshots, and go on from the one that the command names."""
        self.state_file = state_file
        if (snapshot := of_command("snapshot")) is not None:  # to go on from
            self.restore(Path(snapshot))
        if self.pipeline.parameters.rank:
            self.state_file = None  # of all ranks the position is the same

    def restore(self, snapshot: Path) -> None:
        if self.state_file is None:
            raise ParameterError("restore: the layer has no 'state_file', or is not of rank 0 in phase TRAIN")
        self.pipeline.load_state_dict(self.state_file.restore(snapshot))

    def reshape_first(self, top: Blobs) -> None:
        rows = self.pipeline.parameters.batch_size
        for made in self._tops:
            _check_size(made, rows)
        self._reshape(top, [made.largest_shape(rows) for made in self._tops])

    def reshape(self, top: Blobs) -> None:
        self._reshape(top, self.delivery_to(top).next_shapes())

    def state_dict(self) -> State:
        return self.pipeline.state_dict() if self._delivery is None else self._delivery.state_dict()

    def set_weights(self, weights: Any) -> None:
        received = None if self._delivery is None else self._delivery.progress
        self.pipeline.set_weights(weights, received=received)

    @property
    def holds_processes(self) -> bool:
        return self.pipeline.is_ours and bool(self.pipeline.activities())

    def close(self) -> None:
        parts = (self._delivery, self.pipeline, self.state_file) if self.pipeline.is_ours else ()
        close_all(*(part.close for part in parts if part is not None))

    def delivery_to(self, top: Blobs) -> Delivery:
        if self._delivery is None:
            self._delivery = make_delivery(self.pipeline, self._tops, [top[i] for i in range(len(top))])
        return self._delivery

    def _reshape(self, top: Blobs, shapes: Sequence[Shape]) -> None:
        for i, shape in enumerate(shapes):
            # Caffe takes no tuple, and of integers only Python's own.
            top[i].reshape(*map(int, shape))


def _warn_of_forgotten(what: str) -> None:
    """Warn, once, where layers that run already are probably those of nets that were let go.

    All layers of a net, and of a solver's nets, are set up before one of them runs. Caffe destroys none of them, so it
    cannot be seen which are still in use.
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
    """The tops that a net with `count` of them gets: all, or all but those that describe others; raises
    ParameterError."""
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
    """Raises ParameterError: Caffe would abort."""
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
