"""Mistakes in layers and their harness: errors.txt has the words, in setup or with the forward that fails."""

from __future__ import annotations

import threading
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.layers.harness import make_layer
from blobfeed.layers.standin import Blob, BlobVector

from blobfeed import BatchReader, HDF5InputLayer, LayerHarness, MultiProcessInputLayer, NpyInputLayer
from tests.support.catalogue import Catalogue, Scenario
from tests.support.standin_files import write_hdf5, write_images


def layer(kind: type[MultiProcessInputLayer] = MultiProcessInputLayer, tops: Any = None, **values: Any) -> Scenario:
    """A layer over twenty images."""

    def scenario(folder: Path) -> LayerHarness[Any]:
        write_images(folder / "train.h5")
        given = {"source": {"hdf5": {"path": "train.h5"}}, "batch_size": 4, "num_loaders": 0, **values}
        return LayerHarness(kind, given, tops=tops, base_dir=folder)

    return scenario


def extra(default: Any, **values: Any) -> Scenario:
    """A layer with the extra parameter `odd`."""
    return layer(type("Odd", (MultiProcessInputLayer,), {"extra_parameters": {"odd": default, "gain": 1.0}}), **values)


def decoding(label: Any) -> Scenario:
    """A layer whose decode gives such a label."""
    return layer(type("Names", (MultiProcessInputLayer,), {"decode": lambda _self, sample, _rng: {**sample, **label}}))


def text(kind: type[MultiProcessInputLayer], param_str: str) -> Scenario:
    return lambda folder: LayerHarness(kind, param_str, base_dir=folder)


def holding(**datasets: Any) -> Scenario:
    """A layer over such values; the first forward succeeds."""

    def scenario(folder: Path) -> LayerHarness[Any]:
        write_hdf5(folder / "x.h5", **datasets)
        values = {"source": {"hdf5": {"path": "x.h5"}}, "batch_size": 2, "num_loaders": 0}
        harness = LayerHarness(MultiProcessInputLayer, values, base_dir=folder)
        harness.forward()
        return harness

    return scenario


def sides(folder: Path) -> object:
    np.savez(folder / "sides.npz", left=np.zeros((4, 2)), right=np.zeros((4, 2)))
    return LayerHarness(
        MultiProcessInputLayer, "{source: {npz: sides.npz}, batch_size: 2}", tops=["a", "b"], base_dir=folder
    )


def over(use: Any, **values: Any) -> Scenario:
    """`use` of a layer that is set up."""

    def scenario(folder: Path) -> object:
        with layer(**values)(folder) as harness:
            return use(harness)

    return scenario


class HasALock(MultiProcessInputLayer):
    def setup(self, bottom: Any, top: Any) -> None:
        self.fine = [1, 2]
        self.guard = threading.Lock()
        super().setup(bottom, top)

    def decode(self, sample: Any, rng: np.random.Generator) -> object:
        return dict(sample)


class ByteOrder(Enum):
    LITTLE = "<"
    BIG = ">"


def in_order(_self: object, epoch: int, samples: int, rng: np.random.Generator) -> range:
    return range(samples)


def three(shard: int, shards: int) -> list[float]:
    return [float(shard), 2.5, 3.5]


STREAM: dict[str, Any] = {"source": {"stream": {"make": f"{__name__}:three", "shards": 2}}, "tops": "data"}


def in_pycaffe(**values: Any) -> Scenario:
    """A layer that Caffe itself has made, in a program that is not its command."""
    return layer(type("Caffes", (MultiProcessInputLayer,), {"_is_caffes": True}), **values)


def restoring(snapshot: Path | str | int, **values: Any) -> Scenario:
    return over(lambda harness: harness.layer.restore(snapshot), **values)


