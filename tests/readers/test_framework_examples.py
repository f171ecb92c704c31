"""Each reader trains on the digits: the examples as they are, and the two readers that have none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import pytest

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "prototxt_examples"
DIGITS = EXAMPLES / "digits" / "digits_train.h5"


def right_in_percent(*command: str, **environment: str) -> float:
    """The last percentage that an example prints."""
    return all_right_in_percent(*command, **environment)[-1]


def all_right_in_percent(*command: str, **environment: str) -> list[float]:
    run = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    return [float(found) for found in re.findall(r"([\d.]+)% of (?:450|the) test digits right", run.stdout)]


def skip_without(*modules: str) -> None:
    """As the examples run in processes of their own, nothing is imported here."""
    if missing := [name for name in modules if find_spec(name) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed")


def test_a_torch_loop() -> None:
    skip_without("torch")
    assert right_in_percent(str(EXAMPLES / "torch_digits" / "train.py")) > 95


def test_a_run_with_feedback_beats_one_without() -> None:
    skip_without("torch")
    without, with_feedback = all_right_in_percent(str(EXAMPLES / "feedback_digits" / "train.py"))
    assert with_feedback > without + 1


def test_two_ranks_of_torchrun_see_each_sample_once(tmp_path: Path) -> None:
    skip_without("torch")
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--log-dir", str(tmp_path))
    assert right_in_percent(*launch, str(EXAMPLES / "torchrun_digits" / "train.py"), EPOCHS="5") > 90


@pytest.mark.slow
def test_two_workers_of_ray_train_see_each_sample_once() -> None:
    skip_without("torch", "ray", "pyarrow")
    assert right_in_percent(str(EXAMPLES / "ray_digits" / "train.py"), EPOCHS="5") > 90


def test_keras() -> None:
    skip_without("keras", "torch")
    assert right_in_percent(str(EXAMPLES / "keras_digits" / "train.py")) > 94


def test_tensorflow() -> None:
    skip_without("tensorflow")
    assert right_in_percent(str(EXAMPLES / "tensorflow_digits" / "train.py")) > 94


def linear_model() -> tuple[Any, Any]:
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    model = torch.nn.Linear(64, 10)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def step(model: Any, optimizer: Any, data: Any, labels: Any) -> float:
    """One step of training; returns the share of the batch that was right before it."""
    import torch

    scores = model(data.flatten(1).float() / 16)
    optimizer.zero_grad()
    loss: Any = torch.nn.functional.cross_entropy(scores, labels.long())
    loss.backward()
    optimizer.step()
    return float((scores.argmax(1) == labels).float().mean())


def test_an_async_reader() -> None:
    model, optimizer = linear_model()
    from blobfeed.readers.async_reader import AsyncReader

    axes: dict[str, Any] = {"num_dim": 1, "cha_dim": 2, "h_dim": 3, "w_dim": 4, "labels_field": "label"}
    with AsyncReader(hdf5_path=str(DIGITS), batch_size=50, shuffle=True, **axes) as reader:
        shares: list[float] = []
        for _ in range(6):
            ended = reader.fetch_data()
            while not ended:
                data, labels = reader.get_next_batch()
                ended = reader.fetch_data()
                shares.append(step(model, optimizer, data, labels))
            shares.append(step(model, optimizer, *reader.get_next_batch()))
    assert sum(shares[:5]) / 5 < 0.6
    assert sum(shares[-20:]) / 20 > 0.85


def test_an_h5_dataset_in_torchs_own_loader(tmp_path: Path) -> None:
    model, optimizer = linear_model()
    from blobfeed.readers.h5_dataset import H5Dataset
    from torch.utils.data import DataLoader

    with h5py.File(DIGITS) as file, h5py.File(tmp_path / "archive.h5", "w") as archive:
        for number in range(600):
            archive[f"digit_{number}"] = file["data"][number]
            archive[f"digit_{number}"].attrs["label"] = int(file["label"][number])
    loader = DataLoader(H5Dataset(tmp_path / "archive.h5"), batch_size=50, shuffle=True, num_workers=1)
    shares = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads, which torch has
        for _ in range(8):
            shares += [step(model, optimizer, batch["data"], batch["labels"]["label"]) for batch in loader]
    assert sum(shares[-12:]) / 12 > 0.8
