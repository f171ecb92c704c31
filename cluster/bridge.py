"""`python -m blobfeed.cluster.bridge CONFIG LINK PARENT`: connects the assembler to a Ray cluster's loaders.

     assembler                        bridge                          actor N, on some node
        │ ── StartLoader(N) ──────────► │ ── RemoteLoader, place, begin ─► │   1. the cluster places it; it makes
        │ ◄── LoaderStarted, Ready ──── │ ◄─── its host, or a Refusal ──── │      a sample on trial
        │ ── a task for N ────────────► │ ── work(job) ──────────────────► │   2. several are under way at a time
        │ ◄── Done(N, task) ─────────── │ ◄─── its rows, a Ray object ──── │   3. the rows are copied into their slot
        │ ◄── LoaderEnded(N) ────────── │ ◄─── its process or node is gone │

For each actor the bridge binds the same link `tasks-N` and sends the same reports as a local loader. Only the bridge
writes an actor's rows into slots. After it has reported the end of a loader, it discards all later results of that
loader. Ray's own threads do the transport and put results into a queue; one loop does everything else.

The bridge dies with the assembler (PR_SET_PDEATHSIG), and Ray ends a dead driver's actors and objects: nothing remains.

CONFIG, LINK: the descriptors of the Config and of the link to the assembler. PARENT: the assembler's process id.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import zmq

from ..workers.processes import Config, Tasks, die_with, leave_signals_to_trainer, run_and_exit
from ..workers.transport import (
    Activity,
    ClusterCapacity,
    Done,
    Draw,
    Fill,
    FromLoader,
    LoaderEnded,
    LoaderStarted,
    LoaderStatus,
    Ready,
    Ring,
    SharedFile,
    StartFailed,
    StatusBoard,
    keep_freed_memory,
    links,
    pass_on,
    summary_of,
)
from .actor import Job, Made, NotSent, Refusal, rows_of
from .cluster import Cluster, wanted_of, why_not_joined
from .messages import FromBridge, JoinFailed, KillLoader, StartLoader, ToBridge

_LOOK_S = 0.5
"""The interval between two queries for the cluster's nodes."""

_SLOW_PLACING_S = 10.0
_MOST_ONE_AT_A_TIME = 256
_FRAME_BYTES = 1 << 16

_log = logging.getLogger("blobfeed")


@dataclass
class _Remote:
    """One actor. `waiting`: tasks not sent to it yet; `sent`: tasks that it works on, oldest first."""

    number: int
    actor: Any
    status: LoaderStatus
    asked: float
    place: str = "no node yet"
    node: str = ""
    tasks: Tasks | None = None
    link: zmq.Socket[bytes] | None = None
    waiting: deque[Fill] = field(default_factory=deque)
    sent: dict[int, Fill] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"remote loader {self.number} on {self.place}"


