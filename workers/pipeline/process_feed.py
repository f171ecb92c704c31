"""A running pipeline seen from the trainer: the assembler's process, two links, and the wait for the next batches.

Each wait watches three things at once: the batches link, the assembler's process handle, and the clock. The
status board says what every loader is doing even when the assembler does not answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import zmq

from ..api import Statistics
from ..base import AssemblerDied, BlobfeedError, PipelineClosed, PipelineStalled, close_all, fill_standard_streams
from ..plan import Batch, Plan, SlotTops
from ..processes import (
    WHERE_TO_LOOK,
    AssemblerProcess,
    Config,
    ForkServer,
    RemoteHome,
    Shared,
    Watch,
    find_fork_server,
    is_stopped,
    loaders_that_fit,
    require_descriptors,
    require_threads,
    trainer_sys_path,
)
from ..transport import (
    Announce,
    Count,
    End,
    ErrorInbox,
    Failure,
    Give,
    LoaderState,
    Release,
    Stop,
    ToTrainer,
    available_memory,
    levels_of_trainer,
    links,
    tasks_left,
)
from .failures import Failed, explain, too_many_held, what_loaders_do
from .feed import Held, counts_on

_STALL_LOG_S = 10.0
_LOGS_S = 1.0
"""The time between two looks at what the children log, while the trainer never waits."""

_END_S = 5.0
"""The time that the assembler has to end before it is killed."""

_CLOSED_MEANWHILE = "the pipeline was closed while a batch was waited for"

_log = logging.getLogger("blobfeed")


def _fitting(plan: Plan) -> Plan:
    """Return the plan with as many loaders and slots as fit; raises BlobfeedError if fixed loaders do not.

    The control groups grant processes and memory. The ring of `prefetch_batches: auto` takes at most half of the
    memory that is available, or two slots beside those that are lent: the loaders need some, too.
    """
    least = min(1, plan.max_loaders) if plan.parameters.num_loaders == "auto" else plan.max_loaders
    fit = loaders_that_fit(plan.max_loaders, least=least, tasks=tasks_left())
    return replace(plan, max_loaders=fit, most_slots=max(2, available_memory() // 2 // plan.layout.nbytes - plan.loans))


class ProcessFeed:
    """The processes of one pipeline, from start to close."""

    def __init__(self, plan: Plan, watch: Watch = Watch(), remote_home: RemoteHome | None = None) -> None:  # noqa: B008
        """Start them. `remote_home`: makes the home of loaders on other machines.

        Raises RingAllocationError, DescriptorLimitError, SocketPathError, InterpreterError, BlobfeedError if the system
        allows too few threads or has no /proc, or what pickling raises.
        """
        self._last = Statistics()
        """The counts at the end."""
        plan = self._plan = _fitting(plan)
        self._watcher, self._remote_home = watch, remote_home
        self._told = Release(0)
        """The batches that are released, as the assembler was told last."""
        self._held = Held()
        """The batches that the trainer holds."""
        self._made: dict[int, SlotTops] = {}
        """The views of each slot."""
        self._untold = 0
        """The number of batches that were released since."""
        # A message for each of several small batches would cost more than copying them, and one for each large batch is
        # a quarter of what handing it over costs behind a training step. A wait tells what is untold.
        self._tell_every = max(1, min(max(2, plan.batches_per_task), plan.slots // 2))
        self._waiting = threading.RLock()
        """Held by the thread that takes or waits for batches, at the sockets."""
        self._next_look_at_logs = 0.0
        self._failure: Failed | None = None
        require_descriptors(plan.max_loaders + plan.max_remote_loaders)
        fill_standard_streams()
        self._assembler: AssemblerProcess | None = None
        self.server: ForkServer | None = None
        """The server that forks the assembler. Who starts one run behind the other keeps it."""
        self._release_link: zmq.Socket[bytes] | None = None
        with ExitStack() as stack:
            self.shared = Shared(plan, partial(watch.begin_trace, plan.description, plan.parameters.batch_size))
            self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            stack.callback(self.close)
            # Before all that takes time, since it imports meanwhile, and behind the calls that a kernel may refuse.
            self.server = find_fork_server(plan.modules)
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
        self.server = self._assembler.server  # another one, if the first has died
        require_threads()  # from here on while its interpreter starts, which takes longer
        shared.ring.allocate()
        self.shared.close_childrens()
        links.make_socket_directory(self.shared.folder)
        self._batch_link = links.open_socket(self._context, zmq.PULL)
        self._batch_link.bind(links.address(self.shared.folder, "batches"))
        self._release_link = links.open_socket(self._context, zmq.PUSH)
        self._release_link.connect(links.address(self.shared.folder, "releases"))
        self._poller = zmq.Poller()
        self._poller.register(self._batch_link, zmq.POLLIN)
        self._poller.register(self._assembler.handle, zmq.POLLIN)
        self._poller.register(self.shared.errors, zmq.POLLIN)

    # ---- batches

    def next(self, wanted: int, held: Held) -> list[Batch]:
        return self.ready(wanted) or self._open(self.next_announce(wanted, held))

    def ready(self, wanted: int) -> list[Batch]:
        # All that have come, not only the next ones: behind a training step, which has used the caches, the first look
        # takes as long as those at all the others.
        if self._failure is not None:
            raise self._failure.error()
        batches: list[Batch] = []
        with self._waiting:
            if self._assembler is None:
                return batches
            try:
                for announce in self._received(wanted):
                    if announce.batch >= wanted:  # none of those before it in this loop
                        batches += self._open(announce)
                        wanted = batches[-1].sequence + 1
            except zmq.ZMQError:  # a signal's handler may have closed the sockets
                if self._assembler is not None:
                    raise
            except BlobfeedError:  # of what comes behind these: it is kept
                if not batches:
                    raise
            return [] if self._assembler is None else batches

    def _open(self, announce: Announce) -> list[Batch]:
        """Return the announced batches, as views on their slots."""
        try:
            return self._plan.unpack(announce, self.shared.ring.rows, self._made)
        except KeyError:  # a signal's handler may have given the ring back
            if self._assembler is not None:
                raise
            raise PipelineClosed(_CLOSED_MEANWHILE) from None

    def next_announce(self, wanted: int, held: Held) -> Announce:
        """Return the announcement of the next batches."""
        if self._failure is not None:
            raise self._failure.error()
        with self._waiting:
            if (assembler := self._assembler) is None:
                raise PipelineClosed("the pipeline has been closed; make a new one")
            return next(self._received(wanted), None) or self._wait(assembler, wanted, held)

    def note_start(self) -> None:
        self.shared.board.note_start()

    def release(self, held: Held) -> None:
        self._held, self._untold = held, self._untold + 1
        if self._untold >= self._tell_every or not held.batches:
            self._tell_released(held)

    def _tell_released(self, held: Held) -> None:
        """Tell the assembler which batches are released, unless it knows."""
        released = Release(held.upto, held.loans)
        if released != self._told and self._release_link is not None and self._failure is None:
            self._release_link.send(links.frame_of(released))
            self._told, self._untold = released, 0

    def give(self, batch: int, epoch: int, rows: int, shard: int) -> None:
        """Have batch number `batch`, of `epoch`, made; its request lies in the ring."""
        if self._release_link is not None and self._failure is None:
            self._release_link.send(links.frame_of(Give(batch, epoch, rows, shard)))

    def map_slots(self) -> None:
        """Map the slots into this process now: the trainer has to wait anyway, while loaders start."""
        self.shared.ring.populate()

    def _received(self, wanted: int) -> Iterator[Announce]:
        """Yield the announcements of batches from `wanted` on that have come; raises the error that ended the run."""
        if (now := time.monotonic()) > self._next_look_at_logs:
            self._next_look_at_logs = now + _LOGS_S
            self._inbox.receive()
        for frame in links.frames(self._batch_link):
            match self._decoder.decode(frame):
                case Announce(batch) as announce if batch >= wanted:
                    yield announce
                case Failure() | End() as last:
                    self._failure = Failed(self._explain(last))
                    raise self._failure.error()

    def _wait(self, assembler: AssemblerProcess, wanted: int, held: Held) -> Announce:
        self._tell_released(held)
        if len(held.batches) >= self.shared.ring.slots:
            raise PipelineStalled(too_many_held(self.shared.ring.slots))
        begun, board = time.monotonic_ns(), self.shared.board
        board.counts[Count.STALLS] += 1
        board.counts[Count.WAITING_SINCE] = begun
        try:
            return self._watch(assembler, wanted)
        finally:
            if self._assembler is not None:  # as it is if a signal's handler has closed the pipeline
                board.counts[Count.WAITED_NS] += time.monotonic_ns() - begun
                board.counts[Count.WAITING_SINCE] = 0

    def _watch(self, assembler: AssemblerProcess, wanted: int) -> Announce:
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
                raise PipelineClosed(_CLOSED_MEANWHILE)
            for announce in self._received(wanted):
                return announce
            if assembler.handle in ready and assembler.has_ended():
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
        board, counts = self.shared.board, counts_on(self.shared.board)
        dropped = self._decoder.dropped + sum(line.dropped for line in board.lines)
        return replace(
            counts,
            dropped_messages=counts.dropped_messages + dropped,
            diagnosis=self._watcher.sentence(board),
        ).with_cache(board.cache_counts)

    def states(self) -> list[LoaderState]:
        return self.shared.board.states()

    def _keep(self) -> None:
        self._last = self._counts()

    def _finish_trace(self) -> None:
        if self.shared.trace is not None:
            self.shared.trace.finish(self.shared.board.cache_counts)

    def close(self) -> None:
        """End all processes; then give back sockets, memory and the directory.

        The processes come first: an error in the steps behind leaves none of them. Ctrl-C waits, in `close_all`.
        """
        assembler, self._assembler = self._assembler, None
        link, self._release_link = self._release_link, None
        self._failure, self._made, self.server = None, {}, None
        end = () if assembler is None else (partial(self._end, assembler, link), self._finish_trace, self._keep)
        close_all(*end, partial(links.end_context, self._context), self.shared.close)

    def _end(self, assembler: AssemblerProcess, link: zmq.Socket[bytes] | None) -> None:
        """Ask the assembler to end, and see that it does even if it cannot be asked."""
        patience_s = 0.0
        try:
            if link is not None:
                link.send(links.frame_of(Release(self._held.upto, self._held.loans)))  # the counts are whole at the end
                link.send(links.frame_of(Stop()))
            self._inbox.receive()
            patience_s = 0.0 if link is None or is_stopped(assembler.pid) else _END_S
        finally:
            # Its end, or the next look around, wakes a thread that waits for a batch: that has to leave the sockets and
            # the handle before they are closed.
            assembler.wait(patience_s)
            if self._waiting.acquire(timeout=_END_S):
                self._waiting.release()
            if link is not None:
                link.close(linger=0)
            assembler.end()
