"""`AsyncReader`: the interface of torch.async-hdf5-reader (prlz77, for Lua Torch) over the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, Unpack

import msgspec

from ..workers.base.checks import check_options
from ..workers.base.closing import Closing
from ..workers.base.errors import FetchOrderError, ParameterError
from ..workers.base.hooks import Hooks
from ..workers.base.specs import AnyArray
from ..workers.base.statistics import Statistics
from ..workers.order.batches import Batches
from ..workers.plan.plan import State
from .looped import LoopedPipeline, check_hook, close_when_forgotten

if TYPE_CHECKING:
    import torch

Positive = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Place = Annotated[int, msgspec.Meta(ge=1, le=4)]
Postprocess = Callable[[AnyArray], AnyArray | None]

_PAIRS = 2
"""Pairs of tensors that are valid at a time: one to read and write, while the next is filled."""


class AsyncReaderOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The parameters of AsyncReader; those in the second paragraph are new."""

    hdf5_path: str
    nthread: NotNegative = 1
    njob: Positive = 1
    cuda: bool = False
    batch_size: Positive = 1
    postprocess: Any = None
    data_field: str = "data"
    labels_field: str = "labels"
    num_dim: Place = 1
    h_dim: Place = 2
    w_dim: Place = 3
    cha_dim: Place = 4
    shuffle: bool = False

    seed: NotNegative = 0
    last_batch: Literal["wrap", "drop", "partial"] = "partial"
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 600.0


class AsyncReaderParameters(TypedDict, total=False):
    """The same as keyword arguments, for type checkers and editors."""

    hdf5_path: str
    nthread: int
    njob: int
    cuda: bool
    batch_size: int
    batchSize: int
    postprocess: Postprocess | None
    data_field: str
    labels_field: str
    num_dim: int
    h_dim: int
    w_dim: int
    cha_dim: int
    shuffle: bool

    seed: int
    last_batch: Literal["wrap", "drop", "partial"]
    timeout_s: float


