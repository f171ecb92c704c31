"""How much memory is available, on made-up /proc and control group trees of both versions."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from blobfeed.workers.transport.memory import available_memory
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.pure

MIB = 1 << 20
FREE = 8000 * MIB


class Machine:
    """Trees as the kernel shows them; `FREE` bytes are free, and nothing is limited but by what a test adds."""

    def __init__(self, root: Path, groups: str = "") -> None:
        self.proc = root / "proc"
        self.cgroup = root / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.cgroup.mkdir()
        meminfo = f"MemTotal: 16000000 kB\nMemFree: 1 kB\nMemAvailable: {FREE // 1024} kB\nHugePages_Total: 0\n"
        (self.proc / "meminfo").write_text(meminfo)
        (self.proc / "self/status").write_text("Name:\tpython\nVmPeak:\t9 kB\nVmSize:\t  102400 kB\nThreads:\t1\n")
        (self.proc / "self/cgroup").write_text(groups)

    def group(self, path: str, files: Mapping[str, object]) -> None:
        folder = self.cgroup / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(f"{content}\n")

    def v2(self, path: str, limit: int | str, used: int, inactive_file: int = 0, active_file: int = 0) -> None:
        stat = f"anon 77\nfile {inactive_file + active_file}\nactive_file {active_file}\ninactive_file {inactive_file}"
        self.group(path, {"memory.max": limit, "memory.current": used, "memory.stat": stat})

    def v1(self, path: str, limit: int, used: int, inactive_file: int = 0, active_file: int = 0) -> None:
        total = f"total_active_file {active_file}\ntotal_inactive_file {inactive_file}"
        stat = f"cache 9\ninactive_file 1\nactive_file 1\nhierarchical_memory_limit {limit}\n{total}"
        names = {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used, "memory.stat": stat}
        self.group(f"memory/{path}", names)

    def available(self) -> int:
        return available_memory(self.proc, self.cgroup)


def test_without_limits_it_is_what_the_kernel_calls_available(tmp_path: Path) -> None:
    assert Machine(tmp_path).available() == FREE


def test_here_something_is_to_be_had_and_not_more_than_there_is() -> None:
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert 0 < available_memory() <= int(total.split()[1]) * 1024


# ---- control groups

NO_LIMIT_V1 = 9223372036854771712

# The groups that a process is in; those in the tree by path, with limit, use and page cache; what they grant.
GROUPS = {
    "the limit less what is used": ("0::/job", Machine.v2, {"job": (1000 * MIB, 400 * MIB)}, 600 * MIB),
    "page cache counts as free": ("0::/job", Machine.v2, {"job": (1000 * MIB, 900 * MIB, 700 * MIB)}, 800 * MIB),
    "that in use too": ("0::/job", Machine.v2, {"job": (1000 * MIB, 900 * MIB, 100 * MIB, 600 * MIB)}, 800 * MIB),
    "that in use too, version 1": (
        "4:memory:/job",
        Machine.v1,
        {"job": (1000 * MIB, 900 * MIB, 100 * MIB, 600 * MIB)},
        800 * MIB,
    ),
    "max is no limit": ("0::/job", Machine.v2, {"job": ("max", 400 * MIB)}, FREE),
    "not more than there is": ("0::/job", Machine.v2, {"job": (10 * FREE, 0)}, FREE),
    "over the limit": ("0::/job", Machine.v2, {"job": (100 * MIB, 101 * MIB)}, 0),
    "version 1 beside 2": (
        "5:cpu,cpuacct:/other\n4:memory:/job\n1:name=systemd:/x\n0::/",
        Machine.v1,
        {"job": (1000 * MIB, 600 * MIB, 100 * MIB)},
        500 * MIB,
    ),
    "mounted with others": ("4:memory,hugetlb:/job", Machine.v1, {"job": (1000 * MIB, 600 * MIB)}, 400 * MIB),
    "version 1 without limit": ("4:memory:/job", Machine.v1, {"job": (NO_LIMIT_V1, 600 * MIB)}, FREE),
    "nested, version 1": (
        "4:memory:/slice/job",
        Machine.v1,
        {"": (NO_LIMIT_V1, 5000 * MIB), "slice": (900 * MIB, 600 * MIB), "slice/job": (700 * MIB, 100 * MIB)},
        300 * MIB,
    ),
    "not visible, version 1": ("4:memory:/docker/0123456789", Machine.v1, {"": (300 * MIB, 100 * MIB)}, 200 * MIB),
}


@pytest.mark.parametrize(("groups", "version", "tree", "granted"), GROUPS.values(), ids=GROUPS)
def test_a_group_grants_its_limit_less_what_is_used(
    tmp_path: Path, groups: str, version: Callable[..., None], tree: dict[str, tuple[object, ...]], granted: int
) -> None:
    machine = Machine(tmp_path, f"{groups}\n")
    for path, figures in tree.items():
        version(machine, path, *figures)
    assert machine.available() == granted


@pytest.mark.parametrize("inside", ["/docker/0123456789", "/../../elsewhere", "/"])
def test_in_a_container_that_does_not_show_our_group_its_root_counts(tmp_path: Path, inside: str) -> None:
    machine = Machine(tmp_path, f"0::{inside}\n")
    machine.v2("", 300 * MIB, 100 * MIB)
    machine.v2("unrelated", 10 * MIB, 0)
    assert machine.available() == 200 * MIB


@settings(max_examples=40)
@given(rooms=st.lists(st.none() | st.integers(0, 10_000), min_size=1, max_size=4))
def test_of_nested_groups_the_tightest_counts(
    tmp_path_factory: pytest.TempPathFactory, rooms: list[int | None]
) -> None:
    names = "/".join(f"level{depth}" for depth in range(len(rooms)))
    machine = Machine(tmp_path_factory.mktemp("machine"), f"0::/{names}\n")
    for depth, room in enumerate(rooms):
        path = "/".join(names.split("/")[: depth + 1])
        machine.v2(path, "max" if room is None else (room + 50) * MIB, 50 * MIB)
    granted = [room * MIB for room in rooms if room is not None]
    assert machine.available() == min([FREE, *granted])


def test_groups_without_the_memory_controller_are_passed_over(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/slice/job\n")
    machine.v2("slice", 500 * MIB, 0)
    machine.group("slice/job", {"cgroup.procs": "1"})
    assert machine.available() == 500 * MIB


def test_where_control_groups_cannot_be_seen_only_the_rest_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (machine.proc / "self/cgroup").unlink()
    assert machine.available() == FREE


def test_where_the_kernel_does_not_say_what_is_free_all_there_is_and_the_groups_count(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/job\n")
    (machine.proc / "meminfo").unlink()
    assert machine.available() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    machine.v2("job", 300 * MIB, 100 * MIB)
    assert machine.available() == 200 * MIB


# ---- what the process may map


@pytest.mark.parametrize(("limit_mib", "granted_mib"), [(500, 400), (100, 0), (50, 0)])
def test_the_address_space_left_is_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_mib: int, granted_mib: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit_mib * MIB, resource.RLIM_INFINITY))
    assert Machine(tmp_path).available() == granted_mib * MIB  # 100 MiB are mapped already
