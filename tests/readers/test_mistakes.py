"""Mistakes that newcomers make, and what the errors say: the thing, what was expected, what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest

from blobfeed import BatchReader, BlobfeedError, ParameterError, Sample, SampleError, SampleTooLargeError
from tests.support.pictures import encoded, picture

LABELS = np.arange(8)
ARRAYS = {"arrays": {"data": np.zeros((8, 3, 4), np.uint8), "label": LABELS}}


def needs_no_generator(sample: Sample) -> Sample:
    return sample


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["data"], file["label"] = np.zeros((8, 3)), LABELS
    with h5py.File(tmp_path / "unequal.h5", "w") as file:
        file["data"], file["label"] = np.zeros((8, 3)), LABELS[1:]
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(encoded(picture(6, 8), ".png"))
    (tmp_path / "pictures.txt").write_text("pictures/a.png 1\n")
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("source", "others", "says"),
    [
        ({"hdf5": "x.h5", "limit": 5}, {}, r"'limit' belongs inside .* 'hdf5': \{'hdf5': \{'limit': 5, 'path': 'x.h5'"),
        ({"hdf5": Path("x.h5"), "tops": 1, "limit": 2}, {}, r"'tops', 'limit' belong inside the options of 'hdf5'"),
        (
            "pictures",
            {},
            r"pictures' is no regular file.*pictures are \{image_list: \{path: train.txt\}\}, a text file",
        ),
        ("pictures.txt", {}, r"line 1 names a picture, 'pictures/a.png 1': pictures are \{image_list: "),
        ("*.hdf", {}, r"no file matches .*; the folder '.*' holds empty, pictures, pictures.txt, unequal.h5, x.h5$"),
        ("empty/*.h5", {}, r"no file matches .*; the folder '.*empty' is empty$"),
        ("unequal.h5", {}, r"data has 8, label has 7.*: name those of one length in 'tops'$"),
        (ARRAYS, {"transform": {"scale": "1/255"}}, rf"scale' is '1/255': .*; write 1/255 as {1 / 255!r}$"),
        (ARRAYS, {"transform": {"scale": "1/0"}}, r"each item a number$"),
        (ARRAYS, {"decode": needs_no_generator}, r"decode is needs_no_generator\(.*: expected decode\(sample, rng\)"),
        (
            ARRAYS,
            {"sampler": {"balance": "lable"}},
            r"sampler.balance is 'lable' \(did you mean 'label'\?\): expected a",
        ),
        (
            "x.h5",
            {"sampler": {"balance": "lable"}},
            r"sampler.balance is 'lable' \(did you mean 'label'\?\): expected a",
        ),
        (ARRAYS, {"epoch": 1}, r"'epoch' \(did you mean 'epochs'\?\); the nearest known ones are epochs(, \w+){4}$"),
        (ARRAYS, {"xyz": 1}, r"unknown parameter 'xyz'; the known ones are source, .*metrics"),
    ],
)
def test_a_mistake_says_what_was_expected(folder: Path, source: Any, others: dict[str, Any], says: str) -> None:
    with pytest.raises(BlobfeedError, match=says):
        BatchReader(source, batch_size=4, base_dir=folder, **others)


def test_a_name_that_a_batch_or_a_sample_lacks_is_named_beside_those_that_it_has() -> None:
    with BatchReader(ARRAYS, batch_size=4, num_loaders=0) as reader:
        batch = next(iter(reader))
    with pytest.raises(KeyError, match=r"'dta' \(did you mean 'data'\?\): the batch has data, label"):
        batch["dta"]
    assert batch.get("dta") is None
    assert "dta" not in batch
    with pytest.raises(KeyError, match=r"'image': the sample has data, label"):
        BatchReader(ARRAYS, batch_size=4, decode=lambda sample, _rng: sample["image"])
    with pytest.raises(KeyError, match=r"'lable' \(did you mean 'label'\?\): the batch has data, label"):
        BatchReader(ARRAYS, batch_size=4, postprocess=lambda batch: {"new": batch["lable"]})


@pytest.mark.parametrize("declared", [{"max_rows": 3, "concatenate": ["data"]}, {"max_shapes": {"data": (3, 4)}}])
def test_a_sample_beyond_its_maximum_names_the_top_and_the_parameter(declared: dict[str, Any]) -> None:
    def decode(sample: Sample, _rng: np.random.Generator) -> dict[str, Any]:
        return {**sample, "data": np.zeros((1 + int(sample["label"]), 4), np.uint8)}

    says = (
        rf"top 'data': .*\(4, 4\) does not fit the declared maximum \(3, 4\).* \(parameter '{next(iter(declared))}'\)$"
    )
    reader = BatchReader(ARRAYS, batch_size=1, epochs=1, num_loaders=0, decode=decode, **declared)
    with reader, pytest.raises(SampleError, match=says) as caught:
        list(reader)
    assert isinstance(caught.value.__cause__, SampleTooLargeError)


def test_a_crop_larger_than_a_picture_names_shorter_side_once() -> None:
    with pytest.raises(ParameterError, match=r"crop_size is 5.*source shorter_side: 5, which resizes") as caught:
        BatchReader({"arrays": {"data": np.zeros((2, 3, 4, 6))}}, batch_size=1, transform={"crop_size": 5})
    assert str(caught.value).count("shorter_side") == 1
