"""Which shard a process reads: told by the parameters, torch.distributed, Ray Train, the environment or Caffe."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from blobfeed.readers.sharding import WHOLE, with_shard
from blobfeed.workers.api import check_parameters

from blobfeed import BatchReader, find_shard
from tests.support.reader_data import write_hdf5


@pytest.fixture(autouse=True)
def _told_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "caffe", raising=False)
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    monkeypatch.delitem(sys.modules, "ray.train", raising=False)


def module(name: str, **functions: object) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(functions)
    return made


def distributed(rank: int, size: int, *, available: bool = True, initialised: bool = True) -> types.ModuleType:
    return module(
        "torch.distributed",
        is_available=lambda: available,
        is_initialized=lambda: initialised,
        get_rank=lambda: rank,
        get_world_size=lambda: size,
    )


def ray_train(rank: int | None, size: int | None) -> types.ModuleType:
    context = types.SimpleNamespace(get_world_rank=lambda: rank, get_world_size=lambda: size)
    return module("ray.train", get_context=lambda: context)


def no_context() -> None:
    raise RuntimeError("Ray Train function utilities not initialized.")


CAFFE = module("caffe", solver_rank=lambda: 4, solver_count=lambda: 5)
RANK_3 = {"RANK": "3", "WORLD_SIZE": "4"}
FOUND: dict[str, tuple[list[types.ModuleType], dict[str, str], tuple[int, ...], tuple[int, int]]] = {
    "nothing says anything": ([], {}, (), (0, 1)),
    "Caffe": ([CAFFE], {}, (), (4, 5)),
    "the environment before Caffe": ([CAFFE], RANK_3, (), (3, 4)),
    "Ray Train before the environment": ([ray_train(1, 8)], RANK_3, (), (1, 8)),
    "torch before Ray Train": ([distributed(2, 3), ray_train(1, 8)], RANK_3, (), (2, 3)),
    "the arguments before torch": ([distributed(2, 3), ray_train(1, 8)], RANK_3, (1, 2), (1, 2)),
    "the arguments before half an environment": ([], {"RANK": "1"}, (0, 2), (0, 2)),
    "the arguments before a word for a rank": ([], {"RANK": "abc"}, (0, 2), (0, 2)),
    "a Caffe too old to have ranks": ([module("caffe")], {}, (), (0, 1)),
    "a process that only starts Ray Train": ([module("ray.train", get_context=no_context)], {}, (), (0, 1)),
    "the same before Ray 2.43": ([ray_train(None, None)], {}, (), (0, 1)),
    "a torch built without process groups": ([distributed(2, 3, available=False)], {}, (), (0, 1)),
    "torch before its process group": ([distributed(2, 3, initialised=False)], {}, (), (0, 1)),
}


@pytest.mark.parametrize("case", FOUND)
def test_the_shard_is_the_one_that_is_said_first(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    modules, environment, arguments, expected = FOUND[case]
    for each in modules:
        monkeypatch.setitem(sys.modules, each.__name__, each)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    found = find_shard(*arguments)
    assert (found.rank, found.world_size) == expected
    assert (found is WHOLE) == (expected == (0, 1))


def test_parameters_get_the_shard_that_they_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    open_parameters = check_parameters({"source": {"npy": {}}, "batch_size": 2})
    assert (with_shard(open_parameters).rank, with_shard(open_parameters).world_size) == (1, 3)
    told = check_parameters({"source": {"npy": {}}, "batch_size": 2, "rank": 0, "world_size": 1})
    assert with_shard(told) == told


@pytest.mark.parametrize(("told", "warnings"), [({}, 1), ({"rank": 0, "world_size": 1}, 0)])
def test_a_reader_made_before_the_process_group_warns_once_that_it_reads_everything(
    told: dict[str, Any],
    warnings: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = write_hdf5(tmp_path / "train.h5", 6)
    with BatchReader(source, batch_size=2, num_loaders=0, epochs=1, **told) as reader:
        monkeypatch.setitem(sys.modules, "torch.distributed", distributed(1, 2))
        assert [len(list(reader)) for _ in range(2)] == [3, 3]
    assert [record.getMessage().count("before torch's process group") for record in caplog.records] == [1] * warnings


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"])
@pytest.mark.parametrize(
    ("tasks", "told", "environment", "warnings"),
    [
        ("4", {}, {}, 1),
        ("1", {}, {}, 0),
        ("4", {"rank": 0, "world_size": 1}, {}, 0),
        ("4", {}, {"RANK": "0", "WORLD_SIZE": "1"}, 0),
    ],
)
def test_a_reader_of_one_of_several_tasks_warns_once_that_it_reads_everything(
    name: str,
    tasks: str,
    told: dict[str, Any],
    environment: dict[str, str],
    warnings: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for variable, value in {name: tasks, **environment}.items():
        monkeypatch.setenv(variable, value)
    with BatchReader(write_hdf5(tmp_path / "train.h5", 6), batch_size=2, num_loaders=0, epochs=1, **told) as reader:
        assert [len(list(reader)) for _ in range(2)] == [3, 3]
    assert [record.getMessage().count(f"{name}={tasks}") for record in caplog.records] == [1] * warnings


def test_asking_for_the_shard_imports_neither_torch_nor_caffe() -> None:
    program = (
        "import sys; from blobfeed.readers.sharding import find_shard; find_shard();"
        "sys.exit('torch' in sys.modules or 'caffe' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=200)
