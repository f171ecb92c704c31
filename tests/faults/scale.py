"""How much of everything: the long version, the quick one, and the few seconds that every test run spends on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """`chaos_s`: how long the trainer takes over each work's epochs; `pause_s`: mean time between two faults."""

    chaos_s: float
    pause_s: float
    kills: int
    hangs: int
    assemblers: int
    trainers: int
    restarts: int
    small_batches: int
    hostile_frames: int
    crash_step: int
    """One case of the table of crashes in so many is run."""
    starts: int
    soak_s: float
    damaged_files: int
    """Copies of each format."""
    states: int
    """Looked at, of each variant of a small run, if it has more."""
    interrupts: int
    """Inside deliveries, over all ways in which a batch can come."""
    remote_kills: int
    """Of actors, raylets, the bridge and trainers, in all."""
    survival_s: float = 1.0
    """So long after its parent's end nothing lives. A second is the promise, if the machine has nothing else to do."""
    chaos_epochs: int = 10
    work_step: int = 1
    """One work in so many is thrown into chaos."""
    seed: int = 1


FULL = Scale(
    chaos_s=15.0,
    pause_s=0.2,
    kills=100,
    hangs=12,
    assemblers=25,
    trainers=120,
    restarts=100,
    small_batches=1_000_000,
    hostile_frames=4000,
    crash_step=1,
    starts=7,
    soak_s=600.0,
    damaged_files=1000,
    states=200_000,
    interrupts=600,
    remote_kills=50,
)
QUICK = Scale(
    chaos_s=2.0,
    pause_s=0.15,
    kills=10,
    hangs=1,
    assemblers=2,
    trainers=6,
    restarts=6,
    small_batches=60_000,
    hostile_frames=400,
    crash_step=35,
    starts=1,
    soak_s=9.0,
    damaged_files=60,
    states=500,
    interrupts=90,
    remote_kills=4,
    work_step=2,
)
