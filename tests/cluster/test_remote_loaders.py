"""Loaders on a Ray cluster of three raylets: the bytes of local ones, whatever dies, and nothing left of them."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.workers.api import RemoteLoaders
from blobfeed.workers.pipeline import Pipeline
from blobfeed.workers.transport import Activity

from blobfeed import BatchReader, LoaderDied, SampleError, SourceError
from blobfeed.monitor import Monitor, as_mapping
from tests.faults.record import Record, compare, read
from tests.faults.works import WORKS, Work
from tests.support.pipelines import Fault, Harm, Place, Trap, take_for_ever, trapped_pipeline
from tests.support.ray_cluster import RayCluster, bridges, kill_a_raylet, kill_an_actor, kill_the_bridge
from tests.support.trainers import trainer
from tests.support.waiting import is_gone, wait_until

# An actor imports the framework's parts and makes a sample before it is ready: on a busy machine the two seconds that
# WORKS give a task were not enough, and one actor after the other was killed as it started.
PATIENT = {"task_timeout_s": 20.0, "timeout_s": 120.0}
PATIENT_WORKS = tuple(replace(work, values={**work.values, **PATIENT}) for work in WORKS)
DECODED = PATIENT_WORKS[4]
_START_S = 240.0
"""Five processes import blobfeed, two of them Ray too: 5 s, and more than 60 s beside two busy loops."""

EPOCHS = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    # Two loaders fill it: none is on the head, whose raylet is never killed, and each other raylet has one.
    with RayCluster(nodes=2, cpus=1) as cluster:
        yield cluster
        wait_until(lambda: cluster.living_actors() == 0 == cluster.object_bytes(), "the end of all actors and objects")


def remote(cluster: RayCluster, count: int = 2, **values: Any) -> dict[str, Any]:
    return {"address": cluster.address, "count": count, **values}


def undisturbed(work: Work, folder: Path, **values: Any) -> Record:
    with work.open(folder, **{"epochs": EPOCHS, **values}) as pipeline:
        return read(pipeline)


def test_decoded_and_postprocessed_bytes_are_those_of_local_loaders(tmp_path: Path, cluster: RayCluster) -> None:
    expected = undisturbed(DECODED, tmp_path, num_loaders=2)
    # The node has larger pages, as some Arm machines do: slots take more space there.
    (tmp_path / "sitecustomize.py").write_text("import mmap\nmmap.PAGESIZE *= 16\n")
    large_pages = {"env_vars": {"PYTHONPATH": str(tmp_path)}}
    given = {"num_loaders": 1, "remote_loaders": remote(cluster, 1, runtime_env=large_pages)}
    with DECODED.open(tmp_path, epochs=EPOCHS, **given) as pipeline:
        pipeline.start()
        monitor = Monitor(os.getpid())
        wait_until(lambda: socket.gethostname() in _nodes_seen(monitor), "a remote loader that is seen on its node")
        wait_until(partial(at_work, pipeline, 2), "both loaders at work")
        assert compare(expected, read(pipeline)).is_none
        assert not pipeline.statistics().loader_deaths
    assert "ray" not in sys.modules  # that is for other processes


def _nodes_seen(monitor: Monitor) -> set[str]:
    return {state["node"] for watched in monitor.look() for state in as_mapping(watched)["loader_states"]}


@pytest.mark.slow
@pytest.mark.parametrize("work", PATIENT_WORKS, ids=lambda work: work.name)
@pytest.mark.parametrize("local", [0, 1])
def test_bytes_are_those_of_local_loaders_whatever_is_read(
    tmp_path: Path, cluster: RayCluster, work: Work, local: int
) -> None:
    given = {"num_loaders": local, "remote_loaders": remote(cluster, 2 - local)}
    assert compare(undisturbed(work, tmp_path), undisturbed(work, tmp_path, **given)).is_none


@pytest.mark.slow
def test_files_may_be_shipped(tmp_path: Path, cluster: RayCluster) -> None:
    expected = undisturbed(DECODED, tmp_path)
    given = {"num_loaders": 0, "remote_loaders": remote(cluster, runtime_env={"working_dir": str(tmp_path)})}
    with DECODED.open(tmp_path, epochs=EPOCHS, **given) as pipeline:
        pipeline.start()
        wait_until(lambda: any(state.pid for state in pipeline.activities()), "the first loader")
        shipped = [Path(f"/proc/{state.pid}/cwd").readlink() for state in pipeline.activities() if state.pid]
        (tmp_path / "None.h5").rename(tmp_path / "elsewhere.h5")
        assert compare(expected, read(pipeline)).is_none
    assert all((folder / "None.h5").exists() and folder != tmp_path for folder in shipped)


@pytest.mark.slow
def test_each_node_has_a_cache_of_its_own(tmp_path: Path, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = undisturbed(DECODED, tmp_path)
    monkeypatch.chdir(tmp_path)
    # Below the working directory of each process, which is another one for loaders of a shipped folder.
    cache = {"path": "/proc/self/cwd/samples.cache", "size_limit": 1 << 26}
    given = {"num_loaders": 0, "remote_loaders": remote(cluster, runtime_env={"working_dir": str(tmp_path)})}
    with DECODED.open(tmp_path, epochs=EPOCHS, cache=cache, **given) as pipeline:
        assert compare(expected, read(pipeline)).is_none
        theirs = [Path(f"/proc/{state.pid}/cwd/samples.cache") for state in pipeline.activities() if state.pid]
        assert theirs
        assert not any(path.samefile(tmp_path / "samples.cache") for path in theirs)


def growing() -> Callable[..., dict[str, Any]]:
    """A hook that holds an array so large that it travels beside the pickle."""
    heights = 8 + np.arange(100_000) % 40

    def grow(sample: Any, rng: np.random.Generator) -> dict[str, Any]:
        if sample.index % 7 == 1:
            raise ValueError("bad")
        data = sample["data"][:, : heights[sample.index]]
        return {"data": data ^ rng.integers(256, dtype=data.dtype), "label": sample["label"]}

    return grow


def backwards_and_some_again(epoch: int, samples: int, _rng: np.random.Generator) -> Any:
    return np.append(np.arange(samples)[:: -1 - epoch], [1, 0, 1])


@pytest.mark.slow
def test_a_samplers_epochs_of_samples_of_many_shapes_some_bad_are_the_same(tmp_path: Path, cluster: RayCluster) -> None:
    DECODED.open(tmp_path).close()
    records: list[list[tuple[bytes, list[int]]]] = []
    cases: list[dict[str, Any]] = [{"num_loaders": 1}, {"num_loaders": 1, "remote_loaders": remote(cluster)}]
    for given, loaders in zip(cases, (1, 3), strict=True):
        path = str(tmp_path / "None.h5")
        how: dict[str, Any] = {"epochs": EPOCHS, "sampler": backwards_and_some_again, "decode": growing(), "pad": {}}
        how |= {"batch_size": 12, "on_error": "replace", "max_shapes": {"data": (3, 48, 48)}}
        with BatchReader({"hdf5": {"path": path}}, **how, **given) as reader:
            reader.start()
            wait_until(partial(at_work, reader._pipeline, loaders), "all loaders at work")
            records.append(
                [(batch["data"].tobytes(), batch.indices.tolist()) for _ in range(EPOCHS) for batch in reader]
            )
    assert records[0] == records[1]
    assert len(records[0]) > EPOCHS


def take_some(pipeline: Pipeline, record: Record, batches: int) -> None:
    for _ in range(batches):
        batch = pipeline.take()
        record.add(batch)
        pipeline.release(batch)


def at_work(pipeline: Pipeline, least: int) -> bool:
    return sum(state.pid > 0 and state.activity > Activity.STARTING for state in pipeline.activities()) >= least


def more_deaths(pipeline: Pipeline, than: int) -> bool:
    return pipeline.statistics().loader_deaths > than


def take_until(holds: Callable[[], bool], what: str, pipeline: Pipeline, record: Record) -> None:
    def holds_now() -> bool:
        take_some(pipeline, record, 1)
        return holds()

    wait_until(holds_now, what)


@pytest.mark.parametrize(
    "strikes",
    [
        pytest.param([(kill_an_actor, 2)], id="actor"),
        pytest.param([(kill_a_raylet, 2), (kill_the_bridge, 1)], id="raylet, bridge", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_lost_or_repeated_when_actor_raylet_and_bridge_are_killed(
    tmp_path: Path, cluster: RayCluster, strikes: list[tuple[Callable[[RayCluster, Pipeline], None], int]]
) -> None:
    record, expected = Record(), Record()
    with DECODED.open(tmp_path, epochs=1000, num_loaders=0, remote_loaders=remote(cluster)) as pipeline:
        pipeline.start()
        # With one loader alone the raylet might have none, and nobody would die with it.
        for strike, working in strikes:
            # Without taking batches meanwhile, for which one actor after the other is busy in vain.
            wait_until(partial(at_work, pipeline, working), f"{working} at work", _START_S)
            take_some(pipeline, record, 5)
            before = pipeline.statistics().loader_deaths
            strike(cluster, pipeline)
            # An actor that has nothing to do is missed when it gets the next task.
            take_until(partial(more_deaths, pipeline, before), "a death", pipeline, record)
        take_some(pipeline, record, 10)
    with DECODED.open(tmp_path, epochs=1000) as pipeline:
        take_some(pipeline, expected, len(record.digests))
    assert compare(expected, record).is_none


KILLED = """
from tests.faults.works import WORKS
from pathlib import Path
given = {"epochs": None, "num_loaders": 0, "task_timeout_s": 120.0, "remote_loaders": {remote!r}}
with WORKS[4].open(Path(sys.argv[1]), **given) as pipeline:
    pipeline.release(pipeline.take())
    say("ready")
    hear()
