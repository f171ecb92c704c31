"""The examples that train on the digits by the readers, as they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "prototxt_examples"


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
