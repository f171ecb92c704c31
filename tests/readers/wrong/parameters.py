"""Parameters and sources that readers refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest

from blobfeed import BatchReader, Sample, StreamSource
from tests.support.catalogue import Scenario, scenario
from tests.support.pictures import encoded, picture
from tests.support.reader_data import write_hdf5

SAMPLES = 10
ARRAYS = {"arrays": {"data": np.zeros((8, 3, 4), np.uint8), "label": np.arange(8)}}
IMAGES = {"arrays": {"data": np.zeros((2, 3, 6, 5))}}
TRAIN = {"hdf5": {"path": "train.h5"}}


def _files(folder: Path) -> None:
    write_hdf5(folder / "train.h5", SAMPLES)
    with h5py.File(folder / "names.h5", "w") as file:
        file["name"] = np.array([b"one", b"three"])
    with h5py.File(folder / "sides.h5", "w") as file:
        file["left"], file["right"] = np.zeros((8, 3)), np.zeros((8, 3))
    (folder / "pictures").mkdir(exist_ok=True)
    (folder / "pictures" / "a.png").write_bytes(encoded(picture(6, 8), ".png"))
    (folder / "pictures.txt").write_text("pictures/a.png 1\n")
    (folder / "empty.npy").touch()


@scenario
def read(folder: Path, /, source: Any = TRAIN, **parameters: Any) -> Any:
    _files(folder)
    return BatchReader(source, **{"batch_size": 4, "num_loaders": 0, "epochs": 1, "base_dir": folder, **parameters})


@scenario
def asked(folder: Path, /, ask: Callable[[BatchReader], object], source: Any = TRAIN, **parameters: Any) -> None:
    """A question that an open reader refuses."""
    with read(source, **parameters)(folder) as reader:
        ask(reader)


@scenario
def fetch(folder: Path, /, **parameters: Any) -> Any:
    pytest.importorskip("torch")
    from blobfeed import AsyncReader

    with h5py.File(folder / "train.h5", "w") as file:
        file["data"], file["labels"] = np.zeros((7, 4, 5, 3), np.float32), np.zeros((7, 2))
    return AsyncReader({"hdf5_path": str(folder / "train.h5"), **parameters})


@scenario
def fetched(folder: Path, /, use: Callable[[Any], object], **parameters: Any) -> None:
    """A call of AsyncReader's that comes too early."""
    with fetch(nthread=0, **parameters)(folder) as reader:
        use(reader)


@scenario
def h5(folder: Path, /, **parameters: Any) -> Any:
    """An archive of three samples with a number and a name."""
    pytest.importorskip("torch")
    from blobfeed import H5Dataset

    with h5py.File(folder / "archive.h5", "w") as file:
        for number in range(3):
            file[f"run_{number}"] = np.zeros((2, 3), np.float32)
            file[f"run_{number}"].attrs.update({"number": number, "name": f"run {number}"})
        file["run_2"].attrs["name"] = np.bytes_("ü".encode("latin1"))
    with h5py.File(folder / "text.h5", "w") as file:
        file["run_0"] = np.array([b"left", b"right"])
    return H5Dataset(**{"h5_paths": "archive.h5", "base_dir": folder, **parameters})


def needs_no_generator(sample: Sample) -> Sample:
    return sample


def in_order(epoch: int, samples: int, rng: np.random.Generator) -> range:
    return range(samples)


def grows(sample: Sample, _rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "data": np.zeros((1 + int(sample["label"]), 4), np.uint8)}