SCENARIOS: dict[str, Scenario] = {
    "one top too few": layer(tops=["data"]),
    "two tops too few": layer(tops=["data"], concatenate=["data"]),
    "one top too many": layer(tops=list("abc")),
    "two tops of unknown order": sides,
    "a misspelt parameter": layer(batchsize=3),
    "no batch": layer(batch_size=0),
    "a batch larger than an epoch": layer(batch_size=50, last_batch="drop"),
    "view": layer(delivery="view"),
    "a device": layer(device="cuda:7"),
    "more rows than can be counted": layer(batch_size=10**12),
    "more rows than a number holds": layer(batch_size=10**30),
    "a bottom": over(lambda harness: harness.layer.setup(BlobVector([Blob()]), BlobVector([Blob(), Blob()]))),
    "a reshape without a setup": lambda _: make_layer(MultiProcessInputLayer, "", 0).reshape(*[BlobVector([])] * 2),
    "no mapping": text(MultiProcessInputLayer, "3"),
    "a phase of torch": lambda folder: LayerHarness(MultiProcessInputLayer, {}, phase="train"),
    "an attribute that cannot be sent": layer(HasALock, num_loaders=1),
    "a label of text": decoding({"label": np.str_("cat")}),
    "a complex label": decoding({"label": np.complex64(1j)}),
    "a label that float32 cannot hold": holding(data=np.zeros((4, 2)), label=np.array([1, 2**24, 2**24 + 1, 4])),
    "a value beyond float32": holding(data=np.array([[1, 1], [1, 1], [1, 1e300], [1, 1]]), label=np.arange(4)),
    "a setting that is taken": layer(type("Clashes", (MultiProcessInputLayer,), {"extra_parameters": {"seed": 1}})),
    "two samplers": layer(type("Own", (MultiProcessInputLayer,), {"sampler": in_order}), sampler={"draws": 3}),
    "a word for a whole number": extra(2, odd="far"),
    "a fraction for a whole number": extra(2, odd=1.5),
    "a list for a number": extra(2, gain=[1]),
    "a misspelt setting": extra(2, gian=1),
    "a list for an array": extra(np.zeros(9), odd=[1]),
    "text for bytes": extra(b"a", odd="QUJD"),
    "a number for a path": extra(Path("a"), odd=3),
    "a name for an Enum": extra(ByteOrder.BIG, odd="big"),
    "ready-made, a misspelt parameter": text(HDF5InputLayer, "{path: x, batchsize: 4}"),
    "ready-made, a misspelt option": text(HDF5InputLayer, "{paht: x, batch_size: 4}"),
    "ready-made, no path": text(HDF5InputLayer, "{batch_size: 4}"),
    "ready-made, a source of its own": text(HDF5InputLayer, "{path: x, batch_size: 4, source: {hdf5: {}}}"),
    "ready-made, a word for a source": text(HDF5InputLayer, "{path: x, source: y, batch_size: 4}"),
    "npy, a misspelt parameter": text(NpyInputLayer, "{data: x.npy, batchsize: 4}"),
    "npy, no files": text(NpyInputLayer, "{batch_size: 4}"),
    "harness, a batch of nothing": over(lambda harness: harness.postprocess([])),
    "harness, batches of no sampler": over(lambda harness: harness.batch_sampler()),
    "harness, the order of a stream": over(lambda harness: harness.sampler(), **STREAM),
    "resume in pycaffe": in_pycaffe(resume="snapshot"),
    "resume behind the end": layer(resume=9, epochs=1),
    "resume of a stream": layer(resume=3, **STREAM),
    "resume of a reader": lambda folder: BatchReader({"arrays": {"x": [1]}}, batch_size=1, resume=3),  # type: ignore[call-arg]
    "restore, a copy under another name": restoring("best.solverstate"),
    "restore, below the start": restoring(-1),
}


def _use(made: Any) -> None:
    with made:
        for _ in range(6):
            made.forward()


ERRORS = Catalogue(Path(__file__).with_name("errors.txt"), SCENARIOS, _use)


@pytest.mark.parametrize("name", ERRORS.scenarios)
def test_the_error_is_the_one_in_the_catalogue(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    ERRORS.check(name, tmp_path, update=pytestconfig.getoption("--update"))


def test_the_catalogue_has_these_scenarios_and_no_others() -> None:
    ERRORS.check_names()
