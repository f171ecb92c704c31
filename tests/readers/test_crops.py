"""Crops in a reader: only the chunks of volumes are read, and of large JPEGs no more is decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
import zarr
from blobfeed.sources import open_source
from blobfeed.workers.api import AnyArray, Needed

from blobfeed import BatchReader
from tests.support.pictures import encoded, picture, write_list
from tests.support.stored import some_array
from tests.support.tars import write_tar

# The library's thread and its descriptors stay for as long as the process does: they are to be there before a test.
zarr.create_array({}, shape=(1,), dtype="u1")

VOLUMES = some_array((3, 2, 40, 50, 60), "f4")
MASKS = some_array((3, 40, 50, 60), "u1", 1)
CROP: dict[str, Any] = {"crop_size": [16, 20, 24], "crop_beside": ["label"], "mirror": True}


def write_volumes(folder: Path, kind: str) -> dict[str, Any]:
    arrays = {"data": VOLUMES, "label": MASKS}
    if kind == "npy":
        for name, values in arrays.items():
            np.save(folder / name, values)
        return {"npy": {name: str(folder / f"{name}.npy") for name in arrays}}
    if kind == "zarr":
        for name, values in arrays.items():
            stored = zarr.create_array(
                folder / f"volumes/{name}",
                shape=values.shape,
                dtype=values.dtype,
                chunks=(1,) * (values.ndim - 3) + (16, 16, 16),
            )
            stored[...] = values
        return {"zarr": {"path": str(folder / "volumes")}}
    with h5py.File(folder / "volumes.h5", "w") as file:
        for name, values in arrays.items():
            moved = np.moveaxis(values, 1, -1) if kind == "hdf5 channels last" and name == "data" else values
            chunks = tuple(min(16, extent) for extent in moved.shape)
            how = {} if kind == "hdf5 contiguous" else {"chunks": (1, *chunks[1:]), "compression": "gzip"}
            file.create_dataset(name, data=moved, **how)
    dims = {"dims": ["n", "d", "h", "w", "c"]} if kind == "hdf5 channels last" else {}
    return {"hdf5": {"path": str(folder / "volumes.h5"), **dims}}


def crops(source: Any, **how: Any) -> list[dict[str, AnyArray]]:
    settings = {"batch_size": 2, "epochs": 2, "transform": CROP, "num_loaders": 0, "shuffle": True, **how}
    with BatchReader(source, **settings) as reader:
        return [{name: batch[name].copy() for name in batch} for batch in reader]


@pytest.mark.parametrize("kind", ["hdf5 gzip", "hdf5 contiguous", "hdf5 channels last", "npy", "zarr"])
def test_crops_of_stored_volumes_are_those_of_whole_ones(kind: str, tmp_path: Path) -> None:
    source = write_volumes(tmp_path, kind)
    whole = crops({"arrays": {"data": VOLUMES, "label": MASKS}})
    for decode, how in ((None, {}), (lambda sample, _rng: sample, {}), (_marked, {"crop_before_decode": True})):
        found = crops(source, decode=decode, transform={**CROP, **how})
        assert len(found) == len(whole)
        for ours, theirs in zip(found, whole, strict=True):
            np.testing.assert_array_equal(ours["data"], theirs["data"])
            np.testing.assert_array_equal(ours["label"], theirs["label"])
    with BatchReader(source, batch_size=3, transform=CROP, train=False, num_loaders=0) as reader:
        centred = next(iter(reader))
    np.testing.assert_array_equal(centred["data"], VOLUMES[:, :, 12:28, 15:35, 18:42])
    np.testing.assert_array_equal(centred["label"], MASKS[:, 12:28, 15:35, 18:42])


def _marked(sample: Any, _rng: Any) -> Any:
    assert sample["data"].shape == (2, 16, 20, 24), "decode gets the crop"
    assert sample["label"].shape == (16, 20, 24)
    return sample


# ---- random_resized_crop: bytes depend on the sample alone, and large JPEGs are decoded at a smaller size


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("pictures")
    files = {f"{number}.jpg": encoded(picture(480, 640 + 8 * number), ".jpg") for number in range(6)}
    files["6.png"] = encoded(picture(120, 90), ".png")
    path = write_list(folder, files)
    return {"image_list": {"path": str(path), "root_folder": str(folder), "max_height": 700}}


def read(source: dict[str, Any], **how: Any) -> list[bytes]:
    settings: dict[str, Any] = {"batch_size": 7, "epochs": 1, "transform": {"random_resized_crop": 64, "mirror": True}}
    with BatchReader(source, **{**settings, "num_loaders": 0, **how}) as reader:
        return [batch["data"].tobytes() for batch in reader]


def test_the_bytes_are_those_of_the_sample_in_its_epoch(pictures: dict[str, Any]) -> None:
    first, second = read(pictures, epochs=2)
    assert first != second
    assert read(pictures, epochs=2, num_loaders=2, batch_size=7) == [first, second]
    assert b"".join(read(pictures, batch_size=2)) == first
    assert read(pictures, seed=1)[0] != first


def test_a_large_jpeg_is_decoded_no_larger_than_its_crop_needs(pictures: dict[str, Any]) -> None:
    source = open_source(pictures, tops=None, base_dir=Path())
    everything = np.arange(len(source))

    def lent(wanted: tuple[int, int]) -> list[tuple[int, ...]]:
        found = source.lend_needed(everything, lambda _row, size: Needed(wanted, (0, 0, *size)))
        assert found is not None
        return [sample["data"].shape[1:] for sample in found]

    assert lent((100, 100))[:2] == [(120, 160), (120, 162)]
    assert lent((61, 1))[0] == (120, 160)
    assert lent((200, 300))[0] == (240, 320)
    assert lent((480, 640))[0] == lent((9999, 9999))[0] == (480, 640)
    assert lent((100, 100))[6] == (120, 90), "a PNG as it is"


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_the_pictures_of_another_top_keep_their_size(kind: str, tmp_path: Path) -> None:
    content = encoded(picture(480, 640), ".jpg")
    path = write_list(tmp_path, {"0.jpg": content})
    listed = {"image_list": {"path": str(path), "root_folder": str(tmp_path), "equal_sizes": True}}
    write_tar(tmp_path / "a.tar", [("0.left.jpg", content), ("0.right.jpg", content)])
    members = {"data": "left.jpg", "other": "right.jpg"}
    source: dict[str, Any] = {"tar": {"path": str(tmp_path / "a.tar"), "members": members, "equal_sizes": True}}
    if kind == "zip":
        source = {"zip": [{**listed, "tops": ["data"]}, {**listed, "tops": {"other": "data"}}]}
    with BatchReader(source, batch_size=1, transform={"random_resized_crop": 64}, num_loaders=0) as reader:
        batch = next(iter(reader))
    assert {name: batch[name].shape[1:] for name in members} == {"data": (3, 64, 64), "other": (3, 480, 640)}


def test_a_reduced_picture_has_the_same_part(pictures: dict[str, Any]) -> None:
    whole = {"image_list": {**pictures["image_list"], "dct_scaling": False}}
    for reduced, full in zip(read(pictures, epochs=3), read(whole, epochs=3), strict=True):
        ours, others = np.frombuffer(reduced, np.uint8).astype(float), np.frombuffer(full, np.uint8)
        assert reduced != full
        assert np.abs(ours - others).mean() < 6, "of 256: the parts differ by less than a pixel"


def test_in_a_test_the_centre_is_resized_and_not_mirrored(pictures: dict[str, Any]) -> None:
    (once,), (again,) = read(pictures, train=False), read(pictures, train=False, seed=5)
    assert once == again
    (data,) = np.frombuffer(read(pictures, train=False)[0], np.uint8).reshape(7, 3, 64, 64)[6:]
    expected = picture(120, 90)[20:99, 5:84]
    np.testing.assert_array_equal(data[::-1].transpose(1, 2, 0), cv2.resize(expected, (64, 64)))
