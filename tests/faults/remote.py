"""SIGKILL of actors, raylets, the bridge and trainers at random moments, on a Ray cluster of several raylets."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ..support import leftovers
from ..support.ray_cluster import RayCluster, kill_a_raylet, kill_an_actor, kill_the_bridge
from ..support.waiting import wait_until_none
from .figures import Figure, spread
from .record import Difference, Record, compare
from .scale import Scale
from .works import WORKS

_STUDY = "remote loaders"
_STRIKES = {"actors": kill_an_actor, "raylets": kill_a_raylet, "bridges": kill_the_bridge}
_TRAINERS_PART = 4
"""One kill in so many is a trainer's."""

_PAUSE_S = 4.0
_STEP_S = 0.03
_END_S = 30.0


def study(scale: Scale, folder: Path) -> Iterator[Figure]:
    rng = random.Random(scale.seed)
    trainers = scale.remote_kills // _TRAINERS_PART
    with RayCluster(nodes=2, cpus=2) as cluster:
        struck, difference, batches = _strike(cluster, folder, rng, scale.remote_kills - trainers)
        for name, times in struck.items():
            yield Figure(_STUDY, f"{name} killed, {batches:,} batches delivered meanwhile", times)
        for what in ("lost", "repeated", "misplaced", "altered"):
            yield Figure(
                _STUDY, f"samples {what}" if what != "altered" else "batches altered", getattr(difference, what), 0
            )
        ends = [_kill_a_trainer(cluster, folder, rng) for _ in range(trainers)]
        yield Figure(_STUDY, "trainers killed", len(ends))
        yield Figure(_STUDY, "until the last process and actor was gone, median / 95 % / most", spread(ends))
        yield Figure(
            _STUDY,
            f"trainers that left a process, an actor or an object after {_END_S:g} s",
            sum(e > _END_S for e in ends),
            0,
        )


def _strike(
    cluster: RayCluster, folder: Path, rng: random.Random, kills: int
) -> tuple[dict[str, int], Difference, int]:
    """One run, with pauses that let it come to itself about as often as not."""
    struck = dict.fromkeys(_STRIKES, 0)
    record = Record()
    remote = {"address": cluster.address, "count": 3}
    with WORKS[4].open(folder, epochs=100_000, num_loaders=0, remote_loaders=remote, timeout_s=300.0) as pipeline:
        next_kill = time.monotonic() + rng.expovariate(1 / _PAUSE_S)
        while sum(struck.values()) < kills:
            batch = pipeline.take()
            record.add(batch)
            pipeline.release(batch)
            time.sleep(_STEP_S)  # a training step
            if time.monotonic() > next_kill:
                name = rng.choice(list(_STRIKES))
                _STRIKES[name](cluster, pipeline, rng.randrange(100))
                struck[name] += 1
                next_kill = time.monotonic() + rng.expovariate(1 / _PAUSE_S)
        for _ in range(30):
            batch = pipeline.take()
            record.add(batch)
            pipeline.release(batch)
    return struck, compare(_undisturbed(folder, len(record.digests)), record), len(record.digests)


def _undisturbed(folder: Path, batches: int) -> Record:
    record = Record()
    with WORKS[4].open(folder, epochs=100_000) as pipeline:
        for _ in range(batches):
            batch = pipeline.take()
            record.add(batch)
            pipeline.release(batch)
    return record


def _kill_a_trainer(cluster: RayCluster, folder: Path, rng: random.Random) -> float:
    """Seconds until nothing was left of it."""
    before = set(leftovers.orphans())
    command = [sys.executable, "-P", "-m", __name__, str(folder), cluster.address]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as trainer:
        time.sleep(rng.uniform(0.5, 12.0))  # not waiting for anything: the moment is what is drawn by lot
        trainer.kill()
        killed = time.monotonic()

    def left() -> list[str]:
        family = set(leftovers.orphans()) - before - {trainer.pid} - set(cluster.family())
        return [*map(str, family), *["an actor"] * cluster.living_actors(), *["objects"] * (cluster.object_bytes() > 0)]

    wait_until_none(left, 2 * _END_S)
    return time.monotonic() - killed


def _train() -> None:
    remote = {"address": sys.argv[2], "count": 2}
    with WORKS[4].open(Path(sys.argv[1]), epochs=None, num_loaders=1, remote_loaders=remote) as pipeline:
        while True:
            pipeline.release(pipeline.take())


if __name__ == "__main__":
    _train()
