"""The contract of everything that hands batches out: the readers of each framework, and the layer.

`Face` is what a test asks of one of them; `LAWS` are the tests, each for a face and an empty folder. The faces of
TensorFlow, Keras and JAX stand in files of their own, since those get processes of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest

from blobfeed import BatchReader, BlobfeedError, PipelineClosed, SampleError
from tests.support.interrupting import interrupts_in
from tests.support.reader_data import images, write_hdf5

SAMPLES, BATCH = 23, 5
SETTINGS: dict[str, Any] = {
    "batch_size": BATCH,
    "num_loaders": 1,
    "epochs": 1,
    "shuffle": True,
    "seed": 7,
    "last_batch": "partial",
}
EPOCH = -(-SAMPLES // BATCH)

Batch = tuple[bytes, list[int]]
"""The bytes of `data`, and the labels, which number the samples."""


class Face:
    """One run over a source, epoch after epoch. `make` opens it, `loop` gives the batches of an epoch."""

    raises: type[Exception] = BlobfeedError
    """The error that `take` raises: the reader's, or a framework's own in its place."""

    def make(self, source: dict[str, Any], **settings: Any) -> Any:
        return BatchReader(source, **settings)

    def __init__(self, source: dict[str, Any], **settings: Any) -> None:
        self.reader = self.make(source, **{**SETTINGS, **settings})
        self._batches = self._all()

    def loop(self) -> Iterator[tuple[Any, Any]]:
        yield from ((batch["data"], batch["label"]) for batch in self.reader)

    def _all(self) -> Iterator[tuple[Any, Any]]:
        while True:
            yield from self.loop()

    def take(self) -> Batch:
        data, labels = next(self._batches)
        return np.asarray(data).tobytes(), [int(label) for label in labels]

    def state(self) -> dict[str, Any]:
        return dict(self.reader.state_dict())

    def load(self, state: dict[str, Any]) -> None:
        self.reader.load_state_dict(state)

    def close(self) -> None:
        self.reader.close()

    def cause(self, error: Exception) -> Exception | None:
        """The reader's error."""
        return error


class Arrays(Face):
    """The face that all others are compared with."""


def expected(source: dict[str, Any], batches: int) -> list[Batch]:
    with closing(Arrays(source, num_loaders=0)) as face:
        return [face.take() for _ in range(batches)]


def same_bytes_as_a_plain_reader(make: type[Face], folder: Path) -> None:
    source = write_hdf5(folder / "train.h5", SAMPLES)
    with closing(make(source, num_loaders=2)) as face:
        found = [face.take() for _ in range(2 * EPOCH)]
    assert found == expected(source, 2 * EPOCH)
    for data, labels in found:
        assert data == images(SAMPLES)[labels].tobytes()
    first, second = ([label for _, labels in epoch for label in labels] for epoch in (found[:EPOCH], found[EPOCH:]))
    assert sorted(first) == sorted(second) == list(range(SAMPLES))
    assert first != second


def a_state_goes_on_with_the_batch_that_would_have_come_next(make: type[Face], folder: Path) -> None:
    source = write_hdf5(folder / "train.h5", SAMPLES)
    whole = expected(source, 2 * EPOCH)
    for taken in (1, 3, EPOCH, EPOCH + 2):
        with closing(make(source, num_loaders=0)) as face:
            assert [face.take() for _ in range(taken)] == whole[:taken]
            state = json.loads(json.dumps(face.state()))
        with closing(make(source, num_loaders=0)) as resumed:
            resumed.load(state)
            assert [resumed.take() for _ in range(2 * EPOCH - taken)] == whole[taken:], taken


def a_closed_one_says_so_and_leaves_no_process(make: type[Face], folder: Path) -> None:
    before = children()
    face = make(write_hdf5(folder / "train.h5", SAMPLES))
    assert children() == before, "processes start with the first batch that is asked for"
    face.take()
    assert children() > before
    face.close()
    face.close()
    assert children() == before
    with pytest.raises(face.raises) as caught:
        face.take()
    assert isinstance(face.cause(caught.value), PipelineClosed)


def an_error_names_its_sample_behind_the_batches_before_it(make: type[Face], folder: Path) -> None:
    """One chunk is damaged, that of the second batch."""
    with h5py.File(folder / "train.h5", "w") as file:
        dataset = file.create_dataset("data", data=images(SAMPLES), chunks=(BATCH, 2, 3, 4), fletcher32=True)
        file["label"] = np.arange(SAMPLES)
        at = dataset.id.get_chunk_info(1).byte_offset
    with (folder / "train.h5").open("r+b") as stream:
        stream.seek(at)
        stream.write(b"\xff\xff\xff")
    with closing(make({"hdf5": {"path": str(folder / "train.h5")}}, shuffle=False, num_loaders=0)) as face:
        assert face.take()[1] == list(range(BATCH))
        with pytest.raises(face.raises) as caught:
            face.take()
        error = face.cause(caught.value)
        assert isinstance(error, SampleError)
        assert BATCH <= error.index < 2 * BATCH
        assert str(folder / "train.h5") in error.path


def after_ctrl_c_within_close_a_second_close_leaves_no_process(
    make: type[Face], folder: Path, *, at_every_line: bool = False
) -> None:
    source, before, step = write_hdf5(folder / "train.h5", SAMPLES), children(), 1
    while True:
        face = make(source)
        face.take()
        interrupted = interrupts_in(step, face.close, "blobfeed", "weakref")
        face.close()
        assert children() == before, step
        if not interrupted:
            return
        step += 1 if at_every_line else 7 * step  # each step starts processes


def children() -> set[Any]:
    return set(psutil.Process().children())


LAWS = [
    same_bytes_as_a_plain_reader,
    a_state_goes_on_with_the_batch_that_would_have_come_next,
    a_closed_one_says_so_and_leaves_no_process,
    an_error_names_its_sample_behind_the_batches_before_it,
    after_ctrl_c_within_close_a_second_close_leaves_no_process,
]
every_law = pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
