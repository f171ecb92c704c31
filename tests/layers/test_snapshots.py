"""A layer goes on where the data stood at a snapshot of Caffe's: a function of its iteration."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from blobfeed.workers.plan import State

from blobfeed import LayerHarness, MultiProcessInputLayer
from tests.support.standin_files import write_images
from tests.support.standin_train import compile_caffe_train, environment

SAMPLES = 20
SNAPSHOT = "net_iter_8.solverstate"


def _values(folder: Path, **more: object) -> dict[str, Any]:
    if not (folder / "train.h5").exists():
        write_images(folder / "train.h5", samples=SAMPLES)
    source = {"hdf5": {"path": str(folder / "train.h5")}}
    return {"source": source, "batch_size": 3, "num_loaders": 0, "shuffle": True, **more}


def _labels(folder: Path, count: int, restore: Path | str | int = "", **more: object) -> list[tuple[State, list[int]]]:
    """The next batches' positions, and their labels."""
    with LayerHarness(MultiProcessInputLayer, _values(folder, **more), base_dir=folder) as harness:
        if restore != "":
            harness.layer.restore(restore)
        return [(harness.layer.state_dict(), harness.forward()["label"].astype(int).tolist()) for _ in range(count)]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"num_loaders": 1},
        {"rand_skip": 50, "seed": 3},
        {"last_batch": "drop", "rank": 1, "world_size": 2},
        {"last_batch": "partial", "rank": 1, "world_size": 2, "epochs": 9},
        {"shuffle": False, "sampler": {"draws": 10}},
    ],
)
def test_the_data_go_on_behind_the_batches_of_the_iterations(tmp_path: Path, more: dict[str, Any]) -> None:
    whole = _labels(tmp_path, 18, **more)
    assert _labels(tmp_path, 10, resume=8, **more) == whole[8:]
    assert _labels(tmp_path, 2, SNAPSHOT, batches_per_iteration=2, **more) == whole[16:]
    assert _labels(tmp_path, 10, tmp_path / f"{SNAPSHOT}.h5", resume=3, **more) == whole[8:]


def test_a_test_net_begins_anew(tmp_path: Path) -> None:
    values = _values(tmp_path, resume=8)
    with LayerHarness(MultiProcessInputLayer, values, base_dir=tmp_path, phase="TEST") as harness:
        assert harness.layer.state_dict()["batches"] == 0


_MODULE = """
from blobfeed.layers import MultiProcessInputLayer

class Tells(MultiProcessInputLayer):
    def forward(self, bottom, top):
        super().forward(bottom, top)
        print("labels", *top[1].data.astype(int), flush=True)
"""


def test_the_binary_goes_on_at_the_snapshot_that_its_command_names(tmp_path: Path) -> None:
    program = compile_caffe_train()
    (tmp_path / "tells.py").write_text(_MODULE)
    (tmp_path / "more.txt").write_text(f"# flags\n--weights=x\n --snapshot={SNAPSHOT}\n")
    (tmp_path / "flags.txt").write_text("--flagfile=more.txt\n")
    values = _values(tmp_path, resume="snapshot", num_loaders=1)

    def train(*options: str, phase: int = 0) -> list[str]:
        command = [str(program), "tells", "Tells", repr(values), "2", "10", "0", str(phase), *options]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=200, check=True
        )
        return [line for line in done.stdout.splitlines() if line.startswith("labels")]

    begun = train("--solver=s.prototxt")
    resumed = train("-snapshot=no_iter_3.solverstate", "--snapshot", f"runs/{SNAPSHOT}")
    assert resumed[:2] == begun[8:]
    assert train("--flagfile=flags.txt", "--", "--snapshot=no_iter_3.solverstate") == resumed
    assert train(f"--snapshot={SNAPSHOT}", phase=1) == begun
