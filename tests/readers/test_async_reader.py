"""AsyncReader: torch.async-hdf5-reader's interface, fetch first and get later, over the pipeline."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")
from blobfeed import AsyncReader  # noqa: E402

EXAMPLES, HEIGHT, WIDTH, CHANNELS = 7, 4, 5, 3


def pictures() -> NDArray[np.float32]:
    """Shape (examples, channels, height, width), all values different."""
    shape = (EXAMPLES, CHANNELS, HEIGHT, WIDTH)
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape)


def targets() -> NDArray[np.float64]:
    """Shape (examples, 2)."""
    return np.arange(EXAMPLES * 2, dtype=np.float64).reshape(EXAMPLES, 2)


@pytest.fixture
def path(tmp_path: Path) -> str:
    with h5py.File(tmp_path / "train.h5", "w") as file:
        file["data"] = pictures().transpose(0, 2, 3, 1)
        file["labels"] = targets()
    return str(tmp_path / "train.h5")


def read(path: str, **parameters: Any) -> AsyncReader:
    """In this process, if the test asks for no loader."""
    return AsyncReader(**{"hdf5_path": path, "nthread": 0, **parameters})


def fetched(reader: AsyncReader) -> tuple[Any, Any]:
    reader.fetch_data()
    return reader.get_next_batch()


def epoch(reader: AsyncReader) -> list[tuple[Any, Any]]:
    """All batches of an epoch, copied."""
    batches, ended = [], False
    while not ended:
        ended = reader.fetch_data()
        data, labels = reader.get_next_batch()
        batches.append((data.clone(), labels.clone()))
    return batches


def test_the_originals_names_and_one_mapping_of_parameters(path: str) -> None:
    reader = AsyncReader({"hdf5_path": path, "batchSize": 2, "nthread": 2, "njob": 1, "cuda": False, "shuffle": False})
    assert reader.fetchData() is False
    data, labels = reader.getNextBatch()
    np.testing.assert_array_equal(data.numpy(), pictures()[:2])
    np.testing.assert_array_equal(labels.numpy(), targets()[:2])
    reader.destructor()


@pytest.mark.parametrize("name", ["batch_size", "batchSize"])
def test_a_batch_size_of_none_is_not_given(path: str, name: str) -> None:
    with AsyncReader({"hdf5_path": path, "batchSize": 3, "nthread": 0}, batch_size=None) as reader:
        assert [len(data) for data, _ in epoch(reader)] == [3, 3, 1]
    none: dict[str, Any] = {name: None}
    with read(path, **none) as reader:
        assert len(epoch(reader)) == EXAMPLES


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (2, 3, 1, 0), (1, 0, 3, 2), (3, 1, 2, 0)])
def test_any_order_of_dimensions_comes_out_as_n_c_h_w(tmp_path: Path, order: tuple[int, ...]) -> None:
    with h5py.File(tmp_path / "turned.h5", "w") as file:
        file["x/images"] = pictures().transpose(order)
        file["y"] = targets()
    places: dict[str, Any] = {
        name: order.index(axis) + 1 for axis, name in enumerate(["num_dim", "cha_dim", "h_dim", "w_dim"])
    }
    fields = {"data_field": "x/images", "labels_field": "y"}
    with read(str(tmp_path / "turned.h5"), batch_size=EXAMPLES, **fields, **places) as reader:
        np.testing.assert_array_equal(fetched(reader)[0].numpy(), pictures())


def test_a_pair_stays_valid_and_writable_while_the_next_one_is_there(path: str) -> None:
    with read(path, batch_size=1, njob=3, nthread=1) as reader:
        before, _ = fetched(reader)
        for number in range(1, 50):
            before += 1000.0
            data, _ = fetched(reader)
            np.testing.assert_array_equal(before.numpy() - 1000.0, pictures()[[(number - 1) % EXAMPLES]])
            before = data


@pytest.mark.parametrize("in_place", [True, False])
def test_postprocess_changes_the_data_in_a_loader(path: str, in_place: bool) -> None:
    def halve(data: NDArray[np.float32]) -> NDArray[np.float32] | None:
        if in_place:
            data *= 0.5
            return None
        return np.multiply(data, 0.5, dtype=np.float32)

    with read(path, batch_size=EXAMPLES, nthread=1, postprocess=halve) as reader:
        data, labels = fetched(reader)
        np.testing.assert_array_equal(data.numpy(), pictures() * 0.5)
        np.testing.assert_array_equal(labels.numpy(), targets())


def test_postprocess_keeps_what_its_own_parameters_have_as_defaults(path: str) -> None:
    def scaled(data: NDArray[np.float32], rng: float = 3) -> NDArray[np.float32]:
        return data * np.float32(rng)

    with read(path, batch_size=EXAMPLES, postprocess=scaled) as reader:
        np.testing.assert_array_equal(fetched(reader)[0].numpy(), pictures() * 3)


def test_an_end_of_epoch_is_told_for_the_batch_that_is_asked_for(path: str) -> None:
    with read(path, batch_size=3, njob=6) as reader:
        assert [reader.fetch_data() for _ in range(6)] == [False, False, True] * 2


def test_a_state_counts_what_was_got_and_not_what_was_asked_for(path: str) -> None:
    settings: dict[str, Any] = {"hdf5_path": path, "batch_size": 2, "shuffle": True, "seed": 5, "nthread": 0}
    with AsyncReader(settings, njob=3) as reader:
        whole = [labels for _, labels in epoch(reader)]
    with AsyncReader(settings, njob=3) as reader:
        for _ in range(3):
            reader.fetch_data()
        reader.get_next_batch()
        state = reader.state_dict()
    with AsyncReader(settings) as resumed:
        resumed.load_state_dict(state)
        rest = [labels for _, labels in epoch(resumed)]
    assert [labels.tolist() for labels in rest] == [labels.tolist() for labels in whole[1:]]
