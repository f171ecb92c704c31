"""`AsyncReader`: the interface of torch.async-hdf5-reader (prlz77, for Lua Torch) over the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import msgspec

from ..workers.api import AnyArray, NotNegative, Positive, SharedParameters, Statistics, check_names, check_options
from ..workers.base import Closing, FetchOrderError, ParameterError, SourceError, shortens_tracebacks
from ..workers.plan import Position, State
from ..workers.transport import hook_name
from .batch_reader import BatchReader
from .keywords import check_hook

if TYPE_CHECKING:
    import torch

AxisNumber = Annotated[int, msgspec.Meta(ge=1, le=4)]
Postprocess = Callable[[AnyArray], AnyArray | None]

_PASSED_ON = ("batch_size", *SharedParameters.__annotations__)
"""Parameters of every reader, under the same names."""


class AsyncReaderOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The parameters that AsyncReader alone has."""

    hdf5_path: str
    nthread: NotNegative = 1
    njob: Positive = 1
    cuda: bool = False
    postprocess: Any = None
    data_field: str = "data"
    labels_field: str = "labels"
    num_dim: AxisNumber = 1
    h_dim: AxisNumber = 2
    w_dim: AxisNumber = 3
    cha_dim: AxisNumber = 4
    shuffle: bool = False


class AsyncReaderParameters(SharedParameters, total=False):
    """The same as keyword arguments, for type checkers and editors."""

    hdf5_path: str
    nthread: int
    njob: int
    cuda: bool
    postprocess: Postprocess | None
    data_field: str
    labels_field: str
    num_dim: int
    h_dim: int
    w_dim: int
    cha_dim: int
    shuffle: bool


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
    timeout_s, changed_data. `num_dim`, `h_dim`, `w_dim`, `cha_dim` are the 1-based positions of examples, height, width
    and channels in the stored data set. `postprocess(data)` runs in a loader over a whole batch's data, shape
    (rows, channels, height, width), changes it in place or returns another array of the same shape and type. Relative
    paths are taken from the working directory.

    Unlike the original (docs/coming_from.md), it keeps the types that the file has, and delivers the last examples of
    an epoch as a smaller batch (`last_batch`: partial, wrap or drop).

    Raises ParameterError and SourceError; processes are started by the first fetch.
    """

    @shortens_tracebacks
    def __init__(
        self,
        params: Mapping[str, object] | None = None,
        *,
        batch_size: int | None = None,
        batchSize: int | None = None,  # noqa: N803 - as the original spells it
        **named: Unpack[AsyncReaderParameters],
    ) -> None:
        sizes = {"batch_size": batch_size, "batchSize": batchSize}
        sizes_given = {name: size for name, size in sizes.items() if size is not None}
        given = _with_aliases({**(params or {}), **named, **sizes_given})
        check_names(given, (*AsyncReaderOptions.__struct_fields__, *_PASSED_ON), "AsyncReader")
        passed_on = {name: given.pop(name) for name in _PASSED_ON if name in given}
        self.options = check_options(given, AsyncReaderOptions, "AsyncReader")
        function = check_hook("AsyncReader", "postprocess", self.options.postprocess)
        hook = None if function is None else _OnData(self.options.data_field, function)
        values: Any = {**_parameters(self.options), **passed_on}
        try:
            self._reader = _PairReader(_source(self.options), postprocess=hook, **values)
        except (ParameterError, SourceError) as error:
            raise type(error)(_in_own_terms(str(error))) from error.__cause__
        self._begin()

    def _begin(self) -> None:
        self._loop = iter(self._reader)
        self._fetches = self._reader._batches.delivery.progress.number
        """The number behind the last batch that was asked for."""

    def __repr__(self) -> str:
        path, batch_size = self.options.hdf5_path, self._reader.parameters.batch_size
        return f"AsyncReader({path!r}, batch_size={batch_size}, {self.samples:,} samples)"

    def fetch_data(self) -> bool:
        """Ask for the next batch, without waiting for it; return True if an epoch ends with it.

        Raises FetchOrderError if `njob` batches have been asked for and not been got yet, PipelineClosed after close.
        """
        pipeline = self._reader._pipeline
        pipeline.check_usable()
        asked = self._asked
        if asked >= self.options.njob:
            raise FetchOrderError(
                f"fetch_data: {asked} batches have been asked for and not been got, and njob is "
                f"{self.options.njob}: call get_next_batch() first, or give a larger njob"
            )
        pipeline.start()
        begun = Position(pipeline.plan, self._fetches - pipeline.plan.first_number)
        self._fetches += 1
        return begun.epoch < Position(pipeline.plan, begun.taken + 1).epoch

    def get_next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The data, shape (rows, channels, height, width), and the labels, shape (rows, …), of the batch asked for.

        Waits for it. Both are yours to read, write and keep. Raises FetchOrderError where no batch has been asked for.
        """
        __tracebackhide__ = True
        self._reader._pipeline.check_usable()
        if not self._asked:
            raise FetchOrderError(
                "get_next_batch: every batch that was asked for has been got: call fetch_data() before it"
            )
        batch = next(self._loop)
        data, labels = batch[self.options.data_field], batch[self.options.labels_field]
        # Here and not in the loop's step: Ctrl-C between its end and this method's would lose the batch.
        self._reader._batches.delivery.before = None
        return data, labels

    fetchData = fetch_data  # noqa: N815 - as the original spells it
    getNextBatch = get_next_batch  # noqa: N815

    @property
    def samples(self) -> int:
        """Examples in an epoch, over all ranks."""
        return self._reader.samples

    def state_dict(self) -> State:
        """Return the position of the next batch that was not got; batches that were only asked for do not count."""
        return self._reader.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where `state` was saved; what was asked for is forgotten. Raises ParameterError."""
        self._reader.load_state_dict(state)
        self._begin()

    def statistics(self) -> Statistics:
        return self._reader.statistics()

    def close(self) -> None:
        """End the loaders and give everything back; who then asks for a batch gets PipelineClosed."""
        self._reader.close()

    destructor = close

    @property
    def _asked(self) -> int:
        """Batches that have been asked for and not been got."""
        return self._fetches - self._reader._batches.delivery.progress.number


class _PairReader(BatchReader):
    _called = "AsyncReader"
    _receives = False


class _OnData:
    """The user's function of the data, as a hook over the whole batch; `__wrapped__` is the user's code."""

    __signature__ = Signature([Parameter("batch", Parameter.POSITIONAL_ONLY)])

    def __init__(self, field: str, function: Postprocess) -> None:
        self.__wrapped__ = function
        self.__qualname__ = hook_name(function)
        self._field = field

    def __call__(self, batch: dict[str, AnyArray]) -> dict[str, AnyArray] | None:
        changed = self.__wrapped__(batch[self._field])
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


def _in_own_terms(message: str) -> str:
    for theirs, ours in (
        ("parameter 'dims' names", "num_dim, h_dim, w_dim and cha_dim name"),
        ("parameter 'tops' is", "data_field and labels_field are"),
        ("in 'tops'", "in data_field and labels_field"),
        ("check 'path'", "check 'hdf5_path'"),
    ):
        message = message.replace(theirs, ours)
    return message


def _parameters(options: AsyncReaderOptions) -> dict[str, object]:
    return {
        "tops": [options.data_field, options.labels_field],
        "batch_size": 1,
        "num_loaders": options.nthread,
        "prefetch_batches": options.njob,
        "shuffle": options.shuffle,
        "last_batch": "partial",
        "epochs": None,
        "device": "cuda" if options.cuda else "cpu",
    }
