"""However and whenever a trainer ends, its children end with it; and while it lives, nothing of its own disturbs them.

Every trainer is a real process; what it may leave is looked for by a mark in the environment of all its descendants,
and in the temporary directory that it has to itself.
"""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from tests.support.trainers import trainer
from tests.support.waiting import is_gone, readable, wait_until

FAMILY = 5
"""The fewest children of a running pipeline: fork server, which several share, assembler, nursery, two loaders."""

TWO_FEEDS = """
feed = pipeline()
steps(feed, 8)
held = feed.take()
reader = BatchReader(Numbers(), batch_size=4, num_loaders=2)
batches = iter(reader)
next(batches)
say("ready")
hear()
"""

ENDS = {
    "the end of its script": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "os._exit": ("os._exit(4)", 4),
    "an exception that nobody caught": ("raise RuntimeError('no way on')", 1),
    "a segmentation fault": ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV),
    **{
        each: (f"os.kill(os.getpid(), signal.{each})", -signal.Signals[each])
        for each in ("SIGKILL", "SIGTERM", "SIGINT")
    },
}


@pytest.mark.parametrize(("end", "code"), ENDS.values(), ids=ENDS)
def test_nothing_outlives_a_trainer_that_ends_without_close(tmp_path: Path, end: str, code: int) -> None:
    with trainer(tmp_path, TWO_FEEDS + end) as run:
        run.expect("ready")
        children = run.wait_for_children(2 * FAMILY - 1)
        run.tell()
        assert run.end() == code, run.stderr
        run.assert_nothing_is_left(children)


def test_no_process_has_a_file_in_dev_shm(tmp_path: Path) -> None:
    """A file that is never made there cannot be left there; the folder is too full of others' files to look for it."""
    with trainer(tmp_path, TWO_FEEDS) as run:
        run.expect("ready")
        family = [run.pid, *run.wait_for_children(2 * FAMILY - 1)]
        assert any("/memfd:blobfeed" in Path(f"/proc/{pid}/maps").read_text() for pid in family)
        assert not [pid for pid in family if "/dev/shm" in Path(f"/proc/{pid}/maps").read_text()]


def test_a_stopped_assembler_keeps_no_other_process_of_a_dead_trainer_alive(tmp_path: Path) -> None:
    with trainer(tmp_path, TWO_FEEDS) as run:
        run.expect("ready")
        children = run.wait_for_children(2 * FAMILY - 1)
        (server,) = psutil.Process(run.pid).children()
        assemblers = [child.pid for child in server.children()]
        for assembler in assemblers:
            os.kill(assembler, signal.SIGSTOP)
        run.kill()
        others = [child for child in children if child not in assemblers]
        wait_until(lambda: all(map(is_gone, others)), "the end of the fork server, nurseries and loaders")
        assert not any(map(is_gone, assemblers)), "they cannot end yet"
        for assembler in assemblers:
            os.kill(assembler, signal.SIGCONT)
        run.assert_nothing_is_left(children)


EXEC = """
feed = pipeline()
steps(feed, 3)
say("ready")
hear()
os.execv("/bin/sleep", ["sleep", "600"])
"""


def test_nothing_outlives_a_trainer_that_becomes_another_program(tmp_path: Path) -> None:
    with trainer(tmp_path, EXEC) as run:
        run.expect("ready")
        children = run.wait_for_children(FAMILY)
        run.tell()
        wait_until(lambda: all(map(is_gone, children)), "the end of the children of a trainer that called exec")
        assert run.process.poll() is None, "the other program is no business of ours"
        run.kill()


# ---- whatever the children are busy with

HUNG_IN_DECODE = """
def decode(sample, rng):
    if os.environ.get("BLOBFEED_ROLE") == "loader":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        subprocess.Popen(["sleep", "1000"])
        (HERE / "hung").touch()
        while True:
            time.sleep(1000)
    return sample["data"]

feed = pipeline(decode)
say("waiting")
feed.peek()
"""

HUNG_IN_AN_IMPORT = """
(HERE / "slow_module.py").write_text("import pathlib, time\\npathlib.Path(__file__).with_name('hung').touch()\\n"
                                     "while True: time.sleep(1000)\\n")
sys.path.append(str(HERE))

class Slow(Numbers):
    modules = ("slow_module",)

feed = pipeline(source=Slow())
say("waiting")
feed.peek()
"""


@pytest.mark.parametrize("body", [HUNG_IN_DECODE, HUNG_IN_AN_IMPORT], ids=["decode", "import"])
def test_loaders_that_hang_end_with_the_trainer_and_so_do_programs_that_they_started(tmp_path: Path, body: str) -> None:
    with trainer(tmp_path, body) as run:
        run.expect("waiting")
        wait_until((tmp_path / "hung").exists, "user code hangs")
        children = run.children()
        run.kill()
        run.assert_nothing_is_left(children)


SHARED_BY_A_HOOK = """
from multiprocessing.shared_memory import SharedMemory

def decode(sample, rng):
    global shared
    if os.environ.get("BLOBFEED_ROLE") == "loader" and not (HERE / "name").exists():
        shared = SharedMemory(create=True, size=10)
        (HERE / "name").write_text(shared.name)
    return sample["data"]

feed = pipeline(decode, num_loaders=1)  # a second one might be killed before Python's own tracker knows its memory
steps(feed, 8)
say("ready")
hear()
feed.close()
"""


