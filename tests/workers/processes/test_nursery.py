"""The process from which loaders are forked: it tells how each ended, and nothing outlives it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import pytest
from blobfeed.workers.processes import Nursery, NurseryDied
from blobfeed.workers.transport import LoaderEnded, LoaderStarted

from tests.support.part import some_of
from tests.support.waiting import is_gone, readable, wait_until

Event = LoaderStarted | LoaderEnded


@contextmanager
def nursery_of(
    main: Callable[[int, int], None], modules: tuple[str, ...] = (), keep: tuple[int, ...] = ()
) -> Iterator[Nursery]:
    nursery = Nursery(main, modules, keep)
    try:
        yield nursery
    finally:
        nursery.close()


def next_event(nursery: Nursery) -> Event:
    assert readable(nursery.fileno())
    return next(nursery.receive(0.0))


def how_it_ends(main: Callable[[int, int], None]) -> Event:
    with nursery_of(main) as nursery:
        nursery.spawn(7, 3)
        assert isinstance(next_event(nursery), LoaderStarted)
        return next_event(nursery)


def wait_for_a_signal(*_: int) -> None:
    while True:
        signal.pause()


def _raise(error: BaseException) -> NoReturn:
    raise error


def _without_streams(*_: int) -> None:
    sys.stdout = sys.stderr = None
    raise ValueError("with nowhere to print it")


ENDS: dict[str, tuple[Callable[[int, int], object], str]] = {
    "it comes back": (lambda *_: None, "exited with code 0"),
    "sys.exit(3)": (lambda *_: sys.exit(3), "exited with code 3"),
    "sys.exit(-1)": (lambda *_: sys.exit(-1), "exited with code 255"),
    "sys.exit with a text": (lambda *_: sys.exit("enough"), "exited with code 1"),
    "os._exit by its number and line": (lambda loader, line: os._exit(10 * loader + line), "exited with code 73"),
    "an exception": (lambda *_: _raise(ValueError("in a loader")), "exited with code 1"),
    "an exception with no stream to print it to": (_without_streams, "exited with code 1"),
    "KeyboardInterrupt": (lambda *_: _raise(KeyboardInterrupt()), "exited with code 1"),
    "SIGKILL": (lambda *_: os.kill(os.getpid(), signal.SIGKILL), "killed by SIGKILL"),
    "SIGTERM": (lambda *_: os.kill(os.getpid(), signal.SIGTERM), "killed by SIGTERM"),
}


@pytest.mark.parametrize("way", some_of(ENDS, 3))
def test_it_is_told_how_a_loader_ended(way: str) -> None:
    way_to_end, how = ENDS[way]

    def main(loader: int, line: int) -> None:
        way_to_end(loader, line)

    assert how_it_ends(main) == LoaderEnded(7, how, crashed=way != "SIGKILL")


def test_a_loader_has_the_standard_streams_and_what_was_kept_and_no_other_descriptor() -> None:
    ours, theirs = os.pipe()

    def main(*_: int) -> None:
        names = [entry.name for entry in Path("/proc/self/fd").iterdir() if int(entry.name) > 2]
        os.write(theirs, f"{' '.join(names)}\n".encode())

    with nursery_of(main, keep=(theirs,)) as nursery:
        nursery.spawn(1, 0)
        nursery.spawn(2, 1)
        while not isinstance(next_event(nursery), LoaderEnded):
            pass
        names = set(map(int, os.read(ours, 1000).split()))
    os.close(ours)
    os.close(theirs)
    assert theirs in names
    assert len(names) <= 2, "the other one is the directory that was being listed"


@pytest.mark.parametrize("blocker", [signal.SIGSTOP, signal.SIGCONT])
@pytest.mark.parametrize("nursery_stops", [False, True])
def test_closing_ends_all_loaders_also_stopped_ones(blocker: signal.Signals, nursery_stops: bool) -> None:
    nursery = Nursery(wait_for_a_signal, (), ())
    handles = []
    for loader in range(3):
        nursery.spawn(loader, loader)
        assert next_event(nursery) == LoaderStarted(loader)
        signal.pidfd_send_signal(nursery.handles[loader], blocker)
        handles.append(os.dup(nursery.handles[loader]))
    if nursery_stops:  # so that it has to be killed
        os.kill(nursery.pid, signal.SIGSTOP)
    nursery.close()
    for handle in handles:
        assert readable(handle, 0.0), "a loader is alive after close"
        os.close(handle)
    assert is_gone(nursery.pid)


def test_loaders_die_with_the_nursery_and_its_end_is_told_by_the_signals_name() -> None:
    with nursery_of(wait_for_a_signal) as nursery:
        nursery.spawn(1, 0)
        assert next_event(nursery) == LoaderStarted(1)
        os.kill(nursery.pid, signal.SIGKILL)
        assert readable(nursery.fileno())
        with pytest.raises(NurseryDied):
            next(nursery.receive(0.0))
        with pytest.raises(NurseryDied) as caught:
            nursery.spawn(2, 0)
        assert caught.value.exits == ("killed by SIGKILL",)
        assert readable(nursery.handles[1]), "the loader outlived the nursery"


def test_a_nursery_that_died_with_a_request_unread_is_told_from_one_that_answers() -> None:
    with nursery_of(wait_for_a_signal) as nursery:
        os.kill(nursery.pid, signal.SIGSTOP)
        with suppress(NurseryDied):
            nursery.spawn(1, 0)
        os.kill(nursery.pid, signal.SIGKILL)
        assert readable(nursery.fileno())
        with pytest.raises(NurseryDied):
            next(nursery.receive(0.0))


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once the module hangs_on_import is being imported, from `tmp_path`."""
    there = tmp_path / "started"
    (tmp_path / "hangs_on_import.py").write_text(f"open({str(there)!r}, 'w')\nimport signal\nsignal.pause()\n")
    monkeypatch.syspath_prepend(tmp_path)
    return there