READERS = {
    "an unknown parameter": read(xyz=1),
    "an unknown device": read(device="gpu"),
    "a number for a hook": read(decode=3),
    "a word for a hook": read(postprocess="f"),
    "a hook without a generator": read(ARRAYS, decode=needs_no_generator),
    "an unknown top": read(tops=["data", "labels"]),
    "a delivery": read(delivery="view"),
    "a list of pictures for a source": read(["cats/0.jpg", "cats/1.jpg"]),
    "an option beside its kind": read({"hdf5": "x.h5", "limit": 5}),
    "options beside their kind": read({"hdf5": Path("x.h5"), "tops": 1, "limit": 2}),
    "a list of pictures": read("pictures.txt"),
    "a glob without a match": read("*.hdf"),
    "a type that torch has not": read("names.h5", tops=["name"], device="cpu"),
    "a fraction": read(ARRAYS, transform={"scale": "1/255"}),
    "no scales": read(IMAGES, transform={"scale": []}),
    "a crop wider than a picture": read(IMAGES, transform={"crop_size": [2, 9]}),
    "half a crop": read(IMAGES, transform={"crop_size": [2]}),
    "a crop larger than a picture": read(IMAGES, transform={"crop_size": 7}),
    "a crop larger than the first file": read(
        {"image_list": {"path": "pictures.txt", "max_height": 9}}, transform={"crop_size": 7}
    ),
    "tuples of unknown order": read("sides.h5", tuples=True),
    "a transform of unknown order": read("sides.h5", transform={"scale": 2.0}),
    "a decode of unknown order": read("sides.h5", decode=lambda sample, rng: (sample["left"], sample["right"])),
    "a top that decode makes and tops leave out": read(
        ARRAYS, decode=lambda sample, rng: {**sample, "mask": sample["data"] > 0}, tops=["data", "label"]
    ),
    "a top that postprocess makes and tops leave out": read(
        ARRAYS, postprocess=lambda batch: {"mask": batch["data"] > 0}, tops=["data", "label"]
    ),
    "gray of RGB": read({"image_list": {"path": "pictures.txt", "max_height": 9}}, transform={"force_gray": True}),
    "a misspelt balance": read(ARRAYS, sampler={"balance": "lable"}),
    "a misspelt balance of a file": read(sampler={"balance": "lable"}),
    "concatenate, a misspelt top": read(ARRAYS, concatenate="dat", max_rows=3),
    "concatenate, a number for each sample": read(ARRAYS, concatenate="label", max_rows=3),
    "concatenate, nothing": read(ARRAYS, concatenate=[], max_rows=3),
    "a sampler over a mix": read(
        None, mix=[{"arrays": {"data": np.zeros((n, 2))}, "weight": 0.5} for n in (2, 98)], sampler={"draws": 100}
    ),
    "a sampler over a stream": read(StreamSource([1] * 9), sampler=in_order),
    "more rows than max_rows": read(ARRAYS, batch_size=1, decode=grows, max_rows=3, concatenate=["data"]),
    "larger than max_shapes": read(ARRAYS, batch_size=1, decode=grows, max_shapes={"data": (3, 4)}),
}
ARCHIVES: dict[str, dict[str, Any]] = {
    "absent": {"h5_paths": "none.h5"},
    "no paths": {"h5_paths": []},
    "a glob without a match": {"h5_paths": "*.hdf"},
    "a misspelt label": {"labels": ["nmae"]},
    "an unknown group": {"groups": "tests"},
    "a label called data": {"labels": ["data"]},
    "a data set called labels": {"datasets": ["labels"], "labels": []},
    "a misspelt parameter": {"lable": "x"},
    "a label in latin1": {},
    "a data set of text": {"h5_paths": "text.h5"},
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
    "weights in no file": {"sampler": {"weights": "none.npy"}},
    "indices in an empty file": {"sampler": {"indices": "empty.npy"}},
    "an index beyond the samples": {"sampler": {"indices": [1, 8]}},
    "fractions": {"sampler": [0.5]},
    "a field of pictures": {"sampler": {"balance": "data"}},
}
FETCHED: dict[str, dict[str, Any]] = {
    "absent": {"hdf5_path": "/none.h5"},
    "two names for the batch size": {"batch_size": 2, "batchSize": 3},
    "dimensions at one place": {"num_dim": 4},
    "a fifth dimension": {"h_dim": 5},
    "a misspelt field": {"data_field": "date"},
    "one field for both": {"data_field": "labels"},
    "fields exchanged": {"data_field": "labels", "labels_field": "data"},
    "a misspelt parameter": {"suffle": True},
    "no path": {"hdf5_path": None},
}


SCENARIOS: dict[str, Scenario] = {
    **READERS,
    **{f"sampler, {name}": read(ARRAYS, **given) for name, given in SAMPLERS.items()},
    **{f"AsyncReader, {name}": fetch(**given) for name, given in FETCHED.items()},
    "AsyncReader, a batch before its fetch": fetched(lambda reader: reader.get_next_batch()),
    "AsyncReader, more fetches than njob": fetched(lambda reader: [reader.fetch_data() for _ in range(3)], njob=2),
    **{f"H5Dataset, {name}": h5(**given) for name, given in ARCHIVES.items()},
}
