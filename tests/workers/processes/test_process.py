"""Facts about processes, each taken from a real one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from blobfeed.workers.processes import exit_in_words, is_stopped, loaders_that_fit, send_signal, wait_for_exit
from blobfeed.workers.transport import TasksLeft

from tests.support.trainers import trainer
from tests.support.waiting import DEADLINE_S, wait_until


@pytest.fixture
def sleeper() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A process that does nothing, and its handle."""
    process = subprocess.Popen(["sleep", "1000"])
    handle = os.pidfd_open(process.pid)
    yield process, handle
    process.kill()
    process.wait()
    os.close(handle)


def test_an_end_is_told_by_its_code_and_a_signal_without_a_name_by_its_number() -> None:
    assert exit_in_words(3) == "exited with code 3"
    assert exit_in_words(-(signal.SIGRTMIN + 3)) == f"killed by signal {signal.SIGRTMIN + 3}"


def test_a_handle_waits_for_the_end_and_no_longer_than_asked(sleeper: tuple[subprocess.Popen[bytes], int]) -> None:
    process, handle = sleeper
    begun = time.monotonic()
    assert not wait_for_exit(handle, 0.05)
    assert time.monotonic() - begun >= 0.05
    process.kill()
    assert wait_for_exit(handle, DEADLINE_S)
    assert wait_for_exit(handle, 0.0)


def test_a_signal_to_a_process_that_is_gone_is_no_error(sleeper: tuple[subprocess.Popen[bytes], int]) -> None:
    process, handle = sleeper
    send_signal(handle, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    send_signal(handle, signal.SIGKILL)


def test_a_stopped_process_is_told_from_one_that_runs_and_one_that_is_gone(
    sleeper: tuple[subprocess.Popen[bytes], int],
) -> None:
    process, _ = sleeper
    assert not is_stopped(process.pid)
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: is_stopped(process.pid), "it is stopped")
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: not is_stopped(process.pid), "it runs again")
    process.kill()
    process.wait()
    assert not is_stopped(process.pid)


STREAMS = """
import os
from blobfeed.workers.base import fill_standard_streams

as_they_were = [os.fstat(number) for number in range(3)]
for number in {closed}:
    os.close(number)
fill_standard_streams()
for number in range(3):
    expected = os.stat(os.devnull) if number in {closed} else as_they_were[number]
    assert os.path.samestat(os.fstat(number), expected), number
os._exit(os.open("/", os.O_RDONLY))
"""


