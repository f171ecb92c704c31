"""A process that is forked from the trainer keeps nothing of blobfeed alive, and disturbs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.part import some_of
from tests.support.trainers import trainer
from tests.support.waiting import is_gone

from .test_trainer_death import FAMILY

OUTLIVED = """
import multiprocessing

feed = pipeline()
steps(feed, 8)

def outlive(listening):
    os.write(listening, b"here")
    while True:
        time.sleep(1000)

heard, listening = os.pipe()
if FORK == "os.fork":
    child = os.fork()
    if child == 0:
        outlive(listening)
else:
    process = multiprocessing.get_context("fork").Process(target=outlive, args=(listening,))
    process.start()
    child = process.pid
os.read(heard, 4)
say(child)
hear()
"""


@pytest.mark.parametrize("fork", some_of(["os.fork", "multiprocessing"], 2))
def test_a_fork_that_outlives_the_trainer_keeps_nothing_of_blobfeed_alive(tmp_path: Path, fork: str) -> None:
    with trainer(tmp_path, f"FORK = {fork!r}\n" + OUTLIVED) as run:
        outliving = int(run.next_line())
        children = run.wait_for_children(FAMILY + 1)
        run.kill()
        run.assert_nothing_is_left(children, spared=outliving)
        assert not is_gone(outliving)


FORKED_READER = """
feed = pipeline()
reader = BatchReader(Numbers(), batch_size=4, num_loaders=2, epochs=None)
batches = iter(reader)
next(batches)
steps(feed, 8)
held = feed.take()

def refused(call):
    try:
        call()
    except PipelineClosed as error:
        return f"belongs to process {os.getppid()}" in str(error)
    return False

for leave in (os._exit, sys.exit):
    child = os.fork()
    if child == 0:
        uses = (feed.peek, feed.take, feed.start, lambda: feed.release(held), lambda: feed.load_state_dict({}),
                lambda: next(batches))
        answers = [refused(use) for use in uses]
        feed.close()
        reader.close()
        leave(7 if all(answers) else f"not refused: {answers}")
    say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
feed.release(held)
steps(feed, 100)
for _ in range(100):
    next(batches)
say(feed.statistics().loader_deaths + reader.statistics().loader_deaths)
"""


def test_a_fork_may_not_use_the_trainers_pipeline_and_disturbs_nothing_when_it_ends(tmp_path: Path) -> None:
    with trainer(tmp_path, FORKED_READER) as run:
        assert [run.next_line() for _ in range(3)] == ["7", "7", "0"], run.stderr
        children = run.children()
        assert run.end() == 0, run.stderr
        run.assert_nothing_is_left(children)


FORKED_EARLY = """
feed = pipeline()
child = os.fork()
if child == 0:
    try:
        feed.start()
    except PipelineClosed:
        sys.exit(7)
    sys.exit(8)
say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
if os.fork() == 0:
    with pipeline(epochs=1) as own:
        steps(own, own.total_batches)
    sys.exit(0)
steps(feed, 8)
say(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_fork_may_have_a_pipeline_of_its_own(tmp_path: Path) -> None:
    with trainer(tmp_path, FORKED_EARLY) as run:
        assert [run.next_line() for _ in range(2)] == ["7", "0"], run.stderr
        assert run.end() == 0, run.stderr
        run.assert_nothing_is_left([])
