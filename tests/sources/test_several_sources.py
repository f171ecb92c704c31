"""Several sources as one: side by side, and mixed."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.sources.arrays import open_arrays
from blobfeed.sources.mixed import MixedSource
from blobfeed.workers.api import ArraySpec, IndexArray, NamedRows
from PIL import Image

from blobfeed import BatchReader, Source
from tests.support.part import some_of

SAMPLES = 6


class Numbers(Source):
    """A source of a user's own, which lends nothing."""

    specs = {"number": ArraySpec((), np.dtype(np.int64))}  # noqa: RUF012

    def __len__(self) -> int:
        return SAMPLES

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        np.asarray(out["number"])[:] = indices


@pytest.fixture
def parts(tmp_path: Path) -> list[dict[str, Any]]:
    """Pictures and masks of one size, whose pixels know their sample and place; vectors."""
    rows, columns = np.mgrid[:40, :40].astype(np.uint8)
    for index in range(SAMPLES):
        picture = np.stack([np.full_like(rows, index), rows, columns], 2)
        for name, pixels in (("picture", picture), ("mask", rows * 5 + index)):
            Image.fromarray(pixels).save(tmp_path / f"{name}{index}.png")
    for name in ("picture", "mask"):
        (tmp_path / f"{name}.txt").write_text(
            "".join(f"{tmp_path / name}{index}.png {index}\n" for index in range(SAMPLES))
        )
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["vector"], file["other"] = np.arange(2.0 * SAMPLES).reshape(SAMPLES, 2), np.zeros(3)
    pictures: dict[str, Any] = {"equal_sizes": True, "color": "rgb"}
    return [
        {"image_list": {"path": tmp_path / "picture.txt", **pictures}, "tops": ["data"]},
        {
            "image_list": {"path": tmp_path / "mask.txt", **pictures, "is_color": False},
            "tops": {"mask": "data", "id": "label"},
        },
        {"hdf5": {"path": tmp_path / "a.h5"}, "tops": "vector"},
    ]


@pytest.mark.parametrize("loaders", some_of([0, 2], 2))
@pytest.mark.parametrize("transform", [{}, {"crop_size": 8}, {"random_resized_crop": {"size": 8, "scale": [0.9, 1]}}])
def test_samples_stand_side_by_side_and_the_first_top_alone_is_cropped(
    parts: list[dict[str, Any]], transform: dict[str, Any], loaders: int
) -> None:
    given: dict[str, Any] = {"batch_size": 4, "epochs": 1, "shuffle": True, "num_loaders": loaders}
    with BatchReader({"zip": [*parts, Numbers()]}, transform=transform, **given) as reader:
        batches = [{name: np.array(value) for name, value in batch.items()} for batch in reader]
    found = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    assert list(found) == ["data", "mask", "id", "vector", "number"]
    numbers = found["number"]
    assert sorted(numbers) == [*range(SAMPLES)]
    assert (found["data"][:, 0] == numbers[:, None, None]).all()
    assert found["data"].shape[-1] == (8 if transform else 40)
    masks = (np.mgrid[:40, :40][0] * 5 + numbers[:, None, None]).astype(np.uint8)
    np.testing.assert_array_equal(found["mask"][:, 0], masks)
    assert found["id"].tolist() == numbers.tolist() == (found["vector"][:, 0] / 2).tolist()


def test_tops_choose_among_all_parts_and_those_without_one_are_not_read(parts: list[dict[str, Any]]) -> None:
    (Path(str(parts[1]["image_list"]["path"])).parent / "mask0.png").unlink()
    given: dict[str, Any] = {"batch_size": SAMPLES, "epochs": 1, "num_loaders": 0}
    with BatchReader({"zip": parts}, tops=["vector", "data"], **given) as reader:
        (batch,) = reader
        assert list(batch) == ["vector", "data"]


# ---- mixed


def test_the_fingerprint_of_a_mix_changes_with_its_weights() -> None:
    parts = [open_arrays({"data": np.arange(3)}), open_arrays({"data": np.arange(4)})]
    one, same, other = (MixedSource(parts, weights).fingerprint() for weights in ([1, 1], [1, 1], [1, 2]))
    assert one == same != other


def test_a_sample_of_a_large_weight_is_augmented_anew_each_time() -> None:
    parts = [{"arrays": {"data": np.zeros(size)}, "weight": weight} for size, weight in ((90, 0.05), (40, 0.95))]
    given: dict[str, Any] = {"batch_size": 10, "num_loaders": 0, "shuffle": True, "epochs": None}
    with BatchReader(mix=parts, decode=lambda _sample, rng: rng.integers(1 << 60), **given) as reader:
        drawn = np.concatenate([batch["data"] for batch in islice(reader, 39)])
    assert len(np.unique(drawn)) == len(drawn) == 390