@pytest.mark.parametrize("closed", [(), (0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_closed_standard_streams_become_the_null_device_and_open_ones_stay(closed: tuple[int, ...]) -> None:
    ended = subprocess.run([sys.executable, "-c", STREAMS.format(closed=closed)], capture_output=True, check=False)
    assert ended.returncode == 3, "the next descriptor is not the first one after the standard streams"


TOO_MANY_LOADERS = """
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import msgspec
from dataclasses import replace
from blobfeed.workers.api import RemoteLoaders
from blobfeed.workers.pipeline import ProcessFeed
plan = pipeline(num_loaders={here}).plan
plan = replace(plan, parameters=msgspec.structs.replace(plan.parameters, remote_loaders={remote}))
before = len(os.listdir("/proc/self/fd"))
try:
    ProcessFeed(plan)
except DescriptorLimitError as error:
    say(error)
say(len(os.listdir("/proc/self/fd")) - before)
"""


@pytest.mark.parametrize(("here", "remote"), [(30, "None"), (2, "RemoteLoaders(count=28)")])
def test_a_limit_that_the_loaders_do_not_fit_is_an_error_and_costs_no_descriptor(
    tmp_path: Path, here: int, remote: str
) -> None:
    with trainer(tmp_path, TOO_MANY_LOADERS.format(here=here, remote=remote)) as run:
        assert "30 loaders need 174 file descriptors, and the limit is 64" in run.next_line()
        run.expect("0")
        assert run.end() == 0, run.stderr


LITTLE_DATA = """
source = Numbers()
source.much = b"x" * (200 << 20)  # the processes get it pickled
with pipeline(source=source) as feed:
    used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (used + (20 << 20), resource.RLIM_INFINITY))
    try:
        feed.take()
    except RingAllocationError as error:
        say(error)
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)
"""


def test_a_limit_of_memory_that_the_start_does_not_fit_is_named(tmp_path: Path) -> None:
    with trainer(tmp_path, LITTLE_DATA) as run:
        assert "(ulimit -v, ulimit -d)" in run.next_line()
        assert run.end() == 0, run.stderr


def test_as_many_loaders_fit_as_the_control_group_has_processes_and_threads_for() -> None:
    for left in range(40):
        fit = loaders_that_fit(9, least=0, tasks=TasksLeft(left, 100, Path("/group")))
        assert fit == max(loaders for loaders in range(10) if not loaders or 7 + 4 * loaders <= left)
    assert loaders_that_fit(9, least=9, tasks=None) == 9


IN_A_SMALL_GROUP = """
group = Path(GROUP)
(group / "cgroup.procs").write_text(str(os.getpid()))
(group / "pids.max").write_text(str(int((group / "pids.current").read_text()) + ROOM))
with pipeline(num_loaders=NUM_LOADERS, epochs=3) as feed:
    try:
        steps(feed, feed.total_batches)
        say(f"deaths: {feed.statistics().loader_deaths}")
    except BlobfeedError as error:
        say(error)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of its own that may limit processes."""
    roots = [root for root in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")) if os.access(root, os.W_OK)]
    for folder in (root / f"blobfeed-test-{os.getpid()}" for root in roots):
        with suppress(OSError):
            folder.mkdir()
            if (folder / "pids.max").exists():
                yield folder
                wait_until(partial(_is_removed, folder), "the group is empty")
                return
            folder.rmdir()
    pytest.skip("no control group can be made here")


def _is_removed(group: Path) -> bool:
    with suppress(OSError):  # a process in it is ending
        group.rmdir()
    return not group.exists()


@pytest.mark.parametrize(
    ("num_loaders", "room", "outcome"),
    [
        (2, 15, "deaths: 0"),
        (2, 14, r"num_loaders=2 needs 15 .* has room for 14 \(pids.max is \d+\): .* or set num_loaders: 1$"),
        (2, 10, "or set num_loaders: 0$"),
        ("auto", 11, "deaths: 0"),
        ("auto", 10, "num_loaders=1 needs 11 .* has room for 10 .* or set num_loaders: 0$"),
    ],
)
def test_a_control_group_with_room_for_too_few_processes_is_an_error_at_the_start(
    tmp_path: Path, group: Path, num_loaders: int | str, room: int, outcome: str
) -> None:
    body = f"GROUP, ROOM, NUM_LOADERS = {str(group)!r}, {room}, {num_loaders!r}\n" + IN_A_SMALL_GROUP
    with trainer(tmp_path, body) as run:
        assert re.search(outcome, run.next_line()), run.stderr
        assert run.end() == 0, run.stderr
        assert "a loader died" not in run.stderr


WITHOUT_SIGCHLD = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
with pipeline(epochs=20) as feed:
    feed.start()
    while len(loaders := [state.pid for state in feed.activities() if state.pid]) < 2:
        time.sleep(0.005)
    for pid in loaders:
        os.kill(pid, signal.SIGKILL)
    steps(feed, feed.total_batches)
    while feed.statistics().loader_deaths < 2:
        time.sleep(0.005)
    say(feed.statistics().loader_deaths)
"""


def test_a_trainer_that_ignores_sigchld_still_has_its_dead_loaders_replaced(tmp_path: Path) -> None:
    """Programs that embed Python may; children would inherit it, and the kernel would keep no exit codes for them."""
    with trainer(tmp_path, WITHOUT_SIGCHLD) as run:
        run.expect("2")
        assert run.end() == 0, run.stderr
        assert "killed by SIGKILL" in run.stderr
        run.assert_nothing_is_left([])


KILLED_WITHOUT_SIGCHLD = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def children(pid):
    return open(f"/proc/{pid}/task/{pid}/children").read().split()
with pipeline() as feed:
    steps(feed, 1)
    (server,) = children(os.getpid())
    for pid in [*([server] if WITH_SERVER else []), *children(server)]:
        os.kill(int(pid), signal.SIGKILL)
    try:
        steps(feed, 1000)
    except AssemblerDied as death:
        say(death)
"""


@pytest.mark.parametrize(
    ("with_server", "how"), [(False, "killed by SIGKILL"), (True, "in what way is unknown, for this program ignores")]
)
def test_of_an_exit_code_that_the_kernel_did_not_keep_nothing_is_claimed(
    tmp_path: Path, with_server: bool, how: str
) -> None:
    with trainer(tmp_path, f"WITH_SERVER = {with_server}\n" + KILLED_WITHOUT_SIGCHLD) as run:
        assert f"were still wanted: {how}" in run.next_line()
        assert run.end() == 0, run.stderr


SIGTERM_TO_CHILDREN = """
feed = pipeline()
steps(feed, 8)
say("ready")
hear()
for assembler in [int(name) for name in open(f"/proc/self/task/{os.getpid()}/children").read().split()]:
    os.kill(assembler, signal.SIGTERM)
steps(feed, 100)
feed.close()
say("done")
"""


def test_a_schedulers_sigterm_to_all_processes_is_the_trainers_business(tmp_path: Path) -> None:
    """A trainer that catches it in order to save a snapshot first goes on with its assembler."""
    with trainer(tmp_path, SIGTERM_TO_CHILDREN) as run:
        run.expect("ready")
        run.tell()
        run.expect("done")
        assert run.end() == 0, run.stderr
