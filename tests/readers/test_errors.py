"""Mistakes of newcomers in readers: errors.txt has the words, in setup or with the batch that fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.readers.sharding import shard_in_environment
from blobfeed.workers.base.hooks import HookBatch, Sample
from blobfeed.workers.base.specs import ArraySpec

from blobfeed import BatchReader, Source, StreamSource
from tests.support.catalogue import Catalogue, Scenario
from tests.support.pictures import encoded, picture
from tests.support.reader_data import IMAGE, records, write_hdf5

from .delivery.test_mean_file import MEAN, floats, legacy_shape, new_shape, npy

SAMPLES = 10
ARRAYS = {"arrays": {"data": np.zeros((8, 3, 4), np.uint8), "label": np.arange(8)}}
IMAGES = {"arrays": {"data": np.zeros((2, 3, 6, 5))}}
TRAIN = {"hdf5": {"path": "train.h5"}}


def _files(folder: Path) -> None:
    write_hdf5(folder / "train.h5", SAMPLES)
    with h5py.File(folder / "unequal.h5", "w") as file:
        file["data"], file["label"] = np.zeros((8, 3)), np.arange(7)
    with h5py.File(folder / "names.h5", "w") as file:
        file["name"] = np.array([b"one", b"three"])
    (folder / "pictures").mkdir(exist_ok=True)
    (folder / "pictures" / "a.png").write_bytes(encoded(picture(6, 8), ".png"))
    (folder / "pictures.txt").write_text("pictures/a.png 1\n")
    (folder / "empty").mkdir(exist_ok=True)
    (folder / "empty.npy").touch()


def read(source: Any = TRAIN, **parameters: Any) -> Scenario:
    def scenario(folder: Path) -> Any:
        _files(folder)
        return BatchReader(source, **{"batch_size": 4, "num_loaders": 0, "epochs": 1, "base_dir": folder, **parameters})

    return scenario


def fetch(**parameters: Any) -> Scenario:
    def scenario(folder: Path) -> Any:
        pytest.importorskip("torch")
        from blobfeed.readers.async_reader import AsyncReader

        with h5py.File(folder / "train.h5", "w") as file:
            file["data"], file["labels"] = np.zeros((7, 4, 5, 3), np.float32), np.zeros((7, 2))
        return AsyncReader({"hdf5_path": str(folder / "train.h5"), **parameters})

    return scenario


def h5(**parameters: Any) -> Scenario:
    """An archive of three samples with a number and a name."""

    def scenario(folder: Path) -> Any:
        pytest.importorskip("torch")
        from blobfeed.readers.h5_dataset import H5Dataset

        with h5py.File(folder / "archive.h5", "w") as file:
            for number in range(3):
                file[f"run_{number}"] = np.zeros((2, 3), np.float32)
                file[f"run_{number}"].attrs.update({"number": number, "name": f"run {number}"})
            file["run_2"].attrs["name"] = np.bytes_("ü".encode("latin1"))
        return H5Dataset(**{"h5_paths": "archive.h5", "base_dir": folder, **parameters})

    return scenario


def asked(ask: Callable[[BatchReader], object], source: Any = TRAIN, **parameters: Any) -> Scenario:
    """A question that an open reader refuses."""

    def scenario(folder: Path) -> None:
        with read(source, **parameters)(folder) as reader:
            ask(reader)

    return scenario


def into(**given: Any) -> Scenario:
    """Arrays for the tops, of which some do not fit."""
    fitting = {"data": np.zeros((4, *IMAGE), np.float32), "label": np.zeros(4, np.int64)}
    return asked(lambda reader: reader.into(fitting | given))


def into_tensor(**options: Any) -> Scenario:
    def scenario(folder: Path) -> Any:
        torch = pytest.importorskip("torch")
        kind = {name: getattr(torch, value) if name == "dtype" else value for name, value in options.items()}
        return into(data=torch.zeros(4, *IMAGE, **kind))(folder)

    return scenario


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


def mean(content: bytes | Callable[[Path], object], shape: tuple[int, ...] = MEAN.shape) -> Scenario:
    """A mean file of such content, for samples of such a shape."""

    def scenario(folder: Path) -> Any:
        write = content if callable(content) else lambda path: path.write_bytes(content)
        write(folder / "mean")
        samples = {"arrays": {"data": np.zeros((2, *shape), np.uint8)}}
        return read(samples, transform={"mean_file": "mean"})(folder)

    return scenario


def uneven(make: Callable[[int], dict[str, Any]], largest: list[int], **parameters: Any) -> Scenario:
    """A hook that makes samples of several sizes."""
    return read(
        ARRAYS, decode=lambda sample, _: make(1 + int(sample["label"])), max_shapes={"data": largest}, **parameters
    )


def put(stored: Any, into: str, **transform: Any) -> Scenario:
    """Samples of one type for an array of another one."""
    return asked(
        lambda reader: reader.into({"data": np.zeros(4, into)}), {"arrays": {"data": stored}}, transform=transform
    )


def _of_objects(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.array([[[print]]], object), allow_pickle=True)


def breaks(sample: Sample, _rng: np.random.Generator) -> Sample:
    if os.environ.get("BLOBFEED_ROLE") == "loader":
        breakpoint()  # noqa: T100 - what is tested
    return sample


def boxes(rows: Callable[[int], Any], **parameters: Any) -> Scenario:
    """A hook whose boxes are put end to end."""
    return read(
        ARRAYS, decode=lambda sample, _: {"boxes": rows(int(sample["label"]))}, concatenate="boxes", **parameters
    )


def at(position: int, state_of: int = 8) -> Scenario:
    """A batch behind five that a reader with another batch size has delivered."""

    def scenario(folder: Path) -> object:
        with read(ARRAYS, epochs=None)(folder) as reader:
            list(islice(reader, 5))
            state = reader.state_dict()
        with read(ARRAYS, epochs=None, batch_size=state_of)(folder) as reader:
            reader.load_state_dict(state)
            return reader.locate(position)

    return scenario


def resumed(saved: dict[str, Any], other: dict[str, Any], **changed: Any) -> Scenario:
    """The state of a reader with one sampler in a reader with another one."""

    def scenario(folder: Path) -> None:
        with read(ARRAYS, sampler=saved)(folder) as reader:
            if "weights" in changed:
                reader.set_weights(changed.pop("weights"))
            state = {**reader.state_dict(), **changed}
        with read(ARRAYS, sampler=other)(folder) as reader:
            reader.load_state_dict({name: value for name, value in state.items() if value is not None})

    return scenario


def sharded(folder: Path) -> Any:
    pytest.importorskip("torch")
    from torch.utils.data import DistributedSampler

    samples: Any = range(8)
    half: Any = DistributedSampler(samples, num_replicas=2, rank=0)
    return read(ARRAYS, sampler=half, rank=0, world_size=2)(folder)


class Locked:
    """A hook with something that no process can be sent."""

    def __init__(self) -> None:
        self.lock = Lock()

    def __call__(self, data: Any) -> None: ...


def sends_a_file(folder: Path) -> Any:
    with h5py.File(folder / "x.h5", "w") as opened:
        a = SimpleNamespace(files={"x": [opened]})
        return read(ARRAYS, num_loaders=1, decode=lambda sample, _rng: (a, sample)[1])(folder)


def sends_a_lock(folder: Path) -> Any:
    lock = Lock()

    def postprocess(_batch: object) -> None:
        with lock:
            return

    return read(ARRAYS, num_loaders=1, postprocess=postprocess)(folder)


def out_of_range(epoch: int, samples: int, rng: np.random.Generator) -> list[int]:
    return [3, samples + epoch]


def needs_no_generator(sample: Sample) -> Sample:
    return sample


def in_order(epoch: int, samples: int, rng: np.random.Generator) -> range:
    return range(samples)


def grows(sample: Sample, _rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "data": np.zeros((1 + int(sample["label"]), 4), np.uint8)}


READERS = {
    "no batch": read(batch_size=0),
    "a misspelt parameter": read(batch_sise=2),
    "a longer name": read(decoder=max),
    "an unknown parameter": read(xyz=1),
    "a singular": read(epoch=1),
    "an unknown way to end": read(last_batch="keep"),
    "a batch larger than an epoch": read(last_batch="drop", batch_size=11),
    "no epoch": read(epochs=0),
    "a rank beyond its world": read(rank=2, world_size=2),
    "an unknown device": read(device="gpu"),
    "a number for a hook": read(decode=3),
    "a word for a hook": read(postprocess="f"),
    "a hook without a generator": read(ARRAYS, decode=needs_no_generator),
    "an unknown top": read(tops=["data", "labels"]),
    "a source and a mix": read(mix=[{}]),
    "a start of layers": read(start="at_setup"),
    "copy and no copy": read(delivery="copy", copy=False),
    "view and copy": read(delivery="view", copy=True),
    "no source": read(None),
    "a number for a source": read(3),
    "a list of pictures for a source": read(["cats/0.jpg", "cats/1.jpg"]),
    "a source of no kind": read({}),
    "a source of an unknown kind": read({"hdf6": {}}),
    "a source without its options": read({"hdf5": {}}),
    "an option beside its kind": read({"hdf5": "x.h5", "limit": 5}),
    "options beside their kind": read({"hdf5": Path("x.h5"), "tops": 1, "limit": 2}),
    "a folder of pictures": read("pictures"),
    "a list of pictures": read("pictures.txt"),
    "a glob without a match": read("*.hdf"),
    "a glob in an empty folder": read("empty/*.h5"),
    "unequal lengths": read("unequal.h5"),
    "a type that torch has not": read("names.h5", tops=["name"], device="cpu"),
    "a fraction": read(ARRAYS, transform={"scale": "1/255"}),
    "a fraction of nothing": read(ARRAYS, transform={"scale": "1/0"}),
    "two scales for three channels": read(IMAGES, transform={"scale": [1, 2]}),
    "no scales": read(IMAGES, transform={"scale": []}),
    "a crop wider than a picture": read(IMAGES, transform={"crop_size": [2, 9]}),
    "half a crop": read(IMAGES, transform={"crop_size": [2]}),
    "a crop larger than a picture": read(IMAGES, transform={"crop_size": 7}),
    "a crop larger than the first file": read(
        {"image_list": {"path": "pictures.txt", "max_height": 9}}, transform={"crop_size": 7}
    ),
    "a misspelt balance": read(ARRAYS, sampler={"balance": "lable"}),
    "a misspelt balance of a file": read(sampler={"balance": "lable"}),
    "concatenate, a misspelt top": read(ARRAYS, concatenate="dat", max_rows=3),
    "concatenate, a number for each sample": read(ARRAYS, concatenate="label", max_rows=3),
    "concatenate, nothing": read(ARRAYS, concatenate=[], max_rows=3),
    "concatenate, no rows": read(ARRAYS, concatenate="data", max_rows=0),
    "a sampler over a mix": read(
        None, mix=[{"arrays": {"data": np.zeros((n, 2))}, "weight": 0.5} for n in (2, 98)], sampler={"draws": 100}
    ),
    "a sampler over a stream": read(StreamSource([1] * 9), sampler=in_order),
    "more rows than max_rows": read(ARRAYS, batch_size=1, decode=grows, max_rows=3, concatenate=["data"]),
    "larger than max_shapes": read(ARRAYS, batch_size=1, decode=grows, max_shapes={"data": (3, 4)}),
}

_TWICE = np.zeros(4 * 24, np.float32)
_FIXED = np.zeros((4, *IMAGE), np.float32)
_FIXED.flags.writeable = False

INTO = {
    "a misspelt top": into(dat=_TWICE),
    "nothing": into(label=None),
    "a row too many": into(data=np.zeros((5, *IMAGE), np.float32)),
    "not contiguous": into(data=np.zeros((4, 2, 3, 8), np.float32)[..., ::2]),
    "read-only": into(data=_FIXED),
    "whole numbers for fractions": into(data=np.zeros((4, *IMAGE), np.int64)),
    "one memory for two tops": into(data=_TWICE.reshape(4, *IMAGE), label=_TWICE[:4]),
    "a top without an array": asked(lambda reader: reader.into({"data": _TWICE.reshape(4, *IMAGE)})),
    "a list": asked(lambda reader: reader.into([])),  # type: ignore[arg-type]
    "views": asked(lambda reader: reader.into({}), copy=False),
    "text that would be cut": asked(lambda reader: reader.into({"name": np.zeros(4, "S3")}), "names.h5", tops=["name"]),
    "bfloat16": into_tensor(dtype="bfloat16"),
    "meta": into_tensor(device="meta"),
}

OWN = {
    "specs, tuples": specs(((3,), "uint8")),
    "specs, a method": read(METHOD({})),
    "specs, another byte order": specs(ArraySpec((3,), np.dtype(">i4"))),
    "specs, none": read(Own({})),
    "specs, a list": specs(ArraySpec([3], np.dtype("u1"))),  # type: ignore[arg-type]
    "specs, a negative axis": specs(ArraySpec((-1,), np.dtype("u1"))),
    "specs, a fraction": specs(ArraySpec((3.0,), np.dtype("u1"))),  # type: ignore[arg-type]
    "specs, objects": specs(ArraySpec((3,), np.dtype(object))),
    "fields, misspelt": specs(ArraySpec((3,), np.dtype("u1")), fields=["date"]),
    "fields, misspelt, with a hook": specs(
        ArraySpec((3,), np.dtype("u1")), fields=["date"], decode=lambda s, _: dict(s)
    ),
    "decode, three arrays for two": read(ARRAYS, decode=lambda _sample, _rng: (1, 2, 3)),
    "decode, another shape": decoding(lambda data: data[:2]),
    "decode, another type": decoding(lambda data: data / 2),
    "decode, nothing": decoding(lambda _: None),
    "decode, another shape in a loader": decoding(lambda data: data[:2], num_loaders=1),
    "decode, another type in a loader": decoding(lambda data: data / 2, num_loaders=1),
    "decode, nothing in a loader": decoding(lambda _: None, num_loaders=1),
    "decode, a breakpoint in a loader": read(ARRAYS, decode=breaks, num_loaders=1),
    "decode, an open file": sends_a_file,
    "postprocess, a lock": sends_a_lock,
    "postprocess, a fraction": later(lambda batch: {"new": batch["label"] + 0.5}),
    "postprocess, a large fraction": later(lambda batch: {"new": batch["label"].astype(np.float64) * 1e30}),
    "postprocess, another shape": later(lambda batch: {"new": batch["data"]}),
    "postprocess, a top less": later(lambda _: {}),
    "postprocess, a number": later(lambda _: 7),
    "postprocess, a masked array": later(lambda batch: {"new": np.ma.masked_array(batch["label"])}),
    "postprocess, a list of nothing": later(lambda _: {"new": [None] * 4}),
    "postprocess, an error": later(lambda _: 1 // 0),
    "postprocess, an error where samples are replaced": later(lambda _: 1 // 0, on_error="replace"),
    "postprocess, an error in a loader": later(lambda _: 1 // 0, num_loaders=1),
    "postprocess, an error in a loader where samples are replaced": later(
        lambda _: 1 // 0, num_loaders=1, on_error="replace"
    ),
    "postprocess, more digits than a float has": read(
        ARRAYS, postprocess=lambda batch: {"new": batch["label"] + 2**53 if 5 in batch["label"] else batch["label"] / 2}
    ),
    "postprocess, a number for all rows": read(ARRAYS, postprocess=lambda _: {"data": 3}),
    "postprocess, a scalar for all rows": read(ARRAYS, postprocess=lambda _: {"data": np.float32(1)}),
    "postprocess, too few rows": read(ARRAYS, postprocess=lambda _: {"data": np.zeros(3)}),
    "postprocess, one number later": reshaped(1),
    "postprocess, larger later": reshaped(np.zeros((4, 4, 4), np.uint8)),
    "postprocess, fewer axes later": reshaped(np.zeros((4, 3), np.uint8)),
    "postprocess, fewer rows later": reshaped(np.zeros((3, 3, 4), np.uint8)),
    "postprocess, one number later, of up to": reshaped(1, max_shapes={"data": [3, 4]}),
    "postprocess, larger later, of up to": reshaped(np.zeros((4, 4, 4), np.uint8), max_shapes={"data": [3, 4]}),
    "postprocess, fewer axes later, of up to": reshaped(np.zeros((4, 3), np.uint8), max_shapes={"data": [3, 4]}),
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
    "concatenate, rows where there were none": boxes(lambda label: [[0.5] * 4] * (label >= 3), max_rows=5),
    "concatenate, more rows than declared": boxes(lambda label: np.zeros((label, 5), np.float32), max_rows=4),
    "concatenate, other axes": boxes(
        lambda label: np.zeros((2, 4 + label % 2), np.float32), max_shapes={"boxes": [2, 5]}
    ),
    "a crop of two kinds": read(IMAGES, transform={"random_resized_crop": 8, "crop_size": 7}),
    "a mean file for resized crops": read(IMAGES, transform={"random_resized_crop": 8, "mean_file": "m.npy"}),
    "a scale beyond one": read(IMAGES, transform={"random_resized_crop": {"size": 8, "scale": [0.5, 2]}}),
    "a ratio that falls": read(IMAGES, transform={"random_resized_crop": {"size": 8, "ratio": [2, 1]}}),
    "a misspelt size": read(IMAGES, transform={"random_resized_crop": {"sise": 8}}),
    "a crop of no size": read(IMAGES, transform={"random_resized_crop": 0}),
    "a type that OpenCV cannot resize": read(
        {"arrays": {"data": np.zeros((4, 3, 9, 9), int)}}, transform={"random_resized_crop": 8}
    ),
    "locate, a negative number": asked(lambda reader: reader.locate(-1)),
    "locate, before another batch size": at(3),
    "locate, a stream": asked(lambda reader: reader.locate(0), StreamSource(records)),
    "exclude, all samples": read(ARRAYS, sampler={"exclude": list(range(8))}),
    "exclude, an unknown sample": read(ARRAYS, sampler={"exclude": [8]}),
    "half a shard": read(rank=1),
    "a rank alone in the environment": lambda _: shard_in_environment({"RANK": "1"}),
    "a world size alone in the environment": lambda _: shard_in_environment({"WORLD_SIZE": "2"}),
    "a word for a rank in the environment": lambda _: shard_in_environment({"RANK": "one", "WORLD_SIZE": "2"}),
    "a rank too many in the environment": lambda _: shard_in_environment({"RANK": "2", "WORLD_SIZE": "2"}),
    "set_weights, no sampler": asked(lambda reader: reader.set_weights(np.ones(10))),
    "set_weights, a list of indices": asked(lambda reader: reader.set_weights(np.ones(8)), ARRAYS, sampler=[0, 3]),
    "set_weights, too few": asked(lambda reader: reader.set_weights([1, 2]), ARRAYS, sampler={"draws": 8}),
    "a state of another sampler": resumed({"draws": 8}, {"indices": [0, 3]}),
    "a state of another order": resumed({"draws": 8}, {"draws": 9}),
    "a state of another order and new weights": resumed({"draws": 8}, {"draws": 9}, weights=np.arange(8)),
    "a state of an earlier version": resumed({"indices": [0, 3]}, {"indices": [0, 3]}, version=1, order=None),
    "a sampler of one rank for two": sharded,
    "a sampler with no full batch": read(ARRAYS, sampler={"indices": [0, 3]}, last_batch="drop"),
    "an index that a sampler makes up": read(ARRAYS, sampler=out_of_range),
}

_MEAN_BEFORE = npy(np.zeros((2, 6, 7), np.float32))

DELIVERED = {
    "mean file, empty": mean(b""),
    "mean file, text": mean(b"no such thing"),
    "mean file, cut": mean(legacy_shape(1, 2, 3, 4) + floats(MEAN)[:-3]),
    "mean file, another shape than its numbers": mean(legacy_shape(1, 2, 3, 5) + floats(MEAN)),
    "mean file, a shape alone": mean(new_shape(2, 3, 4)),
    "mean file, two axes": mean(new_shape(2, 12) + floats(MEAN)),
    "mean file, several images": mean(new_shape(2, 1, 3, 4) + floats(MEAN)),
    "mean file, a cut array": mean(npy(MEAN)[:-1]),
    "mean file, one channel": mean(npy(MEAN[0])),
    "mean file, no channel": mean(npy(np.zeros((0, 3, 4)))),
    "mean file, complex": mean(npy(np.zeros((1, 2, 3), "c16"))),
    "mean file, no number": mean(npy(np.full((1, 2, 3), np.nan))),
    "mean file, half a header": mean(b"\x93NUMPY\x01\x00" + bytes(10)),
    "mean file, objects": mean(_of_objects),
    "mean file, absent": mean(lambda path: None),
    "mean file, a FIFO": mean(os.mkfifo),
    "mean file, samples of more channels": mean(_MEAN_BEFORE, (3, 4, 4)),
    "mean file, higher samples": mean(_MEAN_BEFORE, (2, 7, 7)),
    "mean file, wider samples": mean(_MEAN_BEFORE, (2, 6, 8)),
    "mean file, samples of two axes": mean(_MEAN_BEFORE, (2, 6)),
    "mean file, single numbers": mean(_MEAN_BEFORE, ()),
    "mean file, samples of several sizes": uneven(
        lambda rows: {"data": np.zeros((3, rows, 4))}, [3, 8, 4], pad={}, transform={"mean_file": "mean.npy"}
    ),
    "two means for three channels": read(IMAGES, transform={"mean_value": [1, 2]}),
    "a scale of text": read("names.h5", tops=["name"], transform={"scale": 0.5}),
    "pad, a misspelt top": uneven(lambda rows: {"data": np.zeros(rows)}, [8], pad={"value": {"dat": 1}}),
    "pad, a top of one size": uneven(
        lambda rows: {"data": np.zeros(rows), "label": rows}, [8], pad={"value": {"label": 1}}
    ),
    "pad, times": uneven(lambda rows: {"data": np.zeros(rows, "M8[s]")}, [8], pad={}),
    "pad, a top that is called like its lengths": uneven(
        lambda rows: {"data": np.zeros(rows), "data_lengths": rows}, [8], pad={}
    ),
    "no pad": uneven(lambda rows: {"data": np.zeros((rows, 4))}, [8, 4]),
    "into, whole numbers for what is scaled": put(np.arange(8, dtype=np.uint8), "int64", scale=0.5),
    "into, whole numbers for what has a mean": put(np.arange(8, dtype=np.uint8), "int64", mean_value=1),
    "into, real numbers for complex ones": put(np.zeros(8, np.complex64), "float32"),
}

ARCHIVES: dict[str, dict[str, Any]] = {
    "absent": {"h5_paths": "none.h5"},
    "a glob without a match": {"h5_paths": "*.hdf"},
    "a misspelt label": {"labels": ["nmae"]},
    "an unknown group": {"groups": "tests"},
    "no samples": {"limit": 0},
    "a number for a hook": {"transform": 3},
    "a label called data": {"labels": ["data"]},
    "a data set called labels": {"datasets": ["labels"], "labels": []},
    "a misspelt parameter": {"index_cash": "x"},
    "a label in latin1": {},
}

SAMPLERS: dict[str, dict[str, Any]] = {
    "and shuffle": {"sampler": in_order, "shuffle": True},
    "and rand_skip": {"sampler": in_order, "rand_skip": 3},
    "and batch_sampler": {"sampler": in_order, "batch_sampler": in_order},
    "a number": {"sampler": 3},
    "an iterator": {"sampler": iter([3])},
    "a mapping for batches": {"batch_sampler": {"draws": 3}},
    "no batches": {"batch_sampler": []},
    "no samples": {"sampler": frozenset()},
    "a misspelt way": {"sampler": {"weight": [1]}},
    "no way": {"sampler": {}},
    "two ways": {"sampler": {"weights": [1] * 8, "balance": "label"}},
    "two weights": {"sampler": {"weights": [1, 2]}},
    "weights in no file": {"sampler": {"weights": "none.npy"}},
    "weights of an unknown user": {"sampler": {"weights": "~nobody-here/w.npy"}},
    "weights in an empty file": {"sampler": {"weights": "empty.npy"}},
    "indices in an empty file": {"sampler": {"indices": "empty.npy"}},
    "an index beyond the samples": {"sampler": {"indices": [1, 8]}},
    "fractions": {"sampler": [0.5]},
    "an unknown field": {"sampler": {"balance": "class"}},
    "a field of pictures": {"sampler": {"balance": "data"}},
}


FETCHED: dict[str, dict[str, Any]] = {
    "absent": {"hdf5_path": "/none.h5"},
    "no batch": {"batch_size": 0},
    "two names for the batch size": {"batch_size": 2, "batchSize": 3},
    "no jobs": {"njob": 0},
    "a word for threads": {"nthread": "two"},
    "dimensions at one place": {"num_dim": 4},
    "a fifth dimension": {"h_dim": 5},
    "a misspelt field": {"data_field": "date"},
    "an unknown field": {"labels_field": "lab"},
    "one field for both": {"data_field": "labels"},
    "fields exchanged": {"data_field": "labels", "labels_field": "data"},
    "a number for a hook": {"postprocess": 7},
    "a hook that cannot be sent": {"postprocess": Locked()},
    "a misspelt parameter": {"suffle": True},
    "no path": {"hdf5_path": None},
}


def _use(made: Any) -> None:
    with closing(made):
        for _ in made:
            pass


ERRORS = Catalogue(
    Path(__file__).with_name("errors.txt"),
    {
        **READERS,
        **{f"sampler, {name}": read(ARRAYS, **given) for name, given in SAMPLERS.items()},
        **{f"AsyncReader, {name}": fetch(**given) for name, given in FETCHED.items()},
        **{f"into, {name}": scenario for name, scenario in INTO.items()},
        **OWN,
        **DELIVERED,
        **{f"H5Dataset, {name}": h5(**given) for name, given in ARCHIVES.items()},
    },
    _use,
)


@pytest.fixture(autouse=True)
def _no_other_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.parametrize("name", ERRORS.scenarios)
def test_the_error_is_the_one_in_the_catalogue(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    ERRORS.check(name, tmp_path, update=pytestconfig.getoption("--update"))


def test_the_catalogue_has_these_scenarios_and_no_others() -> None:
    ERRORS.check_names()
