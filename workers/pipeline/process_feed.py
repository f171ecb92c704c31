"""A running pipeline seen from the trainer: the assembler's process, two links, and the wait for the next group.

Each wait watches three things at once: the batches link, the assembler's process handle, and the clock. The
status board says what every loader is doing even when the assembler does not answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import zmq

from ..api import Statistics
from ..assembly import Reception
from ..base import AssemblerDied, BlobfeedError, PipelineClosed, PipelineStalled, close_all, fill_standard_streams
from ..plan import Batch, Plan
from ..processes import (
    WHERE_TO_LOOK,
    AssemblerProcess,
    Config,
    RemoteHome,
    Shared,
    Watch,
    interrupts_deferred,
    is_stopped,
    loaders_that_fit,
    require_descriptors,
    require_threads,
    trainer_sys_path,
    wait_for_exit,
)
from ..transport import (
    Announce,
    Count,
    End,
    ErrorInbox,
    Failure,
    Give,
    GoOn,
    LoaderState,
    Release,
    Stop,
    ToTrainer,
    available_memory,
    levels_of_trainer,
    links,
    read_board,
    tasks_left,
)
from .failures import Failed, explain, too_many_held, what_loaders_do
from .feed import counts_on

_STALL_LOG_S = 10.0
_LOGS_S = 1.0
"""The time between two looks at what the children log, while the trainer never waits."""

_END_S = 5.0
"""The time that the assembler has to end before it is killed."""

_log = logging.getLogger("blobfeed")


def _fitting(plan: Plan) -> Plan:
    """Return the plan with as many loaders and slots as fit; raises BlobfeedError if fixed loaders do not.

    The control groups grant processes and memory. The ring of `prefetch_batches: auto` takes at most half of the
    memory that is available, or two slots: the loaders need some, too.
    """
    least = min(1, plan.max_loaders) if plan.parameters.num_loaders == "auto" else plan.max_loaders
    fit = loaders_that_fit(plan.max_loaders, least=least, tasks=tasks_left())
    slots = max(2, min(plan.auto_slots, available_memory() // 2 // plan.layout.slot_bytes))
    return replace(plan, max_loaders=fit, auto_slots=slots)


class ProcessFeed:
    """The processes of one pipeline, from start to close."""

    def __init__(self, plan: Plan, watch: Watch = Watch(), remote_home: RemoteHome | None = None) -> None:  # noqa: B008
        """Start them. `remote_home`: makes the home of loaders on other machines.

        Raises RingAllocationError, DescriptorLimitError, SocketPathError, InterpreterError, BlobfeedError if the system
        allows too few threads or has no /proc, or what pickling raises.
        """
        self._has_begun = False
        """The trainer has taken a group."""
        self._last = Statistics()
        """The counts at the end."""
        plan = self._plan = _fitting(plan)
        self._watcher, self._remote_home = watch, remote_home
        self._reception = Reception()
        self._releasing: deque[int] = deque()
        self._waiting = threading.RLock()
        """Held by the thread that takes or waits for a group, at the sockets."""
        self._reported_ns = 0
        self._next_look_at_logs = 0.0
        self._failure: Failed | None = None
        require_descriptors(plan.max_loaders + plan.max_remote_loaders)
        fill_standard_streams()
        self._assembler: AssemblerProcess | None = None
        self._release_link: zmq.Socket[bytes] | None = None
        with ExitStack() as stack:
            with interrupts_deferred():
                self.shared = Shared(plan, partial(watch.begin_trace, plan.description, plan.parameters.batch_size))
                self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
                stack.callback(self.close)
                self._start()
            stack.pop_all()

    def _start(self) -> None:
        shared, given = self.shared, self._plan.parameters
        shared.board.describe(self._plan.description)
        self._inbox = ErrorInbox(shared.errors)
        self._decoder: links.Decoder[ToTrainer] = links.Decoder(ToTrainer)
        config = Config(
            self._plan,
            shared.descriptors,
            str(shared.folder),
            trainer_sys_path(),
            levels_of_trainer(),
            self._remote_home,
            self._watcher if given.trace or given.metrics else Watch(),
        )
        self._assembler = AssemblerProcess(config)
        require_threads()  # from here on while its interpreter starts, which takes longer
        shared.ring.allocate()
        shared.board.header.assembler = self._assembler.pid
        self.shared.close_childrens()
        links.make_socket_directory(self.shared.folder)
        self._batch_link = links.open_socket(self._context, zmq.PULL)
        self._batch_link.bind(links.address(self.shared.folder, "batches"))
        self._receiver = links.Receiver(self._batch_link)
        self._release_link = links.open_socket(self._context, zmq.PUSH)
        self._release_link.connect(links.address(self.shared.folder, "releases"))
        self._poller = zmq.Poller()
        self._poller.register(self._batch_link, zmq.POLLIN)
        self._poller.register(self._assembler.handle, zmq.POLLIN)
        self._poller.register(self.shared.errors, zmq.POLLIN)

    # ---- groups

    def next(self) -> list[Batch]:
        return self._open(self.next_announce())

    def ready(self) -> list[Batch]:
        if self._failure is not None:
            raise self._failure.error()
        announce = self._received()
        return [] if announce is None else self._open(announce)

    def _open(self, announce: Announce) -> list[Batch]:
        """Return the batches of an announced group, as views on its slot."""
        return self._plan.unpack(announce, self.shared.ring.views[announce.slot])

    def next_announce(self) -> Announce:
        """Return the announcement of the next group, the same one until it is accepted."""
        if self._failure is not None:
            raise self._failure.error()
        with self._waiting:
            if (assembler := self._assembler) is None:
                raise PipelineClosed("the pipeline has been closed; make a new one")
            return self._received() or self._wait(assembler)

    def accept(self, group: int) -> None:
        if self._reception.accept(group):
            self._receiver.discard()
        if not self._has_begun:
            self.shared.board.note_start()
            self._has_begun = True

    def release(self, group: int) -> None:
        self._releasing.append(group)
        self._send_releases()

    def _send_releases(self) -> None:
        """A release that was interrupted is sent again: the assembler drops the second of two, a lost release
        leaks the slot.
        """
        while self._releasing:
            self._reception.release(self._releasing[0])
            if self._release_link is not None and self._failure is None:
                waited_ns = self.shared.board.counts[Count.WAITED_NS]
                waited, self._reported_ns = waited_ns - self._reported_ns, waited_ns
                self._release_link.send(links.frame_of(Release(self._releasing[0], waited)))
            self._releasing.popleft()

    def give(self, batch: int, epoch: int, rows: int, shard: int) -> None:
        """Have batch number `batch`, of `epoch`, made; its request lies in the ring."""
        if self._release_link is not None and self._failure is None:
            self._release_link.send(links.frame_of(Give(batch, epoch, rows, shard)))

    def go_on(self) -> bool:
        if self._release_link is None or (frame := self._receiver.frame()) is None:
            return False
        end = self._decoder.decode(frame)
        if not isinstance(end, End) or self._reception.wants(end) is None:
            return False
        self._release_link.send(links.frame_of(GoOn(end.number)))
        self._reception.ends += 1
        self._receiver.discard()
        return True

    def map_slots(self) -> None:
        """Map the slots into this process now: the trainer has to wait anyway, while loaders start."""
        self.shared.ring.populate()

    def _received(self) -> Announce | None:
        """Return the next valid announcement among the frames that have arrived; it stays until it is accepted."""
        if (now := time.monotonic()) > self._next_look_at_logs:
            self._next_look_at_logs = now + _LOGS_S
            self._inbox.receive()
        for _ in range(links.MOST_AT_ONCE):
            if (frame := self._receiver.frame()) is None:
                break
            message = self._decoder.decode(frame)
            wanted = None if message is None else self._reception.wants(message)
            if isinstance(wanted, Announce):
                return wanted
            if isinstance(wanted, End):  # it stays; slots are released still, as another loop may follow
                raise self._explain(wanted)
            if wanted is not None:
                self._failure = Failed(self._explain(wanted))
                raise self._failure.error()
            self._receiver.discard()
        return None

    def _wait(self, assembler: AssemblerProcess) -> Announce:
        self._send_releases()  # first: a group whose release was interrupted is not held any more
        if len(self._reception.held) >= self.shared.ring.slots:
            raise PipelineStalled(too_many_held(self.shared.ring.slots))
        begun, board = time.monotonic_ns(), self.shared.board
        board.counts[Count.STALLS] += 1
        board.counts[Count.WAITING_SINCE] = begun
        try:
            return self._watch(assembler)
        finally:
            if self._assembler is not None:  # as it is if a signal's handler has closed the pipeline
                board.counts[Count.WAITED_NS] += time.monotonic_ns() - begun
                board.counts[Count.WAITING_SINCE] = 0

    def _watch(self, assembler: AssemblerProcess) -> Announce:
        timeout_s = self._plan.parameters.timeout_s
        clock = links.AwakeClock()  # while the job is suspended, the loaders are too
        now = begun = clock.now
        deadline, next_log = begun + timeout_s, begun + _STALL_LOG_S
        while True:
            wait_s = min(links.LONGEST_WAIT_S, max(0.0, min(deadline, next_log) - now))
            # A millisecond more than asked, so that a wake-up just before the deadline does not spin.
            try:
                ready = dict(self._poller.poll(int(wait_s * 1000) + 1))
            except zmq.ZMQError:  # pyzmq polls on when a signal's handler has come back, which may have closed them
                if self._assembler is not None:
                    raise
            if self._assembler is None:
                raise PipelineClosed("the pipeline was closed while a batch was waited for")
            if (announce := self._received()) is not None:
                return announce
            if assembler.handle in ready:
                self._failure = Failed(self._assembler_died(assembler))
                raise self._failure.error()
            self._inbox.receive()  # it may be what has ended the wait
            now = clock.look()
            if now >= deadline:
                raise self._stalled(timeout_s)
            if now >= next_log:
                next_log = now + _STALL_LOG_S
                _log.warning("no batch for %.0f s: %s", now - begun, self.activities())

    def activities(self) -> str:
        """Return in words what the loaders are doing."""
        words = what_loaders_do(self.shared.board.states())
        if self._assembler is not None and is_stopped(self._assembler.pid):
            pid = self._assembler.pid
            return f"the assembler (pid {pid}) stands still, stopped by a signal or a debugger; {words}"
        return words

    # ---- errors

    def _assembler_died(self, assembler: AssemblerProcess) -> BlobfeedError:
        return AssemblerDied(
            f"the assembler process ended while batches were still wanted: {assembler.exit_in_words()}; "
            f"its own last words, if any, are on standard error; {WHERE_TO_LOOK}"
        )

    def _stalled(self, timeout_s: float) -> BlobfeedError:
        return PipelineStalled(
            f"no batch for timeout_s={timeout_s:g} s; what the loaders were doing: {self.activities()}; "
            "raise timeout_s if this source may take so long"
        )

    def _explain(self, failure: Failure | End) -> BlobfeedError:
        return explain(self._plan, failure, self._inbox.take)

    # ---- the end

    def statistics(self) -> Statistics:
        return self._last if self._assembler is None else self._counts()

    def _counts(self) -> Statistics:
        reading, counts = read_board(self.shared.board), counts_on(self.shared.board)
        dropped = self._decoder.dropped + self._reception.dropped + sum(line.dropped for line in reading.lines)
        return replace(
            counts,
            dropped_messages=counts.dropped_messages + dropped,
            diagnosis=self._watcher.sentence(reading),
        ).with_cache(reading.cache_counts)

    def states(self) -> list[LoaderState]:
        return self.shared.board.states()

    def _keep(self) -> None:
        self._last = self._counts()

    def _finish_trace(self) -> None:
        if self.shared.trace is not None:
            self.shared.trace.finish(read_board(self.shared.board).cache_counts)

    def close(self) -> None:
        """End all processes; then give back sockets, memory and the directory.

        The processes come first: an error in the steps behind leaves none of them.
        """
        with interrupts_deferred():  # a start that is interrupted ends here, and may be interrupted again
            assembler, self._assembler = self._assembler, None
            link, self._release_link = self._release_link, None
            self._failure = None
            end = () if assembler is None else (partial(self._end, assembler, link), self._finish_trace, self._keep)
            close_all(*end, partial(links.end_context, self._context), self.shared.close)

    def _end(self, assembler: AssemblerProcess, link: zmq.Socket[bytes] | None) -> None:
        """Ask the assembler to end, and see that it does even if it cannot be asked."""
        patience_s = 0.0
        try:
            if link is not None:
                link.send(links.frame_of(Stop()))
            self._inbox.receive()
            patience_s = 0.0 if link is None or is_stopped(assembler.pid) else _END_S
        finally:
            # Its end, or the next look around, wakes a thread that waits for a batch: that has to leave the sockets and
            # the handle before they are closed.
            wait_for_exit(assembler.handle, patience_s)
            if self._waiting.acquire(timeout=_END_S):
                self._waiting.release()
            if link is not None:
                link.close(linger=0)
            assembler.end()
