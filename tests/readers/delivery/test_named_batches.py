"""Readers whose tensors lie on a device: a played one, whose copies are done at once, and CUDA where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.workers.api import AnyArray

from blobfeed import BatchReader, ParameterError, StreamSource
from tests.support.reader_data import images, write_hdf5

from ..faces import Face, every_law

torch: Any = pytest.importorskip("torch")
from blobfeed.readers.delivery import cuda_device  # noqa: E402

from blobfeed import AsyncReader  # noqa: E402
from tests.support.played_device import PlayedDevice  # noqa: E402

SAMPLES = 26


@pytest.fixture(params=["played", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What to give for `device`; where it is played, the tensors lie in main memory all the same."""
    if request.param == "played":
        cuda_device = "blobfeed.readers.delivery.cuda_device"
        monkeypatch.setattr(f"{cuda_device}.CudaDevice", lambda _: PlayedDevice(patience=1))
        monkeypatch.setattr(f"{cuda_device}.check_cuda", lambda _: None)
    return "cuda"


@pytest.fixture
def source(tmp_path: Path) -> dict[str, Any]:
    return write_hdf5(tmp_path / "train.h5", SAMPLES)


SETTINGS: dict[str, Any] = {"batch_size": 4, "num_loaders": 0, "shuffle": True, "epochs": 1, "last_batch": "partial"}


class OnADevice(Face):
    def make(self, source: dict[str, Any], **settings: Any) -> Any:
        return BatchReader(source, device="cuda", device_prefetch=3, **settings)

    def loop(self) -> Iterator[tuple[Any, Any]]:
        for batch in self.reader:
            assert batch["label"].tolist() == batch.indices.tolist()
            yield batch["data"].cpu(), batch["label"].cpu()


@every_law
def test_it_keeps_the_contract_of_all_faces(law: Any, device: str, tmp_path: Path) -> None:
    law(OnADevice, tmp_path)


def test_every_batch_is_the_users_own(source: dict[str, Any], device: str) -> None:
    with BatchReader(source, **SETTINGS, device=device) as reader:
        for batch in list(reader):
            np.testing.assert_array_equal(batch["data"].cpu().numpy(), images(SAMPLES)[batch.indices])


@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_users_own_tensors_are_filled(source: dict[str, Any], device: str, prefetch: int) -> None:
    with BatchReader(source, **SETTINGS, device=device, device_prefetch=prefetch) as reader:
        own = {name: torch.zeros_like(tensor) for name, tensor in next(iter(reader)).items()}
        seen = []
        for batch in reader.into(own):
            assert batch["data"].data_ptr() == own["data"].data_ptr()
            np.testing.assert_array_equal(batch["data"].cpu().numpy(), images(SAMPLES)[batch.indices])
            seen += batch["label"].tolist()
        assert sorted(seen) == list(range(SAMPLES))
        with pytest.raises(ParameterError, match=r"'data'.*'NumPy'"):
            reader.into({"data": images(4), "label": own["label"]})


@pytest.mark.cuda
def test_a_loop_that_keeps_nothing_uses_the_same_device_memory_again(source: dict[str, Any]) -> None:
    with BatchReader(source, **SETTINGS, device="cuda") as reader:
        full = [batch["data"].data_ptr() for _ in range(3) for batch in reader if batch.rows == 4]
    assert len(set(full)) < len(full) / 2


@pytest.mark.parametrize("last_batch", ["wrap", "drop", "partial"])
def test_streams_end_their_loops_on_a_device_too(device: str, last_batch: str) -> None:
    def numbers(shard: int, shards: int) -> Iterator[tuple[AnyArray, int]]:
        for number in range(shard, 18, shards):
            yield np.full(3, number, np.float32), number

    settings = {**SETTINGS, "shuffle": False, "last_batch": last_batch}
    loops = {}
    for where in (device, ""):
        with BatchReader(StreamSource(numbers, shards=1), **settings, device=where) as reader:
            loops[where] = [[batch["label"].tolist() for batch in reader] for _ in range(3)]
            loops[where].append([reader.state_dict()])
    assert loops[device] == loops[""]


def test_a_jump_stays_on_the_device_and_the_stream_of_before(
    source: dict[str, Any], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    kind = cuda_device.CudaDevice

    def make(name: str) -> Any:
        made.append(name)
        return kind(name)

    monkeypatch.setattr(cuda_device, "CudaDevice", make)
    with BatchReader(source, **SETTINGS, device=device) as reader:
        start = reader.state_dict()
        for _ in range(3):
            reader.load_state_dict(start)
            assert next(iter(reader)).position == 0
    assert made == ["cuda"]


def test_an_async_readers_pair_stays_while_the_next_one_is_there(source: dict[str, Any], device: str) -> None:
    axes: dict[str, Any] = {"num_dim": 1, "cha_dim": 2, "h_dim": 3, "w_dim": 4}
    path = source["hdf5"]["path"]
    with AsyncReader({"hdf5_path": path, "labels_field": "label", "cuda": True, "batch_size": 2}, **axes) as reader:
        before = None
        for number in range(30):
            reader.fetch_data()
            _, labels = reader.get_next_batch()
            expected = [2 * number % SAMPLES, (2 * number + 1) % SAMPLES]
            assert labels.tolist() == expected
            if before is not None:
                assert before[0].tolist() == before[1]
            before = labels, expected
