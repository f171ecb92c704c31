"""JaxDataset: on one CPU device, on four, and in two processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobfeed import ParameterError
from tests.support.reader_data import images, labels, write_hdf5

from .faces import Face, every_law

jax = pytest.importorskip("jax")
from blobfeed import JaxDataset  # noqa: E402

SAMPLES = 24


@pytest.fixture
def source(tmp_path: Path) -> dict[str, Any]:
    return write_hdf5(tmp_path / "train.h5", SAMPLES)


def read(source: object, **parameters: Any) -> JaxDataset:
    return JaxDataset(source, **{"batch_size": 8, "num_loaders": 0, "shuffle": True, "epochs": 1, **parameters})  # type: ignore[arg-type]


def test_batches_are_jax_arrays_and_stay_as_they_are(source: dict[str, Any]) -> None:
    with read(source) as dataset:
        assert len(dataset) == 3
        batches = list(dataset)
    assert [type(batch) for batch in batches] == [dict] * 3
    rows = np.concatenate([batch["label"] for batch in batches])
    np.testing.assert_array_equal(np.sort(rows), labels(SAMPLES))
    for batch in batches:
        assert isinstance(batch["data"], jax.Array)
        np.testing.assert_array_equal(batch["data"], images(SAMPLES)[np.asarray(batch["label"])])
        assert float(jax.jit(lambda batch: batch["data"].sum())(batch)) == np.asarray(batch["data"]).sum()


class Sharded(Face):
    def make(self, source: dict[str, Any], **settings: Any) -> Any:
        return JaxDataset(source, **settings)


@every_law
def test_it_keeps_the_contract_of_all_faces(law: Any, tmp_path: Path) -> None:
    law(Sharded, tmp_path)


def test_text_and_choices_that_it_has_not_are_refused(tmp_path: Path, source: dict[str, Any]) -> None:
    np.save(tmp_path / "text.npy", np.array(["train", "valid"]))
    with pytest.raises(ParameterError, match=r"'text'.*<U5"):
        read({"npy": {"text": str(tmp_path / "text.npy")}}, batch_size=1)
    for given in ({"copy": False}, {"tuples": True}, {"shufle": True}):
        with pytest.raises(ParameterError, match=f"'{next(iter(given))}'"):
            read(source, **given)


def test_of_several_processes_a_rank_without_a_world_size_is_refused(
    source: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ParameterError, match="world_size"):
        read(source, rank=1)


_SHARDED = """
import sys
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from blobfeed import JaxDataset

path, processes, number, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if processes > 1:
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, number)
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
sharding = NamedSharding(mesh, PartitionSpec("data"))
told = {"batch_size": 8 // processes, "num_loaders": 0, "epochs": 1, "sharding": sharding}
with JaxDataset({"hdf5": {"path": path}}, **told) as dataset:
    for batch in dataset:
        shards = [shard.data for shard in batch["data"].addressable_shards]
        assert batch["data"].shape == (8, 2, 3, 4) and len(shards) == jax.local_device_count(), batch["data"].shape
        rows = sorted(int(row) for shard in batch["label"].addressable_shards for row in np.asarray(shard.data))
        print(*rows)
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_a_batch_is_one_array_over_all_devices_and_processes(
    source: dict[str, Any], tmp_path: Path, processes: int
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={4 // processes}", "JAX_PLATFORMS": "cpu"}
    run = [
        subprocess.Popen(
            [sys.executable, "-c", _SHARDED, source["hdf5"]["path"], str(processes), str(number), port],
            env={**os.environ, **flags},
            cwd=tmp_path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(processes)
    ]
    told = [each.communicate(timeout=100) for each in run]
    assert [each.returncode for each in run] == [0] * processes, told
    parts = [[list(map(int, line.split())) for line in out.splitlines()] for out, _ in told]
    together = [sorted(row for part in batch for row in part) for batch in zip(*parts, strict=True)]
    assert together == [list(range(first, first + 8)) for first in range(0, SAMPLES, 8)]
