"""A pipeline whose batches are delivered to a device, a played one or CUDA."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.readers.delivery import make_tops
from blobfeed.readers.opening import open_pipeline
from blobfeed.workers.api import Hooks, check_parameters
from blobfeed.workers.plan import Batch

from tests.support.standin_files import write_hdf5, write_images

torch = pytest.importorskip("torch")

from blobfeed.readers.delivery.cuda_delivery import CudaDelivery  # noqa: E402

from tests.support.played_device import PlayedDevice  # noqa: E402


class Target:
    def __init__(self, device: str = "cpu") -> None:
        self.data = torch.zeros(0, device=device)

    def reshape(self, *shape: int) -> None:
        self.data = torch.full(shape, torch.nan, device=self.data.device)


class Feeding:
    def __init__(self, folder: Path, device: Any, hooks: Hooks | None = None, **values: object) -> None:
        if not (folder / "train.h5").exists():
            write_images(folder / "train.h5")
        parameters = check_parameters(
            {"source": {"hdf5": {"path": "train.h5"}}, "batch_size": 4, "num_loaders": 1, **values}
        )
        self.pipeline = open_pipeline(parameters, hooks or Hooks(), base_dir=folder)
        self._tops = make_tops(self.pipeline.specs, parameters, folder)
        self.devices: list[Any] = []
        self.released: list[int] = []
        """The numbers of the batches whose slots were given back."""
        self._release, self.pipeline.release = self.pipeline.release, self.release  # type: ignore[method-assign]
        self.go_to(device)

    def go_to(self, device: Any) -> None:
        """Deliver the next batches to `device`, from the same pipeline, since that takes long to start."""
        self.device = device
        self.devices.append(device)
        self.delivery = CudaDelivery(self.pipeline, self._tops, device)
        self.targets = [Target(str(device.device)) for _ in self.delivery.tops]
        # Batches that an earlier delivery had sent ahead do not come again.
        self.first = int(self.delivery.progress.state()["position"]) // 4

    def next(self) -> list[Any]:
        for target, shape in zip(self.targets, self.delivery.next_shapes(), strict=True):
            target.reshape(*shape)
        with getattr(self.device, "judge", contextlib.nullcontext()):
            self.delivery.deliver(self.targets)
        return [target.data.cpu().numpy() for target in self.targets]

    def release(self, batch: Batch) -> None:
        """Release the batch: from now on loaders may write to its slot."""
        if judge := getattr(self.device, "judge", None):
            for rows in batch.tops.values():
                if isinstance(rows, np.ndarray):
                    judge.host_writes(rows.ctypes.data, "a loader's write")
        self._release(batch)
        self.released.append(batch.number)

    def wait_until_ready(self) -> None:
        """So that what is sent ahead does not depend on the machine."""
        self.pipeline.peek()

    def close(self) -> None:
        self.delivery.close()
        self.pipeline.close()


@pytest.fixture
def feeding(tmp_path: Path) -> Iterator[Any]:
    made: list[Feeding] = []

    def make(device: Any, hooks: Hooks | None = None, **values: object) -> Feeding:
        made.append(Feeding(tmp_path, device, hooks, **values))
        return made[-1]

    yield make
    for feed in made:
        feed.delivery.close()
    wrong = [text for feed in made for device in feed.devices for text in wrong_on(device)]
    while made:
        made.pop().close()
    assert wrong == []


def wrong_on(device: Any) -> list[str]:
    return [*device.wrong, *device.judge.races] if isinstance(device, PlayedDevice) else []


def write_mean_and_images(folder: Path) -> dict[str, object]:
    """Images that are the mean plus their own label; returns the transform."""
    whole = np.random.default_rng(1).integers(0, 200, (3, 9, 11)).astype(np.float32)
    np.save(folder / "mean.npy", whole)
    labels = np.arange(20)
    write_hdf5(folder / "train.h5", data=(whole + labels[:, None, None, None]).astype(np.uint8), label=labels)
    return {"crop_size": 5, "mirror": True, "mean_file": "mean.npy", "scale": 0.5}


def assert_the_labels_are_left(feed: Any) -> None:
    for number in range(feed.first, feed.first + 10):
        data, label = feed.next()
        np.testing.assert_array_equal(label, np.arange(4 * number, 4 * number + 4) % 20)
        np.testing.assert_array_equal(data, np.broadcast_to(label[:, None, None, None] / 2, (4, 3, 5, 5)))
