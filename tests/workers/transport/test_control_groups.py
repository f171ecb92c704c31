"""The processes, threads and processors that control groups grant, on made-up trees of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest
from blobfeed.workers.transport.control_groups import TasksLeft, processors_granted, tasks_left

pytestmark = pytest.mark.pure

# The groups that a process is in; those in the tree by path, with limit and use; the tightest one and what is left.
GROUPS: dict[str, tuple[str, dict[str, tuple[object, int]], tuple[int, int, str] | None]] = {
    "version 2": ("0::/job", {"job": (20, 5)}, (15, 20, "job")),
    "version 1 beside 2": ("8:pids:/job\n0::/", {"pids/job": (20, 5)}, (15, 20, "pids/job")),
    "max is no limit": ("0::/job", {"job": ("max", 5)}, None),
    "over the limit": ("0::/job", {"job": (4, 5)}, (0, 4, "job")),
    "nested": ("0::/slice/job", {"slice": (30, 28), "slice/job": (20, 5)}, (2, 30, "slice")),
    "not visible": ("0::/docker/0123", {"": (20, 5), "other": (3, 3)}, (15, 20, "")),
    "without the controller": ("0::/job", {}, None),
}


@pytest.mark.parametrize(("groups", "tree", "expected"), GROUPS.values(), ids=GROUPS)
def test_the_tightest_group_counts(
    tmp_path: Path,
    groups: str,
    tree: dict[str, tuple[object, int]],
    expected: tuple[int, int, str] | None,
) -> None:
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(f"{groups}\n")
    root.mkdir()
    for path, (limit, used) in tree.items():
        (root / path).mkdir(parents=True, exist_ok=True)
        (root / path / "pids.max").write_text(f"{limit}\n")
        (root / path / "pids.current").write_text(f"{used}\n")
    found = None if expected is None else TasksLeft(expected[0], expected[1], root / expected[2])
    assert tasks_left(proc, root) == found


# The groups that a process is in; the files of the tree; the processors that they grant.
PROCESSORS: dict[str, tuple[str, dict[str, str], float | None]] = {
    "version 2": ("0::/job", {"job/cpu.max": "150000 100000"}, 1.5),
    "max is no limit": ("0::/job", {"job/cpu.max": "max 100000"}, None),
    "nested": ("0::/slice/job", {"slice/cpu.max": "50000 100000", "slice/job/cpu.max": "200000 100000"}, 0.5),
    "in a container": ("0::/docker/0123", {"cpu.max": "300000 100000"}, 3.0),
    "version 1": (
        "3:cpu,cpuacct:/job\n0::/",
        {"cpu/job/cpu.cfs_quota_us": "250000", "cpu/job/cpu.cfs_period_us": "50000"},
        5.0,
    ),
    "version 1 without limit": (
        "3:cpu:/job",
        {"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "100000"},
        None,
    ),
    "without the controller": ("0::/job", {"job/pids.max": "3"}, None),
}


@pytest.mark.parametrize(("groups", "files", "granted"), PROCESSORS.values(), ids=PROCESSORS)
def test_the_tightest_quota_of_processor_time_counts(
    tmp_path: Path, groups: str, files: dict[str, str], granted: float | None
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{groups}\n")
    for name, text in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(f"{text}\n")
    assert processors_granted(tmp_path / "proc", tmp_path / "cgroup") == granted


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert tasks_left(tmp_path, tmp_path) is None
    assert processors_granted(tmp_path, tmp_path) is None
