"""The limits of control groups of both versions, and the memory that is available, on made-up trees."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from blobfeed.workers.transport import TasksLeft, available_memory, processors_granted, tasks_left

pytestmark = pytest.mark.pure

MIB = 1 << 20
FREE = 8000 * MIB
NO_LIMIT_V1 = 9223372036854771712

Files = dict[str, str]


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A machine on which `FREE` bytes are free and nothing is limited; 100 MiB of the process are mapped."""
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    meminfo = f"MemTotal: 16000000 kB\nMemFree: 1 kB\nMemAvailable: {FREE // 1024} kB\nHugePages_Total: 0\n"
    (folder / "meminfo").write_text(meminfo)
    (folder / "self/status").write_text(
        "Name:\tpython\nVmPeak:\t9 kB\nVmSize:\t  102400 kB\nVmData:\t  51200 kB\nThreads:\t1\n"
    )
    return folder


def tree(proc: Path, groups: str, files: Files) -> Path:
    """The control groups: those that the process is in, and their files; returns where they are mounted."""
    root = proc.parent / "cgroup"
    root.mkdir()
    (proc / "self/cgroup").write_text(f"{groups}\n")
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


def pids(group: str, limit: object, used: int) -> Files:
    return {f"{group}/pids.max": str(limit), f"{group}/pids.current": str(used)}


HERE = pids("job", 20, 5)
# The groups that a process is in, their files, what is left of which limit, and the group that it is the limit of.
TASKS: dict[str, tuple[str, Files, tuple[int, int, str] | None]] = {
    "version 2": ("0::/job", HERE, (15, 20, "job")),
    "version 1 beside 2": ("1:name=systemd:/x\n8:pids:/job\n0::/", pids("pids/job", 20, 5), (15, 20, "pids/job")),
    "max is no limit": ("0::/job", pids("job", "max", 5), None),
    "over the limit": ("0::/job", pids("job", 4, 5), (0, 4, "job")),
    "the outer one is tighter": ("0::/slice/job", pids("slice", 30, 28) | pids("slice/job", 20, 5), (2, 30, "slice")),
    "the inner one is tighter": (
        "0::/slice/job",
        pids("slice", 30, 5) | pids("slice/job", 20, 5),
        (15, 20, "slice/job"),
    ),
    # In a container, a group that is only visible from outside: its own root counts.
    "not visible": ("0::/docker/0123", pids(".", 20, 5) | pids("other", 3, 3), (15, 20, "")),
    "outside": ("0::/../../elsewhere", pids(".", 20, 5) | pids("other", 3, 3), (15, 20, "")),
    "the root": ("0::/", pids(".", 20, 5) | pids("other", 3, 3), (15, 20, "")),
    "without the controller": (
        "0::/slice/job",
        pids("slice", 20, 5) | {"slice/job/cgroup.procs": "1"},
        (15, 20, "slice"),
    ),
    "without any": ("0::/job", {}, None),
}


@pytest.mark.parametrize("case", TASKS)
def test_the_tightest_limit_of_processes_counts(proc: Path, case: str) -> None:
    groups, files, expected = TASKS[case]
    root = tree(proc, groups, files)
    found = None if expected is None else TasksLeft(expected[0], expected[1], root / expected[2])
    assert tasks_left(proc, root) == found


def quota(quota: int, period: int) -> Files:
    return {"cpu/job/cpu.cfs_quota_us": str(quota), "cpu/job/cpu.cfs_period_us": str(period)}


PROCESSORS: dict[str, tuple[str, Files, float | None]] = {
    "version 2": ("0::/job", {"job/cpu.max": "150000 100000"}, 1.5),
    "version 1": ("3:cpu,cpuacct:/job\n0::/", quota(250_000, 50_000), 5.0),
    "max is no limit": ("0::/job", {"job/cpu.max": "max 100000"}, None),
    "version 1 without limit": ("3:cpu:/job", quota(-1, 100_000), None),
    "the tightest": ("0::/a/b", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "200000 100000"}, 0.5),
    "without the controller": ("0::/job", {"job/pids.max": "3"}, None),
}