class _Bridge:
    def __init__(self, config: Config, errors: socket.socket, link: socket.socket) -> None:
        self._config = config
        self._plan = config.plan
        self._wanted = wanted_of(config)
        self._link = link
        self._decoder: links.Decoder[ToBridge] = links.Decoder(ToBridge)
        self._ring = Ring(config.descriptors.ring, self._plan.layout, self._plan.slots)
        self._board = StatusBoard(config.descriptors.board)
        self._errors = errors
        self._drawn = SharedFile(config.descriptors.drawn)
        self._remotes: dict[int, _Remote] = {}
        self._one_at_a_time: deque[int] = deque(maxlen=_MOST_ONE_AT_A_TIME)
        """Batches in which an actor died while it had several tasks, so that the guilty one is unknown. Their tasks are
        sent one at a time: the next death identifies it."""
        self._arrived: queue.SimpleQueue[tuple[int, Callable[[_Remote, Any], None], Future[Any]]] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._next_look = 0.0
        self._capacity = -1
        self._unplaced = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, self._plan.max_remote_loaders + 64)
        self._results = links.open_socket(self._context, zmq.PUSH)
        self._results.connect(links.address(Path(config.sockets), "results"))
        self._poller = zmq.Poller()
        self._poller.register(link.fileno(), zmq.POLLIN)
        self._poller.register(self._wake, zmq.POLLIN)

    def run(self) -> None:
        """Serve until the assembler closes its end."""
        try:
            self._cluster = Cluster(self._config)
        except Exception as error:
            with suppress(ConnectionError):  # the assembler has closed its end
                self._tell(JoinFailed(why_not_joined(self._config, error)))
            return
        try:
            with suppress(ConnectionError):  # the assembler has closed its end
                self._serve()
        finally:
            for remote in self._remotes.values():
                self._cluster.ray.kill(remote.actor)
            self._cluster.ray.shutdown()

    def _serve(self) -> None:
        while True:
            self._look_at_nodes(time.monotonic())
            ready = dict(self._poller.poll(int(1000 * _LOOK_S)))
            if self._link.fileno() in ready and not self._take_requests():
                return
            if self._wake in ready:
                self._take_arrived()
            for remote in list(self._remotes.values()):
                if remote.tasks is not None and remote.link in ready:
                    remote.waiting.extend(task for task in remote.tasks.arrived() if not isinstance(task, Draw))
                    self._send_waiting(remote)

    # ---- to the assembler

    def _tell(self, message: FromBridge) -> None:
        self._link.send(links.frame_of(message))

    def _report(self, message: FromLoader) -> None:
        self._results.send(links.frame_of(message))

    def _look_at_nodes(self, now: float) -> None:
        """Report the cluster's capacity for loaders, and end loaders whose node is lost."""
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        nodes = self._cluster.nodes()
        for remote in list(self._remotes.values()):
            if remote.node and remote.node not in nodes:
                self._end(remote, f"the cluster has lost the node of {remote}", crashed=False)
        unplaced = [each for each in self._remotes.values() if not each.node and now > each.asked + _SLOW_PLACING_S]
        if len(unplaced) > self._unplaced:  # they may wait for hours, for another training to end
            _log.warning("the cluster has no place yet for %d remote loaders: its processors are taken", len(unplaced))
        self._unplaced = len(unplaced)
        capacity = sum(map(self._cluster.capacity_of, nodes.values()))
        if capacity != self._capacity:
            self._capacity = capacity
            self._tell(ClusterCapacity(capacity))
            if self._wanted.count != "auto" and capacity < self._wanted.count:
                _log.warning("the cluster has room for %d of %d remote loaders", capacity, self._wanted.count)

    def _take_requests(self) -> bool:
        """Do the assembler's requests; returns False when the assembler is gone."""
        frame = self._link.recv(_FRAME_BYTES)
        match self._decoder.decode(frame) if frame else None:
            case StartLoader(number, line):
                self._start(number, line)
            case KillLoader(number):
                if remote := self._remotes.get(number):
                    # It hangs, and its earlier results have arrived long ago: the oldest task is the guilty one.
                    remote.status.blame(next(iter(remote.sent), 0))
                    self._end(remote, f"{remote} was killed", crashed=False)
        return bool(frame)

    # ---- to the actors

    def _start(self, number: int, line: int) -> None:
        status = self._board.line(line)
        remote = _Remote(number, self._cluster.loader(), status, time.monotonic())
        self._remotes[number] = remote
        self._call(remote, remote.actor.place.remote(), self._note_placed)

    def _call(self, remote: _Remote, ref: Any, then: Callable[[_Remote, Any], None]) -> None:
        """Call `then` in the loop with the result of `ref`; an exception instead means that the actor has ended."""
        number = remote.number

        def arrived(future: Future[Any]) -> None:
            self._arrived.put((number, then, future))
            os.eventfd_write(self._wake, 1)

        ref.future().add_done_callback(arrived)

    def _take_arrived(self) -> None:
        os.eventfd_read(self._wake)
        while not self._arrived.empty():
            number, then, future = self._arrived.get()
            remote = self._remotes.get(number)
            if remote is None:
                continue  # its end has been reported
            if error := future.exception():
                self._note_error(remote, error)
            else:
                then(remote, future.result())

    def _note_placed(self, remote: _Remote, answer: tuple[str, int, str]) -> None:
        host, pid, remote.node = answer
        remote.place = f"{host} (pid {pid})"
        remote.status.begin(remote.number, pid)
        remote.status.note_node(host)
        _log.info("%s", remote)
        self._tell(LoaderStarted(remote.number))
        self._call(remote, self._cluster.begin(remote.actor), self._note_begun)

    def _note_begun(self, remote: _Remote, refusal: Refusal | None) -> None:
        if refusal is not None:
            pass_on(self._errors, refusal.frames)
            text = f"{remote} cannot do its work there: {refusal.text}"
            self._report(StartFailed(remote.number, text, refusal.cause, refusal.traceback))
            return
        remote.link = links.open_socket(self._context, zmq.PULL)
        remote.link.bind(links.address(Path(self._config.sockets), f"tasks-{remote.number}"))
        remote.tasks = Tasks(remote.link, remote.status)
        self._poller.register(remote.link, zmq.POLLIN)
        remote.status.write(Activity.WAITING)
        self._report(Ready(remote.number))

    def _send_waiting(self, remote: _Remote) -> None:
        while remote.waiting:
            alone = any(task.batch in self._one_at_a_time for task in (*remote.sent.values(), remote.waiting[0]))
            if alone and remote.sent:
                break
            task = remote.waiting.popleft()
            remote.sent[task.task] = task
            made = self._memory_of(task, 0, task.first_row) if task.finishes and task.first_row else []
            self._send(
                remote, Job.of(task, self._plan.supply, self._drawn, [self._ring.memory[where] for where in made])
            )
        remote.status.write(Activity.READING if remote.sent else Activity.WAITING)

    def _send(self, remote: _Remote, job: Job) -> None:
        self._call(remote, remote.actor.work.remote(job), partial(self._note_made, job))

    def _memory_of(self, task: Fill, first: int, rows: int) -> list[slice]:
        """Return where rows of the task's batch lie in the ring, counted from the beginning of that."""
        return self._ring.layout.ranges(task.slot * self._plan.parameters.batch_size + first, rows)

    def _note_made(self, job: Job, remote: _Remote, made: Made | NotSent) -> None:
        if isinstance(made, NotSent):
            job.add(self._drawn, made.offset, made.count)
            self._send(remote, job)
            return
        task = job.task
        for where, rows in zip(self._memory_of(task, *rows_of(task)), made.rows, strict=True):
            self._ring.memory[where] = rows
        del remote.sent[task.task]
        pass_on(self._errors, made.frames)
        self._report(Done(remote.number, task.task, made.elapsed_ns, made.work))
        self._send_waiting(remote)

    # ---- the end of an actor

    def _note_error(self, remote: _Remote, error: BaseException) -> None:
        if not remote.node and self._cluster.cannot_begin(error):
            text = f"{remote} could not be started: {summary_of(error)}"
            self._report(StartFailed(remote.number, text, 0, str(error)))
            return
        # A lost object counts as a lost actor, too: its tasks are repeated elsewhere.
        died = isinstance(error, self._cluster.ray.exceptions.ActorDiedError)
        crashed = died and "its node has died" not in str(error)
        self._end(remote, f"{remote}: {summary_of(error)}", crashed=crashed)

    def _end(self, remote: _Remote, how: str, *, crashed: bool) -> None:
        del self._remotes[remote.number]
        with suppress(Exception):  # the actor or the cluster is gone
            self._cluster.ray.kill(remote.actor)
        if remote.link is not None:
            self._poller.unregister(remote.link)
            remote.link.close()
        if crashed and len(remote.sent) > 1:
            self._one_at_a_time.extend({task.batch for task in remote.sent.values()})
        elif crashed and remote.sent:
            remote.status.blame(next(iter(remote.sent)))
        self._tell(LoaderEnded(remote.number, how, crashed))


def main() -> None:
    descriptor, link, parent = map(int, sys.argv[1:4])
    die_with(parent)
    leave_signals_to_trainer()
    keep_freed_memory()
    bridge = _Bridge(*Config.adopt(descriptor), socket.socket(fileno=link))
    run_and_exit(bridge.run)  # without Ray's exit handlers: the cluster cleans up after a dead driver


if __name__ == "__main__":
    main()