"""


def test_nothing_is_left_of_a_trainer_that_is_killed(tmp_path: Path, cluster: RayCluster) -> None:
    code = KILLED.replace("sys.argv[1]", repr(str(tmp_path))).replace("{remote!r}", repr(remote(cluster)))
    with trainer(tmp_path, code) as run:
        run.expect("ready", _START_S)
        bridge = bridges(run.process.pid)[0]
        wait_until(lambda: cluster.living_actors() == 2, "both actors alone, without those of the trial")
        run.process.kill()
        run.end()
        wait_until(lambda: is_gone(bridge), "the end of the bridge")
        wait_until(lambda: cluster.living_actors() == 0, "the end of the actors")
        wait_until(lambda: cluster.object_bytes() == 0, "the end of the objects")


def test_a_node_that_joins_later_is_used(tmp_path: Path, cluster: RayCluster) -> None:
    given = {"address": cluster.address, "resources": {"later": 1}, "num_cpus": 0}
    with DECODED.open(tmp_path, epochs=None, num_loaders=1, remote_loaders=given) as pipeline:
        pipeline.release(pipeline.take())
        cluster.add_node(resource="later")

        def joined() -> bool:
            pipeline.release(pipeline.take())
            return sum(state.pid > 0 for state in pipeline.activities()) == 3

        wait_until(joined, "both loaders of the new node")


def test_what_a_node_cannot_read_is_found_in_setup_and_told_with_the_node(
    tmp_path: Path, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    DECODED.open(tmp_path).close()
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {"batch_size": 12, "num_loaders": 0, "remote_loaders": remote(cluster)}
    unreadable = "/proc/self/cwd/None.h5"  # another file in each process
    nodes = rf"{os.uname().nodename} .*None\.h5.* {os.uname().nodename} "
    with pytest.raises(SourceError, match=nodes) as caught:
        BatchReader({"hdf5": {"path": unreadable}}, **given)
    assert "No such file" in str(caught.value.__cause__)


def test_what_a_node_cannot_read_any_more_is_told_at_once_with_the_node(tmp_path: Path, cluster: RayCluster) -> None:
    with DECODED.open(tmp_path, num_loaders=0, remote_loaders=remote(cluster, 1)) as pipeline:
        (tmp_path / "None.h5").rename(tmp_path / "elsewhere.h5")
        with pytest.raises(LoaderDied, match=rf"{os.uname().nodename} .*None\.h5"):
            pipeline.take()


@pytest.mark.slow
def test_an_exception_comes_back_as_itself(cluster: RayCluster) -> None:
    trap = Trap(Fault.EXCEPTION, Place.DECODE, frozenset({11}))
    given = RemoteLoaders(**remote(cluster))
    with trapped_pipeline(trap, num_loaders=0, remote_loaders=given, epochs=None) as pipeline:
        with pytest.raises(SampleError) as caught:
            take_for_ever(pipeline)
        assert caught.value.index == 11
        assert isinstance(caught.value.__cause__, Harm)


@pytest.mark.slow
def test_a_sample_on_which_actors_die_is_named(cluster: RayCluster) -> None:
    trap = Trap(Fault.SEGMENTATION_FAULT, Place.DECODE, frozenset({11}))
    given = RemoteLoaders(**remote(cluster))
    pipeline = trapped_pipeline(trap, num_loaders=0, remote_loaders=given, epochs=None)
    with pipeline, pytest.raises(SampleError) as caught:
        take_for_ever(pipeline)
    assert (caught.value.index, caught.value.__cause__) == (11, None)


@pytest.mark.slow
def test_a_node_without_the_packages_is_told_in_setup_and_when_it_joins(tmp_path: Path, cluster: RayCluster) -> None:
    (tmp_path / "msgspec.py").write_text("raise ModuleNotFoundError('none of it here')")
    lacking = {"env_vars": {"PYTHONPATH": str(tmp_path)}}
    node = rf"{os.uname().nodename} .*none of it here"
    with pytest.raises(SourceError, match=node):
        DECODED.open(tmp_path, num_loaders=1, remote_loaders=remote(cluster, runtime_env=lacking))
    given = remote(cluster, runtime_env=lacking, resources={"lacking": 1}, num_cpus=0)
    with DECODED.open(tmp_path, num_loaders=0, remote_loaders=given) as pipeline:
        pipeline.start()
        cluster.add_node(resource="lacking")
        with pytest.raises(LoaderDied, match="none of it here"):
            pipeline.take()


def test_arrays_in_memory_are_sent_to_the_nodes(cluster: RayCluster) -> None:
    data = np.arange(4000).reshape(100, 40)
    given: dict[str, Any] = {"num_loaders": 0, "remote_loaders": remote(cluster, 1)}
    with BatchReader({"arrays": {"data": data}}, batch_size=10, epochs=1, **given) as reader:
        assert np.array_equal(np.concatenate([batch["data"] for batch in reader]), data)
