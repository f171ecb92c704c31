"""The assembler: the process between trainer and loaders that plans batches and keeps the ledger.

     trainer                       assembler                        loader N
        │ ── Release(upto, loans) ────► │ ◄── Ready, StartFailed ────── │
        │ ── Give, Stop ──────────────► │ ── Fill(batch, slot, rows) ─► │   1. a free slot gets the next batch,
        │                               │ ── Draw(epoch) ─────────────► │      its rows are cut into tasks
        │                               │ ◄── Done(task, bad rows) ──── │   2. loaders make rows in the slot itself
        │ ◄── Announce(batch, slot) ─── │                               │   3. all rows done: announced, in order
        │     Failure, End              │                               │

The fork server forks it (fork_server.py), and it forks the nursery before it makes its ZeroMQ context. One poll
waits for everything: releases, results, deaths of loaders (reported by the nursery), the trainer's death (its pidfd),
and the next deadline.
"""

from __future__ import annotations

import io
import itertools
import logging
import math
import os
import select
import sys
import time
from functools import partial
from pathlib import Path

import zmq

from ..assembly import Assembly, AutoScale, first_loaders
from ..base import LoaderDied
from ..transport import (
    Count,
    Done,
    Failure,
    FromLoader,
    Give,
    Ready,
    Release,
    SharedFile,
    StartFailed,
    StatusBoard,
    Stop,
    ToAssembler,
    links,
)
from .config import Config
from .loader import run_loader
from .loader_pool import Event, LoaderPool
from .nursery import Nursery, NurseryDied
from .process import adopt_orphans, end_group, leave_signals_to_trainer, raise_descriptor_limit
from .usage_monitor import UsageMonitor

_IN_FLIGHT = 4
"""The tasks of a remote loader. A task and its rows travel for milliseconds, and meanwhile it works on others."""

_SOCKETS_BESIDE_LOADERS = 64
_DIRECTORY_POLL_S = 0.001
_ORPHANS_S = 2.0
"""The patience with programs that ignore SIGTERM. The wait ends as soon as no program is left."""

_log = logging.getLogger("blobfeed")


