"""The calls of CUDA that deliveries need: asked of a played runtime, and of a device where there is one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.standin_files import images

torch = pytest.importorskip("torch")

from blobfeed.readers.delivery.cuda_device import CudaDevice  # noqa: E402

from .feeding import assert_the_labels_are_left, feeding, write_mean_and_images  # noqa: E402

__all__ = ["feeding"]


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """CUDA's runtime, of which a test says what it answers."""
    made = SimpleNamespace(current=1)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: made.current)
    monkeypatch.setattr(torch.accelerator, "device_index", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch, "Stream", lambda _: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: made.captures)
    return made


def test_cuda_is_the_device_that_is_current_when_the_delivery_is_made(runtime: SimpleNamespace) -> None:
    device = CudaDevice("cuda")
    runtime.current = 0
    assert str(device.device) == "cuda:1"
    assert str(CudaDevice("cuda:3").device) == "cuda:3"


def test_staging_memory_is_the_hosts_though_torch_has_another_default(
    runtime: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda nbytes, pin_memory, **given: empty(nbytes, **given))
    with torch.device("meta"):
        assert CudaDevice("cuda").host_memory(8).nbytes == 8


def test_torch_does_not_know_staging_memory_by_its_address(
    runtime: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it records an event when the memory is freed, and ends the process if a kernel of the user's has failed."""
    whole = torch.empty(1 << 10, dtype=torch.uint8)
    monkeypatch.setattr(torch, "empty", lambda nbytes, **_: whole[:nbytes])
    memory = CudaDevice("cuda").host_memory(8)
    assert memory.nbytes == 8
    assert memory.ctypes.data > whole.data_ptr()


def test_a_wait_looks_until_the_event_is_done(runtime: SimpleNamespace) -> None:
    looks, steps = iter([False, False, True]), []
    event: Any = SimpleNamespace(query=lambda: next(looks), synchronize=lambda: steps.append("synchronize"))
    CudaDevice("cuda").wait_for(event)
    assert list(looks) == []
    assert steps == ["synchronize"]


def test_a_capturing_stream_is_told_what_to_do(runtime: SimpleNamespace) -> None:
    runtime.captures = False
    CudaDevice("cuda").refuse_capture()
    runtime.captures = True
    with pytest.raises(RuntimeError, match="cuda:1"):
        CudaDevice("cuda").refuse_capture()


# ---- on a real device


@pytest.mark.cuda
@pytest.mark.parametrize("buffers", [1, 3])
def test_cuda_gets_every_batch_while_the_users_stream_still_computes(feeding: Any, buffers: int) -> None:
    device = f"cuda:{torch.cuda.device_count() - 1}"
    feed = feeding(CudaDevice(device), device_prefetch=buffers, transform={"scale": 0.5, "mean_value": [1, 2, 3]})
    mean = np.array([1, 2, 3], np.float32)[:, None, None]
    kept = []
    with torch.Stream(device):
        for _ in range(15):
            for target, shape in zip(feed.targets, feed.delivery.next_shapes(), strict=True):
                target.reshape(*shape)
            feed.delivery.deliver(feed.targets)
            torch.cuda._sleep(5_000_000)
            kept.append([target.data.clone() for target in feed.targets])
        torch.accelerator.synchronize(device)
    for number, (data, label) in enumerate(kept):
        wanted = np.arange(4 * number, 4 * number + 4) % 20
        np.testing.assert_array_equal(label.cpu().numpy(), wanted)
        np.testing.assert_array_equal(data.cpu().numpy(), (images()[wanted] - mean) * np.float32(0.5))


@pytest.mark.cuda
def test_cuda_subtracts_the_part_of_the_mean_under_each_crop(feeding: Any, tmp_path: Path) -> None:
    assert_the_labels_are_left(feeding(CudaDevice("cuda:0"), transform=write_mean_and_images(tmp_path)))


_ON_THE_SECOND = """
import numpy as np, torch
from blobfeed.readers.delivery.cuda_device import CudaDevice

device = CudaDevice("cuda:1")
memory = np.zeros(1 << 20, np.uint8)
device.send(memory, device.memory(memory.nbytes))
event = device.event()
device.used(event)
device.send_after(event)
device.sent(event)
device.use_after(event)
device.wait_for(event)
device.host_memory(8)
device.wait()
with device.current():
    del event
print(torch._C._cuda_hasPrimaryContext(0), torch._C._cuda_hasPrimaryContext(1))
"""


@pytest.mark.cuda
def test_no_context_is_made_on_another_device() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    # Without torch's race detector, which asks the current device for its stream.
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_CUDA_SANITIZER"}
    command = [sys.executable, "-c", _ON_THE_SECOND]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["False", "True"]