def test_an_import_that_hangs_does_not_hold_up_the_end(started: Path) -> None:
    nursery = Nursery(wait_for_a_signal, ("hangs_on_import",), ())
    wait_until(started.exists, "the module is being imported")
    nursery.close()
    assert is_gone(nursery.pid)


PARENT_OF_A_NURSERY_THAT_HANGS = """
import signal, sys
from pathlib import Path
from blobfeed.workers.processes import Nursery

sys.path.insert(0, {folder!r})
nursery = Nursery(lambda *_: None, ("hangs_on_import",), ())
print(nursery.pid, flush=True)
signal.pause()
"""


def test_a_nursery_that_hangs_dies_with_its_parent(started: Path) -> None:
    code = PARENT_OF_A_NURSERY_THAT_HANGS.format(folder=str(started.parent))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        nursery = int(parent.stdout.readline())
        wait_until(started.exists, "the module is being imported")
        assert not is_gone(nursery)
        parent.kill()
        wait_until(lambda: is_gone(nursery), "the nursery is gone")


def test_what_is_imported_ahead_is_there_in_every_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_ahead.py").write_text("number = 33\n")
    monkeypatch.syspath_prepend(tmp_path)
    with nursery_of(lambda *_: os._exit(sys.modules["imported_ahead"].number), ("imported_ahead",)) as nursery:
        nursery.spawn(1, 0)
        next_event(nursery)
        assert next_event(nursery) == LoaderEnded(1, "exited with code 33", crashed=True)


def test_a_module_that_cannot_be_imported_is_left_to_the_loaders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raises_on_import.py").write_text("raise RuntimeError('not today')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with nursery_of(lambda *_: None, ("raises_on_import", "no_such_module_at_all")) as nursery:
        nursery.spawn(1, 0)
        next_event(nursery)
        assert next_event(nursery) == LoaderEnded(1, "exited with code 0", crashed=True)


def test_a_loader_that_cannot_be_watched_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "few_descriptors.py").write_text(
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (5, 5))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with nursery_of(wait_for_a_signal, ("few_descriptors",)) as nursery:
        events = []
        for loader in range(4):
            nursery.spawn(loader, loader)
            events.append(next_event(nursery))
        assert LoaderEnded(3, f"could not be forked: {os.strerror(errno.EMFILE)}", crashed=True) in events
        assert isinstance(events[0], LoaderStarted)