@pytest.mark.parametrize("case", PROCESSORS)
def test_the_tightest_quota_of_processor_time_counts(proc: Path, case: str) -> None:
    groups, files, granted = PROCESSORS[case]
    assert processors_granted(proc, tree(proc, groups, files)) == granted


# ---- memory


def v2(group: str, limit: object, used: int, inactive_file: int = 0, active_file: int = 0) -> Files:
    stat = f"anon 77\nfile {inactive_file + active_file}\nactive_file {active_file}\ninactive_file {inactive_file}"
    return {f"{group}/memory.max": str(limit), f"{group}/memory.current": str(used), f"{group}/memory.stat": stat}


def v1(limit: int, used: int, inactive_file: int = 0, active_file: int = 0) -> Files:
    total = f"total_active_file {active_file}\ntotal_inactive_file {inactive_file}"
    stat = f"cache 9\ninactive_file 1\nactive_file 1\nhierarchical_memory_limit {limit}\n{total}"
    names = {"limit_in_bytes": str(limit), "usage_in_bytes": str(used)}
    return {f"memory/job/memory.{name}": text for name, text in {**names, "stat": stat}.items()}


MEMORY: dict[str, tuple[str, Files, int]] = {
    "the limit less what is used": ("0::/job", v2("job", 1000 * MIB, 400 * MIB), 600 * MIB),
    "page cache counts as free": ("0::/job", v2("job", 1000 * MIB, 900 * MIB, 100 * MIB, 600 * MIB), 800 * MIB),
    "version 1": ("4:memory:/job\n0::/", v1(1000 * MIB, 900 * MIB, 100 * MIB, 600 * MIB), 800 * MIB),
    "version 1 without limit": ("4:memory:/job", v1(NO_LIMIT_V1, 600 * MIB), FREE),
    "max is no limit": ("0::/job", v2("job", "max", 400 * MIB), FREE),
    "not more than there is": ("0::/job", v2("job", 10 * FREE, 0), FREE),
    "over the limit": ("0::/job", v2("job", 100 * MIB, 101 * MIB), 0),
    "the tightest": ("0::/a/b", v2("a", 300 * MIB, 0) | v2("a/b", 700 * MIB, 0), 300 * MIB),
    "without the controller": ("0::/a/b", v2("a", 500 * MIB, 0) | {"a/b/cgroup.procs": "1"}, 500 * MIB),
}


@pytest.mark.parametrize("case", MEMORY)
def test_a_group_grants_its_limit_less_what_is_used(proc: Path, case: str) -> None:
    groups, files, granted = MEMORY[case]
    assert available_memory(proc, tree(proc, groups, files)) == granted


@pytest.mark.parametrize("read", [tasks_left, processors_granted])
def test_where_control_groups_cannot_be_seen_there_is_no_limit(read: Callable[..., object], proc: Path) -> None:
    assert read(proc, proc) is None
    assert available_memory(proc, proc) == FREE


def test_here_something_is_to_be_had_and_not_more_than_there_is() -> None:
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert 0 < available_memory() <= int(total.split()[1]) * 1024


def test_where_the_kernel_does_not_say_what_is_free_all_there_is_and_the_groups_count(proc: Path) -> None:
    (proc / "meminfo").unlink()
    assert available_memory(proc, proc) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert available_memory(proc, tree(proc, "0::/job", v2("job", 300 * MIB, 100 * MIB))) == 200 * MIB


@pytest.mark.parametrize(("kind", "used_mib"), [(resource.RLIMIT_AS, 100), (resource.RLIMIT_DATA, 50)])
@pytest.mark.parametrize("limit_mib", [500, 100, 50])
def test_the_address_space_left_is_a_limit(
    proc: Path, monkeypatch: pytest.MonkeyPatch, kind: int, used_mib: int, limit_mib: int
) -> None:
    none = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda of: (limit_mib * MIB if of == kind else none, none))
    assert available_memory(proc, proc) == max(0, limit_mib - used_mib) * MIB
