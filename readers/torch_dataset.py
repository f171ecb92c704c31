"""The pipeline for torch's own loops: an IterableDataset of whole batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Unpack

from torch.utils.data import IterableDataset, get_worker_info

from ..workers.base.closing import Closing
from ..workers.base.errors import PipelineClosed
from ..workers.base.hooks import DecodeHook, PostprocessHook
from ..workers.base.parameters import ReaderParameters
from ..workers.plan.plan import State
from .batch_reader import BatchReader
from .delivery.named_batches import NamedBatch
from .keywords import names_parameters
from .looped import SourceLike


class TorchDataset(Closing, IterableDataset[NamedBatch]):
    """Whole batches of torch tensors by name, for plain loops, DataLoader and what is built on it.

        dataset = TorchDataset({"hdf5": {"path": "train.h5"}}, batch_size=64, shuffle=True, epochs=1)
        for batch in DataLoader(dataset, batch_size=None):     # or: for batch in dataset
            train(batch["data"], batch["label"])

    The arguments are those of BatchReader, `reader` is the BatchReader underneath; `device` is "cpu" unless given. The
    batches are complete, so the DataLoader gets `batch_size=None`, and they are made in blobfeed's own loaders, so it
    keeps `num_workers=0`: a worker of its own would only copy each batch once more, and every one of them would
    deliver all of the data. If batches are asked for there, or the dataset is pickled, it says so (PipelineClosed).
    `state_dict` and `load_state_dict` have the names that stateful loaders look for.
    """

    @names_parameters
    def __init__(
        self,
        source: SourceLike = None,
        *,
        decode: DecodeHook | None = None,
        postprocess: PostprocessHook | None = None,
        copy: bool | None = None,
        base_dir: Path | str | None = None,
        train: bool = True,
        **parameters: Unpack[ReaderParameters],
    ) -> None:
        super().__init__()
        parameters.setdefault("device", "cpu")
        self.reader = BatchReader(
            source,
            decode=decode,
            postprocess=postprocess,
            copy=copy,
            base_dir=base_dir,
            train=train,
            **parameters,
        )

    def __iter__(self) -> Iterator[NamedBatch]:
        if get_worker_info() is not None:
            raise PipelineClosed(_NOT_IN_A_WORKER)
        return iter(self.reader)

    def __repr__(self) -> str:
        return f"TorchDataset({self.reader!r})"

    def __len__(self) -> int:
        return len(self.reader)

    def __bool__(self) -> bool:
        return True  # without it Python asks for the length, which an endless one has not

    def __getstate__(self) -> dict[str, object]:
        raise PipelineClosed(_NOT_IN_A_WORKER)

    def state_dict(self) -> State:
        return self.reader.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        self.reader.load_state_dict(state)

    def close(self) -> None:
        self.reader.close()


_NOT_IN_A_WORKER = (
    "a TorchDataset cannot be read in a worker of a DataLoader or sent to another process: its batches are made in "
    "loader processes of its own; use DataLoader(dataset, batch_size=None, num_workers=0), and make a dataset in each "
    "process that reads"
)
