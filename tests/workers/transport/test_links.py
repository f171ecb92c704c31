"""The links: where their sockets lie, that their paths fit, and that none of them ever blocks its process."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from blobfeed.workers.transport import Release, links

from tests.support import leftovers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.pure

HOUR_S = 3600.0

LONGEST = "tasks-9999999"
MOST_CHARACTERS = 107


Open = Callable[[int], "zmq.Socket[bytes]"]


@pytest.fixture
def open_link() -> Iterator[Open]:
    """Opens a socket that is closed when the test ends."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    opened = []

    def open_one(kind: int) -> zmq.Socket[bytes]:
        opened.append(links.open_socket(context, kind))
        return opened[-1]

    yield open_one
    context.destroy(linger=0)


@pytest.fixture
def deep() -> Iterator[Path]:
    """A directory that leaves room for exactly the longest of our socket paths."""
    length = MOST_CHARACTERS - len("/blobfeed-" + 16 * "0") - len(f"/{LONGEST}")
    root = Path(tempfile.mkdtemp(dir="/tmp"))
    folder = root / ("d" * (length - len(str(root)) - 1))
    folder.mkdir()
    yield folder
    shutil.rmtree(root)


# ---- the directory


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_each_directory_is_ours_alone_and_can_be_removed_twice(umask: int) -> None:
    folder, other = links.choose_socket_directory(), links.choose_socket_directory()
    assert folder != other
    assert not folder.exists()
    before = os.umask(umask)
    try:
        links.make_socket_directory(folder)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "batches").touch()
    for _ in range(2):
        links.remove_socket_directory(folder)
        assert not folder.exists()


def test_a_path_that_just_fits_is_used_and_can_be_bound(
    deep: Path, monkeypatch: pytest.MonkeyPatch, open_link: Open
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    folder = links.choose_socket_directory()
    assert folder.parent == deep
    assert len(str(folder / LONGEST)) == MOST_CHARACTERS
    links.make_socket_directory(folder)
    socket = open_link(zmq.PULL)
    socket.bind(links.address(folder, LONGEST))
    assert (folder / LONGEST).is_socket()
    links.remove_socket_directory(folder)


def test_a_folder_whose_name_is_no_utf_8_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_link: Open
) -> None:
    base = Path(tempfile.mkdtemp(suffix=os.fsdecode(b"\xe9"), dir="/tmp"))  # a short path, wherever the run's own is
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    folder = links.choose_socket_directory()
    assert folder.parent == base
    links.make_socket_directory(folder)
    sender, receiver = open_link(zmq.PUSH), open_link(zmq.PULL)
    receiver.bind(links.address(folder, "batches"))
    sender.connect(links.address(folder, "batches"))
    sender.send(b"frame")
    assert receiver.recv() == b"frame"
    links.remove_socket_directory(folder)
    base.rmdir()


