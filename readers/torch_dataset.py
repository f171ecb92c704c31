"""The pipeline for torch's own loops: an IterableDataset of whole batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn, Unpack

from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from ..workers.base import ParameterError, PipelineClosed, shortens_tracebacks
from .batch_reader import BatchReader, DatasetOverReader
from .delivery import NamedBatch, TupleBatch
from .keywords import ReaderArguments, SourceLike, names_arguments_of


class TorchDataset(DatasetOverReader, IterableDataset[NamedBatch]):
    """Whole batches of torch tensors by name, for plain loops, DataLoader and what is built on it.

        dataset = TorchDataset({"hdf5": {"path": "train.h5"}}, batch_size=64, shuffle=True)
        for batch in DataLoader(dataset, batch_size=None):     # or: for batch in dataset
            train(batch["data"], batch["label"])

    `tuples=True` gives tuples in the order of the tops: `for data, label in dataset`.

    The arguments are those of BatchReader, `reader` is the BatchReader underneath; `device` is "cpu" unless given. The
    batches are complete, so the DataLoader gets `batch_size=None`; with another one its first batch raises
    ParameterError. They are made in blobfeed's own loaders, so it keeps `num_workers=0`: a worker of its own would only
    copy each batch once more, and each worker would deliver all of the data. If batches are asked for there, or the
    dataset is pickled, it raises PipelineClosed. `state_dict` and `load_state_dict` have the names that stateful
    loaders look for.
    """

    @names_arguments_of(BatchReader)
    @shortens_tracebacks
    def __init__(
        self,
        source: SourceLike = None,
        *,
        copy: bool | None = None,
        tuples: bool = False,
        **arguments: Unpack[ReaderArguments],
    ) -> None:
        super().__init__()
        arguments.setdefault("device", "cpu")
        self.reader = BatchReader(source, copy=copy, tuples=tuples, **arguments)

    def __iter__(self) -> Iterator[NamedBatch]:
        if get_worker_info() is not None:
            raise PipelineClosed(_NOT_IN_A_WORKER)
        return iter(self.reader)

    def __getstate__(self) -> dict[str, object]:
        raise PipelineClosed(_NOT_IN_A_WORKER)


_NOT_IN_A_WORKER = (
    "a TorchDataset cannot be read in a worker of a DataLoader or sent to another process: its batches are made in "
    "loader processes of its own; use DataLoader(dataset, batch_size=None, num_workers=0), and make a dataset in each "
    "process that reads"
)


def _refuse_to_collate(*_: object, **__: object) -> NoReturn:
    raise ParameterError(
        "a DataLoader over a TorchDataset has a batch_size, which would stack whole batches; use "
        "DataLoader(dataset, batch_size=None), and give the size to the dataset: TorchDataset(…, batch_size=64)"
    )


default_collate_fn_map[NamedBatch] = default_collate_fn_map[TupleBatch] = (
    _refuse_to_collate  # torch's own place for types that it cannot stack
)
