"""Samples, batches and states of a running reader, and the code of users that makes them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from copy import copy
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.readers.sharding import shard_in_environment
from blobfeed.workers.api import HookBatch

from blobfeed import ArraySpec, BatchReader, Sample, Source, StreamSource
from tests.support.catalogue import Scenario, scenario
from tests.support.reader_data import records

from .parameters import ARRAYS, IMAGES, asked, in_order, read


class Own(Source):
    """A source of the user's own, four samples with such specs."""

    kind = "own"

    def __init__(self, specs: Any) -> None:
        self._specs = specs

    def __len__(self) -> int:
        return 4

    @property
    def specs(self) -> Any:
        return self._specs

    def read(self, indices: Any, out: Any) -> None:
        for rows in out.values():
            rows[...] = 0


METHOD = type("Method", (Own,), {"specs": lambda _self: {}})


def specs(data: Any, **parameters: Any) -> Scenario:
    return read(Own({"data": data}), **parameters)


def later(change: Callable[[HookBatch], Any], **parameters: Any) -> Scenario:
    """A hook over batches that returns something else from the second batch on."""
    return read(
        ARRAYS,
        postprocess=lambda batch: change(batch) if batch["label"][0] >= 4 else {"new": batch["label"]},
        **parameters,
    )


def reshaped(data: Any, **parameters: Any) -> Scenario:
    """A hook whose second batch has such data."""
    return read(
        ARRAYS, postprocess=lambda batch: {"data": data if batch["label"][0] >= 4 else batch["data"]}, **parameters
    )


def decoding(change: Callable[[Any], Any], **parameters: Any) -> Scenario:
    """A hook that changes the data of sample 5."""
    return read(
        ARRAYS,
        decode=lambda sample, _: {**sample, "data": change(sample["data"]) if sample["label"] == 5 else sample["data"]},
        **parameters,
    )


def breaks(sample: Sample, _rng: np.random.Generator) -> Sample:
    if os.environ.get("BLOBFEED_ROLE") == "loader":
        breakpoint()  # noqa: T100 - what is tested
    return sample


def boxes(rows: Callable[[int], Any], **parameters: Any) -> Scenario:
    """A hook whose boxes are put end to end."""
    return read(
        ARRAYS, decode=lambda sample, _: {"boxes": rows(int(sample["label"]))}, concatenate="boxes", **parameters
    )


class Returning(Own):
    """Gives arrays back instead of writing into the batch."""

    def read(self, indices: Any, out: Any) -> Any:
        return {"data": np.zeros((len(indices), 3), np.uint8)}


class Replacing(Own):
    def read(self, indices: Any, out: Any) -> None:
        out["data"] = np.zeros((len(indices), 3), np.uint8)


def with_batch(use: Callable[[Any], object]) -> Scenario:
    return asked(lambda reader: use(next(iter(reader))), ARRAYS)


def an_older_loop(reader: BatchReader) -> None:
    older = iter(reader)
    next(older), next(iter(reader))
    next(older)