@pytest.mark.parametrize("reason", ["one character too long", "as many letters, of two bytes each", "not there"])
def test_a_temporary_directory_that_cannot_be_used_is_passed_over(
    deep: Path, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = deep.with_name(("ü" if "letters" in reason else "d") * (len(deep.name) + (reason[:3] == "one")))
    folder.mkdir(exist_ok=True)
    if reason == "not there":
        folder.rmdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    assert links.choose_socket_directory().parent == Path("/tmp")


def test_where_only_dev_shm_can_be_written_to_it_lies_there(monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a container whose root file system is read-only.
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", raises_that_none_is_usable)
    monkeypatch.setattr(os, "access", lambda folder, _: folder == "/dev/shm")
    assert links.choose_socket_directory().parent == Path("/dev/shm")


def raises_that_none_is_usable() -> None:
    raise FileNotFoundError("No usable temporary directory found")


# ---- the sockets


def pair(folder: Path, open_link: Open) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    """A receiver that has bound and a sender that has connected."""
    receiver, sender = open_link(zmq.PULL), open_link(zmq.PUSH)
    receiver.bind(links.address(folder, "batches"))
    sender.connect(links.address(folder, "batches"))
    return receiver, sender


def arrivals(receiver: zmq.Socket[bytes], count: int) -> list[bytes]:
    """The next `count` frames, and what came with them."""
    arrived: list[bytes] = []

    def have_come() -> bool:
        arrived.extend(links.frames(receiver))
        return len(arrived) >= count

    wait_until(have_come, f"{count} frames have come")
    return arrived


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = links.choose_socket_directory()
    links.make_socket_directory(folder)
    yield folder
    links.remove_socket_directory(folder)


def test_a_flood_does_not_keep_its_reader_for_ever(folder: Path, open_link: Open) -> None:
    receiver, sender = pair(folder, open_link)
    taken = 0
    sender.send(b"first")
    assert receiver.poll(60_000)
    for _ in links.frames(receiver):
        taken += 1
        if taken > 100_000:
            break
        for _ in range(2):
            sender.send(b"more")
    assert taken <= 100_000


def test_sending_does_not_wait_for_a_receiver_and_what_was_sent_is_kept(folder: Path, open_link: Open) -> None:
    sender = open_link(zmq.PUSH)
    sender.connect(links.address(folder, "batches"))
    for number in range(2000):
        sender.send(b"%d" % number, zmq.NOBLOCK)
    receiver = open_link(zmq.PULL)
    receiver.bind(links.address(folder, "batches"))
    assert arrivals(receiver, 2000) == [b"%d" % number for number in range(2000)]


def test_closing_does_not_wait_for_frames_that_nobody_takes(folder: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sender = links.open_socket(context, zmq.PUSH)
    sender.connect(links.address(folder, "nobody"))
    sender.send(b"x" * 1000)
    sender.close()
    context.term()


def test_an_oversized_frame_is_refused_and_others_go_on(
    folder: Path, open_link: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "MAX_FRAME_BYTES", 1000)
    receiver, sender = pair(folder, open_link)
    other = open_link(zmq.PUSH)
    other.connect(links.address(folder, "batches"))
    sender.send(b"x" * 1001)
    other.send(b"y" * 1000)
    assert receiver.poll(60_000)
    assert list(links.frames(receiver)) == [b"y" * 1000]
    assert not receiver.poll(50)


CUT_OFF = links.frame_of(Release(2))[:-1]


@pytest.mark.parametrize("noise", [b"", b"\0", b"\0" * 4, b"\1", b"\xff" * 4, bytes(range(60)), CUT_OFF])
@pytest.mark.parametrize("as_parts", [False, True])
def test_noise_is_dropped_and_the_next_frame_is_read(
    noise: bytes, as_parts: bool, folder: Path, open_link: Open
) -> None:
    """Also where all are parts of one message."""
    receiver, sender = pair(folder, open_link)
    decoder = links.Decoder[Release](Release)
    sent = [links.frame_of(Release(1)), noise, links.frame_of(Release(3))]
    for message in [sent] if as_parts else [[each] for each in sent]:
        sender.send_multipart(message)
    opened: list[Release | None] = []
    while len(opened) < 3:
        assert receiver.poll(60_000)
        opened += map(decoder.decode, links.frames(receiver))
    assert opened == [Release(1), None, Release(3)]
    assert decoder.dropped == 1


def test_a_context_ends_whole_while_signals_arrive() -> None:
    """As of a profiler that samples by a timer: each interrupted end would leave a thread and five descriptors."""
    before, handler = leftovers.descriptors(), signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        for number in range(50):
            context = zmq.Context()
            link = links.open_socket(context, zmq.PULL)
            link.bind(f"inproc://{number}")  # not while signals arrive: under pyzmq 26 it may fail then
            signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
            links.end_context(context)
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert link.closed
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert leftovers.opened_since(before) == []


# ---- what dead runs have left


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory with a short path."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def _left(path: Path | None = None) -> Path:
    """A directory with the socket of a process that has ended, an hour old."""
    folder = path or links.choose_socket_directory()
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "releases"))
        bound.listen()
    _age(folder)
    return folder


def _age(folder: Path) -> None:
    os.utime(folder, (time.time() - HOUR_S, time.time() - HOUR_S))


def test_a_start_removes_the_directories_of_dead_runs(base: Path) -> None:
    left = [_left() for _ in range(3)]
    links.make_socket_directory(mine := links.choose_socket_directory())
    assert not any(folder.exists() for folder in left)
    assert list(base.iterdir()) == [mine]


def test_a_start_leaves_alone_what_may_live(base: Path) -> None:
    alive = _left()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(alive / "batches"))
        bound.listen(0)
        _age(alive)
        young = _left()
        os.utime(young)
        empty = links.choose_socket_directory()
        empty.mkdir()
        _age(empty)
        users = _left()
        (users / "notes").write_text("mine")
        _age(users)
        of_another_host = _left(base / "blobfeed-0000000001234567")
        link = links.choose_socket_directory()
        link.symlink_to(alive)
        links.make_socket_directory(links.choose_socket_directory())
        links.make_socket_directory(links.choose_socket_directory())  # the backlog is full by now
        assert all(each.exists() for each in (alive, young, empty, users, of_another_host))
        assert link.is_symlink()


def test_a_start_leaves_alone_what_belongs_to_another_user(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = _left()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    links.make_socket_directory(links.choose_socket_directory())
    assert left.exists()