class Assembler:
    """The process around the assembly: receives messages, calls the assembly, sends its answers."""

    def __init__(self, config: Config, nursery: Nursery) -> None:
        self._config = config
        self._nursery_events = nursery.fileno()
        self._plan = plan = config.plan
        self._board = StatusBoard(config.descriptors.board)
        self._board.header.assembler = os.getpid()
        given, self._poller, local = plan.parameters, zmq.Poller(), range(plan.max_loaders)
        new_pool = partial(
            LoaderPool, board=self._board, numbers=itertools.count(1), start_timeout_s=given.task_timeout_s
        )
        self._auto = None
        if given.num_loaders != "auto":
            wanted = given.num_loaders
        elif plan.supply.parts:
            # Not one by one: a loader that comes later would run its shards again, and meanwhile none has the rest. No
            # more than slots: each is one loader's task.
            wanted = min(plan.max_loaders, plan.supply.parts, plan.slots)
        else:
            wanted = first_loaders(plan.seconds_per_row * given.batch_size, plan.max_loaders)
            self._auto = AutoScale(plan.max_loaders, wanted)
        self._pool = new_pool(nursery, wanted=wanted, lines=local, in_flight=plan.tasks_in_flight)
        self._pools = [self._pool]
        if config.remote_home is not None:
            lines, home = range(plan.max_loaders, plan.status_lines), config.remote_home(config, self._poller)
            self._pools.append(new_pool(home, wanted=0, lines=lines, in_flight=_IN_FLIGHT))
        self._assembly = Assembly(plan)
        self._assembly.schedule.draws.use_file(SharedFile(config.descriptors.drawn))
        self._releases: links.Decoder[ToAssembler] = links.Decoder(ToAssembler)
        self._results: links.Decoder[FromLoader] = links.Decoder(FromLoader)
        self._stopping = False
        self._pools_due = 0.0
        """The time at which `_tend_pools` is due."""
        self._clock = links.AwakeClock()
        """The clock for deadlines of loaders: it stops while the job is suspended, since loaders cannot work then."""
        self._waited_ns = 0
        """The time that the trainer had waited at its last release."""
        self._monitor = UsageMonitor(self._board, config.watch.metrics())
        self._trace = config.trace()
        if self._trace is not None:
            self._trace.name("assembler", 1)
        self._open_links()

    def _open_links(self) -> None:
        self._folder = Path(self._config.sockets)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, _SOCKETS_BESIDE_LOADERS + self._plan.status_lines)
        self._batch_link = links.open_socket(self._context, zmq.PUSH)
        self._batch_link.connect(links.address(self._folder, "batches"))
        self._release_link = links.open_socket(self._context, zmq.PULL)
        self._release_link.bind(links.address(self._folder, "releases"))
        self._result_link = links.open_socket(self._context, zmq.PULL)
        self._result_link.bind(links.address(self._folder, "results"))
        self._task_links: dict[int, zmq.Socket[bytes]] = {}
        trainer = self._config.descriptors.trainer
        for watched in (self._release_link, self._result_link, self._nursery_events, trainer):
            self._poller.register(watched, zmq.POLLIN)
        # A trainer that calls exec becomes another program while its process lives on; then this socket hangs up.
        self._poller.register(self._config.descriptors.errors, zmq.POLLERR)

    # ---- the loop

    def run(self) -> None:
        """Run until the trainer sends Stop or is gone."""
        try:
            while not self._stopping:
                self._turn()
        finally:
            self._monitor.end()
            self._context.destroy(linger=0)
            for pool in self._pools[1:]:  # the nursery ends last
                pool.home.close()

    def _turn(self) -> None:
        try:
            if self._clock.now >= self._pools_due:
                self._tend_pools()
            self._assign()
            while self._assembly.announce():  # freed slots may be the only work, which no event would announce
                self._assign()
            self._send_outbox()
            self._wait()
        except LoaderDied as death:
            if isinstance(death, NurseryDied):
                self._poller.unregister(self._nursery_events)
            self._assembly.end(Failure("LoaderDied", str(death), details=death.exits))

    def _tend_pools(self) -> None:
        """Start, replace and end loaders. It is due after what happens to a loader, or when its time has come."""
        replace = self._assembly.last is None
        self._pools_due = min(pool.tend(self._clock.now, replace=replace) for pool in self._pools)

    def _assign(self) -> None:
        for loader, task in self._assembly.assignments(self._clock.now):
            self._task_links[loader].send(links.frame_of(task))

    def _send_outbox(self) -> None:
        for message in self._assembly.outbox:
            self._batch_link.send(links.frame_of(message))
        self._assembly.outbox.clear()

    def _wait(self) -> None:
        ready = dict(self._poller.poll(self._timeout_ms()))
        self._clock.look()
        if self._config.descriptors.trainer in ready or self._config.descriptors.errors in ready:
            self._stopping = True
            return
        if self._release_link in ready:
            self._drain_releases()
        if self._result_link in ready:
            self._drain_results()
        if ready.keys() - {self._release_link, self._result_link}:
            self._take_events(ready)
        self._kill_overdue()
        self._let_go()
        self._board.counts[Count.DROPPED_MESSAGES] = self._releases.dropped + self._results.dropped
        self._board.set_counts(self._assembly.counts)
        ledger = self._assembly.ledger
        self._board.counts[Count.SLOTS_FULL] = ledger.slots_full + len(ledger.slots.loans)
        self._board.counts[Count.SLOTS_FILLING] = ledger.slots_filling
        if (now := time.monotonic()) >= self._monitor.next_turn:
            self._monitor.turn(now)

    def _take_events(self, ready: dict[object, int]) -> None:
        """Take starts and ends of loaders."""
        for pool in self._pools:
            if pool.home.fileno() in ready:
                for event in pool.home.receive(self._clock.now):
                    self._note_event(event, pool)

    def _timeout_ms(self) -> int:
        now = self._clock.now
        limit = self._plan.parameters.task_timeout_s
        overdue = self._assembly.ledger.next_deadline(limit)
        wait_s = min(self._pools_due, math.inf if overdue is None else overdue) - now
        return 1 + int(1000 * min(links.LONGEST_WAIT_S, max(0.0, wait_s)))

    # ---- loaders

    def _kill_overdue(self) -> None:
        limit, is_stream = self._plan.parameters.task_timeout_s, not self._assembly.schedule.can_be_cut
        now = self._clock.now
        for loader in self._assembly.ledger.overdue(now, limit):
            moved = self._clock.time_of(self._pool_of(loader).moved_at(loader))
            # Before a batch of a stream the loader may have to run the whole shard again.
            if is_stream and now - moved < limit:
                self._assembly.ledger.note_moved(loader, moved)
            elif self._pool_of(loader).kill(loader, f"its task took longer than task_timeout_s={limit:g}"):
                self._assembly.ledger.note_killed(loader)

    def _pool_of(self, loader: int) -> LoaderPool:
        return next((pool for pool in self._pools if loader in pool), self._pool)

    def _scale(self) -> None:
        auto, ledger, before = self._auto, self._assembly.ledger, self._pool.wanted
        waited_ns = self._board.counts[Count.WAITED_NS]
        waited, self._waited_ns = waited_ns - self._waited_ns, waited_ns
        if auto is None or not auto.observe(
            self._clock.now,
            waited_s=waited / 1e9,
            ready=ledger.slots_full > 0 or self._plan.slots <= 2,  # of two, the other one may just be filled
            loaders=ledger.working,
            work=self._assembly.work,
        ):
            return
        for _ in range(auto.wanted, before):
            ledger.dismiss_one()
        self._pool.wanted = auto.wanted
        self._pools_due = 0.0
        _log.debug("num_loaders: auto goes from %d to %d of at most %d", before, auto.wanted, self._plan.max_loaders)

    def _let_go(self) -> None:
        for loader in self._assembly.ledger.dismissed_and_free():
            self._assembly.ledger.remove_loader(loader)
            self._pool_of(loader).dismiss(loader)

    # ---- from the loaders

    def _drain_results(self) -> None:
        for frame in links.frames(self._result_link):
            match self._results.decode(frame):
                case Ready(loader):
                    self._welcome(loader)
                case Done() as done:
                    self._book(done)
                case StartFailed(loader, text, cause, traceback):
                    what = f"loader {loader} could not start: {text}"
                    if self._assembly.tasks_done and len(self._pools) == 1:
                        # Other loaders could start, so memory may be short for a while. It counts as a crash.
                        _log.warning("%s", what)
                        continue
                    failure = Failure("LoaderDied", what, cause=cause, traceback=traceback, details=(text,))
                    self._assembly.end(failure)

    def _welcome(self, loader: int) -> None:
        pool = self._pool_of(loader)
        if not pool.note_ready(loader):  # repeated, or late
            return
        link = links.open_socket(self._context, zmq.PUSH)
        link.connect(links.address(self._folder, f"tasks-{loader}"))
        self._task_links[loader] = link
        self._assembly.ledger.add_loader(loader, pool.in_flight, remote=pool is not self._pool)

    def _book(self, done: Done) -> None:
        self._assembly.done(done, self._clock.now)
        for text in self._assembly.bad_samples.new_texts():
            _log.warning("%s", text)

    def _note_event(self, event: Event, pool: LoaderPool) -> None:
        self._pools_due = 0.0
        if (death := pool.handle_event(event, self._clock.now)) is None:
            return
        # Its last reports may still lie in the socket; the tasks that they finish need not be repeated.
        self._drain_results()
        (self._folder / f"tasks-{death.loader}").unlink(missing_ok=True)
        if link := self._task_links.pop(death.loader, None):
            link.close()
        was_idle = self._assembly.loader_died(death)
        if not death.dismissed:
            if self._trace is not None:
                self._trace.note_death(death.loader, death.last.task, death.last.sample)
            pool.count(death, was_idle, self._assembly.tasks_done, self._clock.now)

    # ---- from the trainer

    def _drain_releases(self) -> None:
        for frame in links.frames(self._release_link):
            match self._releases.decode(frame):
                case Release(upto, loans):
                    if self._assembly.release(upto, loans):
                        self._scale()
                case Give() as given:
                    self._assembly.schedule.give(given)
                case Stop():
                    self._stopping = True


