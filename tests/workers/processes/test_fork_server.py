"""The process that the pipelines of a program share, and from which their assemblers are forked."""

from __future__ import annotations

from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from blobfeed import DataLoader
from tests.support.part import some_of
from tests.support.pipelines import trapped_pipeline
from tests.support.trainers import trainer
from tests.support.waiting import is_gone


def servers() -> list[int]:
    return [child.pid for child in psutil.Process().children()]


def test_pipelines_share_it_from_the_first_batch_to_the_last_close() -> None:
    before = servers()
    with trapped_pipeline() as one:
        one.release(one.take())
        (server,) = set(servers()) - {*before}
        with trapped_pipeline() as other:
            other.take()
            one.go_to(one.progress)
            assert len(psutil.Process(server).children()) == 1
            one.take()
            assert {*servers()} - {*before} == {server}
        assert not is_gone(server)
    assert is_gone(server)
    assert servers() == before


def test_torch_is_imported_in_it_once_and_from_the_construction_on() -> None:
    before = servers()
    loaders = [DataLoader(list(range(8)), num_workers=1) for _ in range(2)]
    (server,) = set(servers()) - {*before}
    assert [len(list(loader)) for loader in loaders] == [8, 8]
    assert "libtorch" in Path(f"/proc/{server}/maps").read_text()
    for loader in loaders:
        loader.close()
    assert servers() == before


LIKE_THE_TRAINER = """
import gc

def seen():
    os.umask(umask := os.umask(0))
    nice, cores = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)
    limits = resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_CPU)
    return str((os.environ.get("CHANGED"), os.getcwd(), umask, nice, cores, limits, os.readlink("/proc/self/fd/2"),
        gc.isenabled()))

def decode(sample, rng):
    if os.environ.get("BLOBFEED_ROLE") == "loader" and not (HERE / NAME).exists():
        (HERE / NAME).write_text(seen())
    return sample["data"]

first, NAME = pipeline(decode), "first"
steps(first, 1)
exec(CHANGE)
for NAME in ("second", "third"):
    with pipeline(decode, num_loaders=1) as feed:
        steps(feed, 1)
    there, here = (HERE / NAME).read_text(), seen()
    say(there == here or f"{there} is not {here}")
steps(first, 4)
say(first.statistics().loader_deaths)
first.close()
"""

CHANGES = {
    "a variable": 'os.environ["CHANGED"] = "yes"',
    "the folder": 'os.chdir("/")',
    "the mask of new files": "os.umask(0o077)",
    "its priority": "os.nice(5)",
    "its cores": "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})",
    "a limit": "resource.setrlimit(resource.RLIMIT_CPU, (10_000, 10_000))",
    "standard error": "os.dup2(os.open(HERE / 'errors', os.O_CREAT | os.O_WRONLY), 2)",
    "nothing, but the server was killed": (
        "os.kill(int(open(f'/proc/self/task/{os.getpid()}/children').read()), signal.SIGKILL)"
    ),
}


@pytest.mark.parametrize("change", some_of(CHANGES, 3))
def test_loaders_are_as_the_trainer_is_when_their_pipeline_starts(tmp_path: Path, change: str) -> None:
    with trainer(tmp_path, f"CHANGE = {CHANGES[change]!r}\n" + LIKE_THE_TRAINER) as run:
        assert [run.next_line() for _ in range(3)] == ["True", "True", "0"], run.stderr
        assert run.end() == 0, run.stderr
        run.assert_nothing_is_left([])
