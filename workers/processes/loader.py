"""A loader: takes tasks, makes their rows in the slots, reports. It is forked from the nursery.

    1. receive Fill or Draw   (its own tasks link, at most two ahead)
    2. write the next step on the status board
    3. make the rows, in the slot's own memory; run the whole-batch hook if they complete a batch
    4. send Done, with the bad rows

The assembler may kill it at any time, so no step may rely on cleaning up.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from traceback import format_exception_only

import zmq

from ..loading import Worker, Workplace
from ..transport import (
    Activity,
    Done,
    Draw,
    Fill,
    FromLoader,
    LoaderStatus,
    Ready,
    SharedFile,
    StartFailed,
    ToLoader,
    describe,
    keep_freed_memory,
    links,
    send_exception,
    summary_of,
)
from .config import Config

_LAST_REPORT_MS = 1000
_WORK = ("read", "decode", "postprocess")
"""The kinds of work, in the order of the status board, as a trace names them."""


def run_loader(config: Config, errors: socket.socket, loader: int, line: int) -> None:
    """Run loader number `loader`, on `line` of the status board; returns only if it could not start."""
    os.environ["BLOBFEED_ROLE"] = "loader"
    begun = time.monotonic_ns()
    settle()
    status = config.status(line)
    status.begin(loader, os.getpid())
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    results = links.open_socket(context, zmq.PUSH)
    results.connect(links.address(Path(config.sockets), "results"))

    def report(message: FromLoader) -> None:
        results.send(links.frame_of(message))

    try:
        ring = config.plan.ring(config.descriptors.ring)
        send_error = partial(send_exception, errors)
        with exceptions_only():
            place = Workplace(ring.rows, status, send_error, SharedFile(config.descriptors.drawn), exceptions_only)
            worker = config.plan.worker(place)
            status.keep_places()
    except Exception as error:
        report(StartFailed(loader, summary_of(error), send_exception(errors, error), describe(error)))
        context.destroy(linger=_LAST_REPORT_MS)
        return
    tasks = links.open_socket(context, zmq.PULL)
    tasks.bind(links.address(Path(config.sockets), f"tasks-{loader}"))
    if (trace := config.trace()) is not None:
        start = trace.span("loader", "start", begun, time.monotonic_ns(), loader=loader)
        trace.name(f"loader {loader}", 2, start)
    report(Ready(loader))
    status.write(Activity.WAITING)
    for message in _messages(Tasks(tasks, status), worker):
        begun = time.monotonic_ns()
        status.begin_task(message.task)
        before = status.busy_times() if trace is not None else ()
        done = worker.work(message)
        status.write(Activity.WAITING)
        ended = time.monotonic_ns()  # behind the last write: no kind of work takes longer than the task
        status.blame(0)
        if trace is not None:  # before the report: with the last one the run may end, and the line be lost
            args: dict[str, object] = {"task": message.task, "loader": loader}
            if isinstance(message, Draw):
                trace.write(trace.span("loader", "draw", begun, ended, **args, epoch=message.epoch))
            else:
                args["batch"] = config.plan.first_number + message.batch
                trace.write(trace.span("loader", "task", begun, ended, **args, **_timings(message, status, before)))
        report(Done(loader, message.task, ended - begun, done))


def _timings(message: ToLoader, status: LoaderStatus, before: Sequence[int]) -> dict[str, object]:
    """The samples of a task, the milliseconds of each kind of work, and the sample that took longest."""
    rows = {"rows": message.rows} if isinstance(message, Fill) else {}
    took = zip(_WORK, before, status.busy_times(), strict=True)
    work = {name: (now - then) / 1e6 for name, then, now in took if now > then}
    sample, slowest_ns = status.slowest_of_task
    return {**rows, **work, **({"slowest": sample, "slowest_ms": slowest_ns / 1e6} if slowest_ns else {})}


def settle() -> None:
    """Tune this process for decoding: keep freed memory, one OpenCV thread."""
    keep_freed_memory()
    if cv2 := sys.modules.get("cv2"):
        cv2.setNumThreads(1)


class exceptions_only:  # noqa: N801 - as contextlib's are named
    """Turns an exception of user code that is no Exception into a HookError.

    A KeyboardInterrupt comes from the hook itself here, since Ctrl-C does not reach a loader. It would end the process
    with nothing but an exit code. A SystemExit passes through, since it asks for that end.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        """Enter the block; nothing to prepare."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is not None and not isinstance(error, Exception | SystemExit):
            text = "".join(format_exception_only(error)).strip()
            raise HookError(f"{text} (user code in a loader raised it; it is no Exception)") from error


class HookError(Exception):
    """User code raised an exception that is no Exception. It is the cause, and the message begins with its name."""


class Tasks:
    """The loader's end of its tasks link. It drops and counts frames that are no task."""

    def __init__(self, link: zmq.Socket[bytes], status: LoaderStatus) -> None:
        self._link = link
        self._decoder: links.Decoder[ToLoader] = links.Decoder(ToLoader)
        self._status = status

    def wait(self) -> None:
        # Its parent's death ends this process (PR_SET_PDEATHSIG), so a wait without a deadline is safe here.
        self._link.poll()

    def arrived(self) -> Iterator[ToLoader]:
        for frame in links.frames(self._link):
            if (task := self._decoder.decode(frame)) is None:
                self._status.note_dropped()
            else:
                yield task


def _messages(tasks: Tasks, worker: Worker) -> Iterator[ToLoader]:
    """Yield tasks in order. A task that arrives behind another is announced once, before the other one is done."""
    waiting: list[ToLoader] = []
    while True:
        if not waiting:
            tasks.wait()
        arrived = list(tasks.arrived())
        behind = arrived if waiting else arrived[1:]
        waiting += arrived
        for early in behind:
            if isinstance(early, Fill):
                worker.announce(early)
        if waiting:
            yield waiting.pop(0)
