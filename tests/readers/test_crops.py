"""Crops of stored volumes: only their chunks are read, and the bytes are those of a crop of the whole sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
import zarr
from blobfeed.workers.api import AnyArray

from blobfeed import BatchReader
from tests.support.stored import some_array

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
