"""How many processes and threads control groups grant, on made-up trees of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest
from blobfeed.workers.transport.control_groups import TasksLeft, tasks_left

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


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert tasks_left(tmp_path, tmp_path) is None