def all_the_data_as_one_sample(folder: Path) -> Any:
    """An array that was saved without the axis of the samples."""
    with (folder / "data.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (1, 1 << 42)})
        file.truncate(file.tell() + (1 << 42))
    return read({"npy": {"data": "data.npy"}})(folder)


def located_before_a_state_of_another_batch_size(folder: Path) -> object:
    """The state stands behind five batches."""
    with read(ARRAYS, epochs=None)(folder) as reader:
        list(islice(reader, 5))
        state = reader.state_dict()
    with read(ARRAYS, epochs=None, batch_size=8)(folder) as reader:
        reader.load_state_dict(state)
        return reader.locate(3)


@scenario
def resumed(folder: Path, /, saved: dict[str, Any], other: dict[str, Any]) -> None:
    """The state of a reader with one sampler in a reader with another one."""
    with read(ARRAYS, sampler=saved)(folder) as reader:
        state = reader.state_dict()
    with read(ARRAYS, sampler=other)(folder) as reader:
        reader.load_state_dict(state)


def sharded(folder: Path) -> Any:
    pytest.importorskip("torch")
    from torch.utils.data import DistributedSampler

    samples: Any = range(8)
    half: Any = DistributedSampler(samples, num_replicas=2, rank=0)
    return read(ARRAYS, sampler=half, rank=0, world_size=2)(folder)


def sends_a_file(folder: Path) -> Any:
    with h5py.File(folder / "x.h5", "w") as opened:
        a = SimpleNamespace(files={"x": [opened]})
        return read(ARRAYS, num_loaders=1, decode=lambda sample, _rng: (a, sample)[1])(folder)


def sends_a_text(folder: Path) -> Any:
    (folder / "words.txt").write_text("word\n" * 9999)
    with (folder / "words.txt").open() as words:
        lines = enumerate(words)
        return read(ARRAYS, num_loaders=1, decode=lambda sample, _rng: (next(lines), sample)[1])(folder)


def exiting(epoch: int, samples: int, rng: np.random.Generator) -> Any:
    os._exit(9)


def hanging(epoch: int, samples: int, rng: np.random.Generator) -> Any:
    while True:
        time.sleep(1000)


def out_of_range(epoch: int, samples: int, rng: np.random.Generator) -> list[int]:
    return [3, samples + epoch]


BATCHES: dict[str, Scenario] = {
    "a misspelt name in a batch": with_batch(lambda batch: batch["dta"]),
    "a misspelt name in a sample": read(ARRAYS, decode=lambda sample, _rng: sample["image"]),
    "a misspelt name in postprocess": read(ARRAYS, postprocess=lambda batch: {"new": batch["lable"]}),
    "indices of a batch that was made by hand": with_batch(lambda batch: type(batch)(dict(batch)).indices),
    "the length of an endless reader": asked(len, epochs=None),
    "the length of an unknown sampler": asked(len, ARRAYS, sampler=in_order),
    "a copy of a reader": asked(copy),
    "an older loop": asked(an_older_loop),
    "no state": asked(lambda reader: reader.load_state_dict("x")),  # type: ignore[arg-type]
    # So large that a batch has a group to itself, however quickly it is read.
    "more slots than there are addresses": read(
        {"arrays": {"data": np.zeros((4, 1 << 24), np.uint8)}}, prefetch_batches=10**18
    ),
    "a sample that no memory holds": all_the_data_as_one_sample,
    "up to more than any memory": read(IMAGES, max_shapes={"data": (3, 10**7, 10**7)}),
    "more bad samples than allowed, in process": decoding(lambda data: data[:2], on_error="replace", max_bad_samples=0),
    "a source that returns arrays": read(Returning({"data": ArraySpec((3,), np.dtype("u1"))})),
    "a source that replaces arrays": read(Replacing({"data": ArraySpec((3,), np.dtype("u1"))})),
}
OWN = {
    "specs, tuples": specs(((3,), "uint8")),
    "specs, a method": read(METHOD({})),
    "specs, another byte order": specs(ArraySpec((3,), np.dtype(">i4"))),
    "specs, none": read(Own({})),
    "specs, a list": specs(ArraySpec([3], np.dtype("u1"))),  # type: ignore[arg-type]
    "specs, objects": specs(ArraySpec((3,), np.dtype(object))),
    "fields, misspelt": specs(ArraySpec((3,), np.dtype("u1")), fields=["date"]),
    "decode, three arrays for two": read(ARRAYS, decode=lambda _sample, _rng: (1, 2, 3)),
    "decode, another shape": decoding(lambda data: data[:2]),
    "decode, another type": decoding(lambda data: data / 2),
    "decode, nothing": decoding(lambda _: None),
    "decode, a breakpoint in a loader": read(ARRAYS, decode=breaks, num_loaders=1),
    "decode, an open file": sends_a_file,
    "decode, an open text file": sends_a_text,
    "postprocess, a fraction": later(lambda batch: {"new": batch["label"] + 0.5}),
    "postprocess, a large fraction": later(lambda batch: {"new": batch["label"].astype(np.float64) * 1e30}),
    "postprocess, another shape": later(lambda batch: {"new": batch["data"]}),
    "postprocess, a top less": later(lambda _: {}),
    "postprocess, a number": later(lambda _: 7),
    "postprocess, a masked array": later(lambda batch: {"new": np.ma.masked_array(batch["label"])}),
    "postprocess, a list of nothing": later(lambda _: {"new": [None] * 4}),
    "postprocess, an error": later(lambda _: 1 // 0),
    "postprocess, a number at once": read(ARRAYS, postprocess=lambda _: 7),
    "postprocess, a number as name": read(ARRAYS, postprocess=lambda batch: {3: batch["data"]}),
    "postprocess, a number for all rows": read(ARRAYS, postprocess=lambda _: {"data": 3}),
    "postprocess, a scalar for all rows": read(ARRAYS, postprocess=lambda _: {"data": np.float32(1)}),
    "postprocess, too few rows": read(ARRAYS, postprocess=lambda _: {"data": np.zeros(3)}),
    "postprocess, one number later": reshaped(1),
    "postprocess, fewer rows later": reshaped(np.zeros((3, 3, 4), np.uint8)),
    "postprocess, one number later, of up to": reshaped(1, max_shapes={"data": [3, 4]}),
    "postprocess, fewer rows later, of up to": reshaped(np.zeros((3, 3, 4), np.uint8), max_shapes={"data": [3, 4]}),
    "postprocess, of samples of several shapes": read(
        ARRAYS,
        decode=lambda sample, _: {"data": np.zeros(1 + sample.index % 2)},
        postprocess=lambda _: None,
        max_shapes={"data": [2]},
    ),
    "max_shapes of an unknown top": read(
        ARRAYS, postprocess=lambda batch: {"small": batch["data"]}, tops=["small"], max_shapes={"tiny": [3, 4]}
    ),
    "concatenate, no rows of a known shape": boxes(lambda label: [[0.5] * 4] * (label < 3), max_rows=5),
    "concatenate, other axes": boxes(
        lambda label: np.zeros((2, 4 + label % 2), np.float32), max_shapes={"boxes": [2, 5]}
    ),
    "a crop of two kinds": read(IMAGES, transform={"random_resized_crop": 8, "crop_size": 7}),
    "a mask beside a resized crop": read(IMAGES, transform={"random_resized_crop": 8, "crop_beside": ["label"]}),
    "a crop beside a top that there is none of": read(IMAGES, transform={"crop_size": 4, "crop_beside": ["label"]}),
    "a crop beside a label": read(
        {"arrays": {"data": np.zeros((4, 3, 6, 5)), "label": np.arange(4)}},
        transform={"crop_size": 4, "crop_beside": ["label"]},
    ),
    "a crop before decode of no size": read(IMAGES, transform={"crop_before_decode": True}),
    "a crop larger than a volume": read(IMAGES, transform={"crop_size": [2, 9, 4]}),
    "a crop of three axes and a mean file": read(IMAGES, transform={"crop_size": [2, 4, 4], "mean_file": "m.npy"}),
    "a mean file for resized crops": read(IMAGES, transform={"random_resized_crop": 8, "mean_file": "m.npy"}),
    "a scale beyond one": read(IMAGES, transform={"random_resized_crop": {"size": 8, "scale": [0.5, 2]}}),
    "a ratio that falls": read(IMAGES, transform={"random_resized_crop": {"size": 8, "ratio": [2, 1]}}),
    "a misspelt size": read(IMAGES, transform={"random_resized_crop": {"sise": 8}}),
    "a crop of no size": read(IMAGES, transform={"random_resized_crop": 0}),
    "a type that OpenCV cannot resize": read(
        {"arrays": {"data": np.zeros((4, 3, 9, 9), int)}}, transform={"random_resized_crop": 8}
    ),
    "locate, a negative number": asked(lambda reader: reader.locate(-1)),
    "locate, before another batch size": located_before_a_state_of_another_batch_size,
    "locate, a stream": asked(lambda reader: reader.locate(0), StreamSource(records)),
    "exclude, all samples": read(ARRAYS, sampler={"exclude": list(range(8))}),
    "exclude, an unknown sample": read(ARRAYS, sampler={"exclude": [8]}),
    "a rank alone in the environment": lambda _: shard_in_environment({"RANK": "1"}),
    "a world size alone in the environment": lambda _: shard_in_environment({"WORLD_SIZE": "2"}),
    "a word for a rank in the environment": lambda _: shard_in_environment({"RANK": "one", "WORLD_SIZE": "2"}),
    "a rank too many in the environment": lambda _: shard_in_environment({"RANK": "2", "WORLD_SIZE": "2"}),
    "set_weights, no sampler": asked(lambda reader: reader.set_weights(np.ones(10))),
    "a state of another sampler": resumed({"draws": 8}, {"indices": [0, 3]}),
    "a state of another order": resumed({"draws": 8}, {"draws": 9}),
    "a sampler of one rank for two": sharded,
    "an index that a sampler makes up": read(ARRAYS, sampler=out_of_range),
    "a sampler that ends its loader": read(ARRAYS, sampler=exiting, num_loaders=2),
    "a sampler that hangs": read(ARRAYS, sampler=hanging, num_loaders=1, task_timeout_s=1),
}


SCENARIOS: dict[str, Scenario] = {**BATCHES, **OWN}