def run_assembler(descriptor: int) -> None:
    """Run the assembler with the Config in `descriptor`, to its end.

    It watches the trainer as soon as the nursery is forked. If the trainer has died by then, it ends at once.
    """
    leave_signals_to_trainer()
    raise_descriptor_limit()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Applies to the loaders, too: they are killed in the end, and buffered output would be lost.
        sys.stdout.reconfigure(line_buffering=True)
    config, errors = Config.adopt(descriptor)
    nursery = Nursery(
        partial(run_loader, config, errors),
        config.plan.modules,
        prepare=config.plan.prepare,
        keep=config.descriptors.of_loaders,
        trainer=config.descriptors.trainer,
    )
    try:
        if _trainer_is_ready(config):
            Assembler(config, nursery).run()
    finally:
        adopt_orphans()
        nursery.close()
        links.remove_socket_directory(Path(config.sockets))
    if os.getpgrp() == os.getpid():
        end_group(_ORPHANS_S)  # programs that user code has started in loaders


def _trainer_is_ready(config: Config) -> bool:
    """Wait until the trainer has made the sockets' directory; returns False if it has died before, or given up.

    An exception, perhaps of a signal handler, can reach the trainer before it has the handle of this process. Then it
    gives up silently, and its end of the error channel is closed.
    """
    folder = Path(config.sockets)
    poller = select.poll()
    poller.register(config.descriptors.trainer, select.POLLIN)
    poller.register(config.descriptors.errors, 0)  # a hang-up is always reported
    while not poller.poll(0):
        if folder.exists():
            return True
        time.sleep(_DIRECTORY_POLL_S)
    return False