@pytest.mark.parametrize("end", ["close", "kill"])
def test_shared_memory_that_a_hook_has_made_is_removed_when_the_loaders_end(tmp_path: Path, end: str) -> None:
    with trainer(tmp_path, SHARED_BY_A_HOOK) as run:
        run.expect("ready")
        memory = Path("/dev/shm", (tmp_path / "name").read_text())
        assert memory.exists()
        children = run.children()
        if end == "kill":
            run.kill()
        else:
            run.tell()
            assert run.end() == 0
        run.assert_nothing_is_left(children)
        assert not memory.exists()


# ---- standard streams

WHOLE_RUN = """
with pipeline(epochs=3) as feed:
    steps(feed, feed.total_batches)
(HERE / "result").write_text("whole")
"""

CLOSED = {"stdin": "<&-", "all three": "<&- >&- 2>&-"}


@pytest.mark.parametrize("closed", CLOSED.values(), ids=CLOSED)
def test_a_trainer_in_a_shell_works_and_ends_with_standard_streams_closed(tmp_path: Path, closed: str) -> None:
    with trainer(tmp_path, WHOLE_RUN, shell=f"{{}} {closed}; exit $?") as run:
        assert run.end() == 0, run.stderr
        assert (tmp_path / "result").read_text() == "whole"
        run.assert_nothing_is_left([])


def test_the_trainers_standard_output_closes_with_it_even_where_its_children_cannot_act(tmp_path: Path) -> None:
    with trainer(tmp_path, TWO_FEEDS) as run:
        run.expect("ready")
        children = run.wait_for_children(2 * FAMILY - 1)
        for child in children:
            os.kill(child, signal.SIGSTOP)
        run.kill()
        assert readable(run.stdout.fileno())
        assert run.stdout.read() == b""
        for child in children:
            with suppress(ProcessLookupError):  # the first to go on ends the others
                os.kill(child, signal.SIGCONT)
        run.assert_nothing_is_left(children)


PRINTING = """
def decode(sample, rng):
    if os.environ.get("BLOBFEED_ROLE") == "loader" and sample.index == 5:
        print("printed in a loader")
        os.write(1, b"written in a loader\\n")
    return sample["data"]

with pipeline(decode, epochs=1) as feed:
    steps(feed, feed.total_batches)
    say("printed in the trainer")
"""


def test_what_user_code_prints_in_a_loader_goes_to_standard_error(tmp_path: Path) -> None:
    with trainer(tmp_path, PRINTING) as run:
        assert run.end() == 0, run.stderr
        assert run.stdout.read() == b"printed in the trainer\n"
        assert "printed in a loader\n" in run.stderr
        assert "written in a loader\n" in run.stderr


PRINTING_TO_A_BROKEN_PIPE = """
def decode(sample, rng):
    if sample.index == 5:
        print("one more", file=sys.stderr)
    return sample["data"]

unread, stderr = os.pipe()
os.close(unread)
os.dup2(stderr, 2)
with pipeline(decode, num_loaders=NUM_LOADERS, epochs=1) as feed:
    try:
        steps(feed, feed.total_batches)
    except SampleError as error:
        say(repr(error.__cause__))
        say(error)
"""


@pytest.mark.parametrize("num_loaders", [0, 2])
def test_a_hook_that_prints_to_a_broken_pipe_is_no_bad_sample(tmp_path: Path, num_loaders: int) -> None:
    with trainer(tmp_path, PRINTING_TO_A_BROKEN_PIPE.replace("NUM_LOADERS", str(num_loaders))) as run:
        assert run.next_line().startswith("BrokenPipeError(32")
        message = run.next_line()
        assert "the program that reads the trainer's standard error, which loaders share, has ended" in message
        assert "repair" not in message
        assert "on_error" not in message


# ---- signals that are not for the children

IGNORING = """
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
feed = pipeline()
steps(feed, 8)
say("ready")
while hear():
    steps(feed, 50)
    say(f"deaths: {feed.statistics().loader_deaths}")
feed.close()
"""


def test_signals_of_the_terminal_do_not_end_the_children_of_a_trainer_that_lives_on(tmp_path: Path) -> None:
    with trainer(tmp_path, IGNORING) as run:
        run.expect("ready")
        children = run.wait_for_children(FAMILY)
        for number in (signal.SIGINT, signal.SIGHUP):
            os.killpg(run.pid, number)
            for child in children:
                os.kill(child, number)
        run.tell("go on")
        run.expect("deaths: 0")
        assert run.children() == children
        run.stdin.close()
        assert run.end() == 0, run.stderr
        run.assert_nothing_is_left(children)


# ---- limits

TOO_FEW_DESCRIPTORS = """
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 64))
feed = pipeline(epochs=1)
try:
    feed.start()
except DescriptorLimitError as error:
    say(error)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
steps(feed, feed.total_batches)
feed.close()
"""


def test_too_few_descriptors_are_an_error_that_says_how_many_are_needed_and_64_are_enough(
    tmp_path: Path,
) -> None:
    with trainer(tmp_path, TOO_FEW_DESCRIPTORS) as run:
        assert re.search(r"needs \d+ file descriptors to start, and \d+ of this process's 20 are free", run.next_line())
        assert run.end() == 0, run.stderr
