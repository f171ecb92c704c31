"""Samplers over sources of all kinds, beside bad samples and hooks."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest

from blobfeed import BatchReader, Sample
from tests.support.part import some_of
from tests.support.reader_data import write_hdf5

from .sampling import BATCH, SAMPLES, SUBSET, read


def test_files_and_labels_come_from_where_the_source_does(tmp_path: Path) -> None:
    spec = write_hdf5(tmp_path / "train.h5", SAMPLES)
    np.save(tmp_path / "some.npy", SUBSET)
    (tmp_path / "some.txt").write_text("\n".join(map(str, SUBSET)))
    for name in ("some.npy", "some.txt"):
        settings: dict[str, Any] = {"batch_size": BATCH, "epochs": 1, "last_batch": "partial", "num_loaders": 0}
        with BatchReader(spec, sampler={"indices": name}, base_dir=tmp_path, **settings) as reader:
            assert np.concatenate([batch.indices for batch in reader]).tolist() == SUBSET.tolist()


def test_labels_of_any_source_can_be_balanced_and_need_be_no_top(tmp_path: Path) -> None:
    data, label = np.arange(SAMPLES), np.array([0] * 50 + [1] * 10)
    with h5py.File(tmp_path / "train.h5", "w") as file:
        file["data"], file["label"] = data, label.astype(np.float32)
    np.savez(tmp_path / "train.npz", data=data, label=label)
    arrays = {"arrays": {"data": data, "label": label}}
    hdf5, npz = {"hdf5": {"path": str(tmp_path / "train.h5")}}, {"npz": {"path": str(tmp_path / "train.npz")}}
    settings: dict[str, Any] = {"batch_size": 10, "epochs": 1, "tops": "data", "num_loaders": 0}
    for given in (hdf5, arrays, npz, {"concat": [hdf5, hdf5]}, {"concat": [arrays, npz]}):
        with BatchReader(given, **settings, sampler={"balance": "label", "draws": 40}) as reader:
            found = np.concatenate([batch["data"] for batch in reader])
        assert np.bincount(label[found]).tolist() == [20, 20]


@pytest.mark.parametrize("dtype", ["U5", "S5"])
def test_classes_that_are_names_can_be_balanced(dtype: str) -> None:
    names = np.array(["rare"] * 5 + ["often"] * 55, dtype)
    source = {"arrays": {"data": np.arange(60), "name": names}}
    with BatchReader(source, batch_size=10, epochs=1, num_loaders=0, sampler={"balance": "name"}) as reader:
        found = np.concatenate([batch["name"] for batch in reader])
    assert np.count_nonzero(found == names[0]) == 30


def bad_at_zero(sample: Sample, rng: np.random.Generator) -> Any:
    if sample.index == 0:
        raise ZeroDivisionError
    return {"label": sample["label"]}


@pytest.mark.parametrize(
    "given",
    [
        {"sampler": {"indices": [3, 5, 7, 9]}},
        {"sampler": {"weights": [0] * 5 + [1] * 55}},
        {"sampler": lambda epoch, samples, rng: np.arange(1, samples)},
        {"batch_sampler": [[5, 3], [7]]},
    ],
    ids=["indices", "weights", "a function", "batches"],
)
def test_a_bad_sample_that_the_sampler_leaves_out_is_nobodys_business(given: dict[str, Any]) -> None:
    with read(decode=bad_at_zero, **given) as reader:
        assert 0 not in chain(*(batch["label"].tolist() for batch in reader))


def test_a_bad_sample_that_the_sampler_begins_with_is_told_in_setup() -> None:
    with pytest.raises(ZeroDivisionError):
        read(sampler={"indices": [0, 3]}, decode=bad_at_zero)


def _noise(sample: Sample, rng: np.random.Generator) -> dict[str, Any]:
    return {"noise": np.array([sample.index, rng.integers(2**62), np.random.randint(2**31)])}  # noqa: NPY002


@pytest.mark.parametrize("num_loaders", some_of([0, 2], 2))
def test_copies_of_a_sample_have_random_numbers_of_their_own(num_loaders: int) -> None:
    """The first copy has those of the sample in any other order."""
    drawn = [3, 1, 3, 3, 1, 0, 2, 3, 9, 9, 9]
    with read(last_batch="partial", decode=_noise) as reader:
        by_sample = np.concatenate([batch["noise"] for batch in reader])
    values = {"last_batch": "partial", "decode": _noise, "sampler": drawn, "num_loaders": num_loaders}
    with read(**values) as reader:
        rows = [batch["noise"] for batch in islice(reader, 1)]
        state = reader.state_dict()
    with read(**values) as reader:
        reader.load_state_dict(state)
        rows = np.concatenate([*rows, *(batch["noise"] for batch in reader)]).tolist()
    assert [row[0] for row in rows] == drawn
    for index in set(drawn):
        copies = [row for row in rows if row[0] == index]
        assert copies[0] == by_sample[index].tolist()
        assert len({row[1] for row in copies}) == len({row[2] for row in copies}) == len(copies)
