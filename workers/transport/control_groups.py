"""The control groups of this process, of both versions, and the processes, threads and processors that they grant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
ROOT = Path("/sys/fs/cgroup")

_UNLIMITED = 1 << 62
"""Above any real limit: version 1 control groups write "no limit" as a number of about this size."""


def control_groups(controller: str, proc: Path, root: Path) -> Iterator[tuple[Path, int]]:
    """The folder and the version of each control group above this process in which `controller` may set a limit."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:  # a kernel without control groups, or a sandbox that hides them
        return
    for line in lines:
        _, controllers, inside = line.split(":", 2)
        if controllers == "":
            yield from ((folder, 2) for folder in _upwards(root, inside))
        elif controller in controllers.split(","):
            yield from ((folder, 1) for folder in _upwards(root / controller, inside))


def _upwards(root: Path, inside: str) -> Iterator[Path]:
    group = root / inside.lstrip("/")
    # In a container the path may name a group that is only visible from outside: then its own root is all there is.
    for folder in [group, *group.parents] if group.is_dir() else [root]:
        yield folder
        if folder == root:
            return


def read_limit(file: Path) -> int | None:
    """The limit that a control group's file holds, None for none; raises OSError, as for a root, which has no file."""
    text = file.read_text().strip()
    return None if text == "max" or int(text) >= _UNLIMITED // 2 else int(text)


def processors_granted(proc: Path = PROC, root: Path = ROOT) -> float | None:
    """Return how many processors' time the tightest control group grants; None where none sets a limit."""
    return min(_processor_limits(proc, root), default=None)


def _processor_limits(proc: Path, root: Path) -> Iterator[float]:
    for folder, version in control_groups("cpu", proc, root):
        try:
            if version == 2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        except OSError:  # a root, or a group without this controller
            continue
        if quota not in ("max", "-1"):
            yield int(quota) / int(period)


class TasksLeft(NamedTuple):
    """Processes and threads that may still be started: `left` of `most`, which `folder` sets as its pids.max."""

    left: int
    most: int
    folder: Path


def tasks_left(proc: Path = PROC, root: Path = ROOT) -> TasksLeft | None:
    """The tightest control group's; None where none sets a limit, or where they cannot be seen."""
    return min(_task_limits(proc, root), default=None)


def _task_limits(proc: Path, root: Path) -> Iterator[TasksLeft]:
    for folder, _ in control_groups("pids", proc, root):
        try:
            most, now = read_limit(folder / "pids.max"), int((folder / "pids.current").read_text())
        except OSError:  # a group without this controller
            continue
        if most is not None:
            yield TasksLeft(max(0, most - now), most, folder)