class AsyncReader(Closing):
    """Batches of an HDF5 file's data and labels, fetched while the program computes.

        reader = AsyncReader(hdf5_path="train.h5", batch_size=64, nthread=2, shuffle=True)
        epoch_ended = reader.fetch_data()
        while training:
            data, labels = reader.get_next_batch()      # data: N×C×H×W
            epoch_ended = reader.fetch_data()           # the next batch is made while this one is used
            train(data, labels)

    The parameters may be given by name or as one mapping, with `batchSize` for `batch_size`: hdf5_path, nthread (loader
    processes; with 0 each batch is made when it is got), njob (batches that may be asked for at a time), cuda,
    batch_size, postprocess, data_field, labels_field, num_dim, h_dim, w_dim, cha_dim, shuffle; and seed, last_batch,
    timeout_s. `num_dim`, `h_dim`, `w_dim`, `cha_dim` are the 1-based positions of examples, height, width and channels
    in the stored data set. `postprocess(data)` runs in a loader over a whole batch's data, shape (rows, channels,
    height, width), changes it in place or returns another array of the same shape and type. Relative paths are taken
    from the working directory.

    Unlike the original, which differs as docs/readers.md says, it keeps the types that the file has, and delivers the
    last examples of an epoch as a smaller batch (`last_batch`: partial, wrap or drop).

    Raises ParameterError and SourceError; processes are started by the first fetch.
    """

    def __init__(self, params: Mapping[str, object] | None = None, **named: Unpack[AsyncReaderParameters]) -> None:
        self.options = check_options(_with_aliases({**(params or {}), **named}), AsyncReaderOptions, "AsyncReader")
        function = check_hook("AsyncReader", "postprocess", self.options.postprocess)
        hooks = Hooks() if function is None else Hooks(postprocess=_OnData(self.options.data_field, function))
        self._feed = LoopedPipeline(
            "AsyncReader", _source(self.options), hooks, _parameters(self.options), copy=False, loans=_PAIRS
        )
        self._fetches = 0
        self._finalizer = close_when_forgotten(self, self._feed)

    def __repr__(self) -> str:
        given = self.options
        return (
            f"AsyncReader({given.hdf5_path!r}, batch_size={given.batch_size}, {self._feed.pipeline.samples:,} samples)"
        )

    def fetch_data(self) -> bool:
        """Ask for the next batch, without waiting for it; True where an epoch ends with it.

        Raises FetchOrderError where `njob` batches have been asked for and not been got yet.
        """
        asked = self._asked
        if asked >= self.options.njob:
            raise FetchOrderError(
                f"fetch_data: {asked} batches have been asked for and not been got, and njob is "
                f"{self.options.njob}: call get_next_batch() first, or give a larger njob"
            )
        self._feed.pipeline.start()
        ends_epoch = self._plan().ends_epoch(asked)
        self._fetches += 1
        return ends_epoch

    def get_next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The data, shape (rows, channels, height, width), and the labels, shape (rows, …), of the batch asked for.

        Waits for it. Both are yours to read and write until the next-but-one call of this method, when their memory
        may be filled anew. Raises FetchOrderError where no batch has been asked for.
        """
        if not self._asked:
            raise FetchOrderError(
                "get_next_batch: every batch that was asked for has been got: call fetch_data() before it"
            )
        batch = self._feed.batches.next()
        data, labels = batch[self.options.data_field], batch[self.options.labels_field]
        self._feed.batches.delivery.filled = None
        return data, labels

    fetchData = fetch_data  # noqa: N815 - as the original spells it
    getNextBatch = get_next_batch  # noqa: N815

    @property
    def samples(self) -> int:
        """Examples in an epoch, over all ranks."""
        return self._feed.pipeline.samples

    def state_dict(self) -> State:
        """Where the next batch stands that has not been got; what was only asked for does not count."""
        return self._feed.batches.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where `state` was saved; what was asked for is forgotten. Raises ParameterError."""
        self._feed.jump(state)
        self._fetches = 0

    def statistics(self) -> Statistics:
        return self._feed.pipeline.statistics()

    def close(self) -> None:
        """End the loaders and give everything back; every other call then raises PipelineClosed."""
        self._finalizer()

    destructor = close

    @property
    def _asked(self) -> int:
        """Batches that have been asked for and not been got."""
        return self._fetches - self._feed.batches.count

    def _plan(self) -> Batches:
        """The batches that have not been got; those of rank 0, but every rank's epochs end with the same ones."""
        given, start = self._feed.parameters, int(self._feed.batches.state_dict()["position"])
        return Batches(self.samples, given.batch_size, given.last_batch, None, 0, given.world_size or 1, start)


class _OnData:
    """The user's function of the data, as a hook over the whole batch."""

    def __init__(self, field: str, function: Postprocess) -> None:
        self._field = field
        self._function = function

    def __call__(self, batch: dict[str, AnyArray]) -> dict[str, AnyArray] | None:
        changed = self._function(batch[self._field])
        return None if changed is None else {self._field: changed}


def _with_aliases(values: Mapping[str, object]) -> dict[str, object]:
    renamed = {"batch_size" if name == "batchSize" else name: value for name, value in values.items()}
    if len(renamed) < len(values):
        raise ParameterError(f"AsyncReader: 'batch_size' and 'batchSize' are both given, in {sorted(values)}: give one")
    return renamed


def _source(options: AsyncReaderOptions) -> dict[str, object]:
    axes = {"num_dim": options.num_dim, "h_dim": options.h_dim, "w_dim": options.w_dim, "cha_dim": options.cha_dim}
    if sorted(axes.values()) != [1, 2, 3, 4]:
        raise ParameterError(
            f"AsyncReader: the parameters {axes!r} are 1-based and must be 1, 2, 3 and 4 in some order"
        )
    dims = [name[0] for name in sorted(axes, key=axes.__getitem__)]  # n, h, w and c begin their names
    return {"hdf5": {"path": options.hdf5_path, "dims": dims}}


def _parameters(options: AsyncReaderOptions) -> dict[str, object]:
    return {
        "tops": [options.data_field, options.labels_field],
        "batch_size": options.batch_size,
        "num_loaders": options.nthread,
        # The pairs on loan are slots that cannot be filled meanwhile; one slot for what is lent is there anyway.
        "prefetch_batches": options.njob + _PAIRS - 1,
        "shuffle": options.shuffle,
        "seed": options.seed,
        "last_batch": options.last_batch,
        "timeout_s": options.timeout_s,
        "device": "cuda" if options.cuda else "cpu",
    }
