"""The assembler: the process between trainer and loaders that plans batches and keeps the ledger.

     trainer                       assembler                        loader N
        │ ── Release(unit) ───────────► │                               │
        │                               │ ── Fill(task, slot, rows) ──► │   1. a free slot gets the next unit,
        │                               │                               │      its rows are cut into tasks
        │                               │ ◄── Done(task, bad rows) ──── │   2. loaders make rows in the slot itself
        │ ◄── Announce(unit, slot) ──── │                               │   3. all rows in: announced, in order
        │    or Failure(what, cause)    │                               │
        │ ── Resend(number) ──────────► │                               │   where Ctrl-C may have cost a message: all
        │ ◄── Resent(number), … ─────── │                               │      that is announced and not released

It is started as an interpreter of its own (`python -m blobfeed.workers.processes.assembler DESCRIPTOR`), forks the
nursery before it makes its ZeroMQ context, and waits in one place for all there is: releases, results, deaths of
loaders (through the nursery), the death of the trainer (through its pidfd), and the next deadline.
"""

from __future__ import annotations

import io
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import zmq

from ..base.errors import LoaderDied
from ..transport import links
from ..transport.board import Board, Count
from ..transport.messages import (
    Announce,
    BadRow,
    Done,
    End,
    Failure,
    FromLoader,
    Opener,
    Order,
    Ready,
    Release,
    Resend,
    Resent,
    Sealer,
    StartFailed,
    Stop,
    ToAssembler,
)
from ..transport.ring import Ring
from .autoscale import AutoScale
from .config import Config
from .dispatch import TaskSize
from .ledger import Ledger, Task
from .loader import run_loader
from .loader_pool import Death, LoaderPool
from .nursery import Nursery, NurseryDied
from .process import leave_signals_to_trainer, raise_descriptor_limit
from .supply import Supply

_LONGEST_WAIT_S = 1.0
_ALL_ROWS = 1 << 40
_DIRECTORY_POLL_S = 0.001

_log = logging.getLogger("blobfeed")


class Assembler:
    """Thin around the ledger: receives, asks the ledger, sends."""

    def __init__(self, config: Config, nursery: Nursery) -> None:
        self._config = config
        self._nursery = nursery
        self._board = Board(config.descriptors.board, config.max_loaders)
        self._pool = LoaderPool(config, nursery, self._board)
        self._supply: Supply = config.supply
        self._ledger = Ledger(
            slots=config.slots,
            rows_of=self._supply.rows_of,
            has=self._supply.has,
            in_order=config.in_order,
            postprocess=config.postprocess,
            kin_of=self._supply.kin_of,
            can_be_cut=self._supply.can_be_cut,
        )
        self._auto = AutoScale(config.max_loaders, time.monotonic()) if config.num_loaders is None else None
        self._task_size = TaskSize(config.seconds_per_row, config.layout.rows)
        self._sealer = Sealer(config.key)
        self._releases: Opener[ToAssembler] = Opener(config.key, ToAssembler)
        self._results: Opener[FromLoader] = Opener(config.key, FromLoader)
        self._replaced: dict[int, dict[int, int]] = {}
        self._failures: dict[int, dict[int, Failure]] = {}
        self._bad_samples: dict[tuple[int, str], str] = {}
        self._stopping = False
        self._unreleased: dict[int, Announce] = {}
        self._last: Failure | End | None = None
        self._open_links()

    def _open_links(self) -> None:
        self._folder = Path(self._config.sockets)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._batch_link = links.open_socket(self._context, zmq.PUSH)
        self._batch_link.connect(links.address(self._folder, "batches"))
        self._release_link = links.open_socket(self._context, zmq.PULL)
        self._release_link.bind(links.address(self._folder, "releases"))
        self._result_link = links.open_socket(self._context, zmq.PULL)
        self._result_link.bind(links.address(self._folder, "results"))
        self._task_links: dict[int, zmq.Socket[bytes]] = {}
        self._orders: dict[int, int] = {}
        self._poller = zmq.Poller()
        for watched in (
            self._release_link,
            self._result_link,
            self._nursery.fileno(),
            self._config.descriptors.trainer,
        ):
            self._poller.register(watched, zmq.POLLIN)

    # ---- the loop

    def run(self) -> None:
        """Until the trainer says stop or is gone."""
        try:
            while not self._stopping:
                self._turn()
        finally:
            self._context.destroy(linger=0)

    def _turn(self) -> None:
        try:
            self._pool.start_missing(time.monotonic())
            self._hand_out()
            self._announce()
            self._wait()
        except NurseryDied as death:
            self._poller.unregister(self._nursery.fileno())
            self._fail(Failure("LoaderDied", str(death), details=death.exits))
        except LoaderDied as death:
            self._fail(Failure("LoaderDied", str(death), details=death.exits))

    def _wait(self) -> None:
        ready = dict(self._poller.poll(self._timeout_ms()))
        if self._config.descriptors.trainer in ready:
            self._stopping = True
            return
        if self._release_link in ready:
            self._drain_releases()
        if self._result_link in ready:
            self._drain_results()
        if self._nursery.fileno() in ready and (death := self._pool.handle_event()):
            # Its last reports may already lie in the socket: what they tick off need not be made again.
            self._drain_results()
            self._bury(death)
        self._kill_overdue()
        self._let_go()
        self._board.set_count(Count.DROPPED_MESSAGES, self._releases.dropped + self._results.dropped)

    def _timeout_ms(self) -> int:
        now = time.monotonic()
        deadlines = (self._ledger.next_deadline(self._config.task_timeout_s), self._pool.next_deadline())
        waits = [max(0.0, deadline - now) for deadline in deadlines if deadline is not None]
        return 1 + int(1000 * min([_LONGEST_WAIT_S, *waits]))

    # ---- towards the loaders

    def _hand_out(self) -> None:
        if self._last is not None:
            return
        self._ledger.rows_per_task = self._task_size.rows
        self._ledger.open_units()
        for loader, task in self._ledger.assign(time.monotonic()):
            good_rows = min(self._failures.get(task.unit, (_ALL_ROWS,)))
            self._orders[loader] = number = self._orders.get(loader, 0) + 1
            order = Order(loader, number, self._supply.order_for(task, good_rows))
            self._task_links[loader].send(self._sealer.seal(order))

    def _kill_overdue(self) -> None:
        limit = self._config.task_timeout_s
        for loader in self._ledger.overdue(time.monotonic(), limit):
            self._pool.kill(loader, f"its task took longer than task_timeout_s={limit:g}")
        self._pool.kill_slow_starters(time.monotonic())

    def _scale(self, waited_s: float) -> None:
        auto, before = self._auto, self._pool.wanted
        if auto is None or not auto.observe(waited_s, time.monotonic()):
            return
        if auto.wanted < before:
            self._ledger.dismiss_one()
        self._pool.wanted = auto.wanted

    def _let_go(self) -> None:
        for loader in self._ledger.dismissed_and_free():
            self._ledger.remove_loader(loader)
            self._pool.dismiss(loader)

    # ---- from the loaders

    def _drain_results(self) -> None:
        for frame in links.frames(self._result_link):
            match self._results.open(frame):
                case Ready(loader):
                    self._welcome(loader)
                case Done() as done:
                    self._book(done)
                case StartFailed(loader, text, cause, traceback):
                    what = f"loader {loader} could not start: {text}"
                    self._fail(Failure("LoaderDied", what, cause=cause, traceback=traceback, details=(text,)))

    def _welcome(self, loader: int) -> None:
        if not self._pool.note_ready(loader):
            self._results.dropped += 1
            return
        link = links.open_socket(self._context, zmq.PUSH)
        link.connect(links.address(self._folder, f"tasks-{loader}"))
        self._task_links[loader] = link
        self._ledger.add_loader(loader)

    def _book(self, done: Done) -> None:
        task = self._ledger.done(done.loader, done.task, time.monotonic())
        if task is None:
            self._results.dropped += 1
            return
        self._pool.note_task_done()
        self._supply.note_done(task, done)
        self._board.add(Count.TASKS)
        self._task_size.observe(task.rows, done.elapsed_ns / 1e9)
        for bad in done.bad:
            self._note_bad(task.unit, bad)

    def _note_bad(self, unit: int, bad: BadRow) -> None:
        if bad.replacement < 0:
            self._failures.setdefault(unit, {})[bad.row] = self._failure_of(unit, bad)
            return
        replaced = self._replaced.setdefault(unit, {})
        if bad.row in replaced:  # the row was made a second time, since a loader died in the unit's postprocessing
            return
        replaced[bad.row] = bad.replacement
        self._board.add(Count.REPLACED)
        _log.warning("bad sample %d of epoch %d (%s) replaced by sample %d: %s", bad.index, bad.epoch, bad.path,
                     bad.replacement, bad.text)  # fmt: skip
        # The same sample is bad again in every epoch: that makes it no further one.
        self._bad_samples.setdefault((bad.index, bad.path), bad.text)
        if len(self._bad_samples) > self._config.max_bad_samples:
            self._fail_for_bad_samples()

    def _failure_of(self, unit: int, bad: BadRow) -> Failure:
        epoch, index, path = bad.epoch, bad.index, bad.path
        if index < 0:
            epoch, index, path = self._supply.sample_in(unit, bad.row, -1)
        return Failure("SampleError", bad.text, epoch, index, path, bad.cause, bad.traceback)

    def _fail_for_bad_samples(self) -> None:
        limit = self._config.max_bad_samples
        listed = [f"{index} ({path}): {text}" for (index, path), text in self._bad_samples.items()]
        text = f"{len(listed)} bad samples, more than max_bad_samples={limit}: {'; '.join(listed[:10])}"
        self._fail(Failure("TooManyBadSamples", text, details=tuple(str(index) for index, _ in self._bad_samples)))

    # ---- deaths

    def _bury(self, death: Death) -> None:
        (self._folder / f"tasks-{death.loader}").unlink(missing_ok=True)
        self._orders.pop(death.loader, None)
        if link := self._task_links.pop(death.loader, None):
            link.close()
        known = death.loader in self._ledger.loaders
        was_idle = known and not self._ledger.owed(death.loader)
        poisoned = self._ledger.remove_loader(death.loader, death.last.task, death.weight) if known else None
        if poisoned is not None:
            self._settle(poisoned, death)
        if not death.dismissed:
            self._pool.count(death, was_idle, time.monotonic())

    def _settle(self, poisoned: Task, death: Death) -> None:
        """Loaders die on this task again and again."""
        if self._config.worker.replace and self._supply.can_be_cut and not poisoned.is_postprocess:
            self._ledger.retry(poisoned)
            return
        what = "its batch's postprocessing" if poisoned.is_postprocess else "it"
        text = f"{poisoned.deaths} loaders died on {what}, the last one, {death}"
        sample = self._supply.sample_in(poisoned.unit, poisoned.first_row, death.last.sample)
        self._failures.setdefault(poisoned.unit, {})[poisoned.first_row] = Failure("SampleError", text, *sample)
        self._ledger.write_off(poisoned)

    # ---- towards the trainer

    def _announce(self) -> None:
        for unit, slot in self._ledger.announcements():
            if self._last is not None:
                return
            replaced = tuple(self._replaced.pop(unit, {}).items())
            if failures := self._failures.get(unit):
                self._send(self._supply.beginning(unit, slot, replaced, min(failures)))
                self._fail(failures[min(failures)])
                return
            if not self._send(self._supply.announcement(unit, slot, replaced)):
                self._ledger.release(unit)
        if self._supply.complaint:
            self._fail(Failure("SourceError", self._supply.complaint))
        elif self._supply.finished:
            self._send_last(End())

    def _send(self, announce: Announce | None) -> bool:
        if announce is not None:
            self._unreleased[announce.unit] = announce
            self._batch_link.send(self._sealer.seal(announce))
        return announce is not None

    def _send_last(self, last: Failure | End) -> None:
        """Tell the trainer how it ends, once; nothing comes behind that."""
        if self._last is None:
            self._last = last
            self._batch_link.send(self._sealer.seal(last))

    def _fail(self, failure: Failure) -> None:
        """Tell the trainer, once, and do nothing more but wait for its end."""
        if self._last is None:
            self._pool.wanted = 0
            self._send_last(failure)

    def _resend(self, number: int) -> None:
        """The trainer cannot be sure that it has received everything: all that it may still need, in order."""
        last = () if self._last is None else (self._last,)
        for message in (Resent(number), *self._unreleased.values(), *last):
            self._batch_link.send(self._sealer.seal(message))

    def _drain_releases(self) -> None:
        for frame in links.frames(self._release_link):
            match self._releases.open(frame):
                case Release(unit, waited_ns):
                    if self._ledger.release(unit):
                        self._unreleased.pop(unit, None)
                        self._scale(waited_ns / 1e9)
                    else:
                        self._releases.dropped += 1
                case Resend(number):
                    self._resend(number)
                case Stop():
                    self._stopping = True


def _use_huge_pages(config: Config) -> Iterator[int]:
    """Copying from huge pages is faster by a fifth to a third; see shared_map.py."""
    ring = Ring.attach(config.descriptors.ring, config.layout, config.slots)
    yield from ring.use_huge_pages()


def main() -> None:
    """`python -m blobfeed.workers.processes.assembler DESCRIPTOR`, the descriptor holding the Config."""
    leave_signals_to_trainer()
    raise_descriptor_limit()
    _print_at_once()
    config = Config.read(int(sys.argv[1]))
    logging.basicConfig(format="blobfeed [process %(process)d] %(levelname)s: %(message)s")
    _log.setLevel(logging.INFO)
    sys.path[:] = config.sys_path
    kept = config.descriptors
    nursery = Nursery(
        lambda loader, seat: run_loader(config, loader, seat),
        config.modules,
        keep=(kept.ring, kept.board, kept.errors),
        chores=lambda: _use_huge_pages(config),
    )
    try:
        if _trainer_is_ready(config):
            Assembler(config, nursery).run()
    finally:
        nursery.close()
        links.remove_socket_directory(Path(config.sockets))
    _end_group()


def _print_at_once() -> None:
    """For this process and the loaders: they are killed in the end, and what waited in a buffer would be lost then."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def _trainer_is_ready(config: Config) -> bool:
    """Wait until the trainer has made the sockets' directory; False where it has died before, or given up.

    It gives up without telling where an exception, a signal handler's perhaps, reaches it before it holds the handle of
    this process: then its end of the error channel is closed.
    """
    folder = Path(config.sockets)
    poller = select.poll()
    poller.register(config.descriptors.trainer, select.POLLIN)
    poller.register(config.descriptors.errors, 0)  # a hang-up is always told
    while not poller.poll(0):
        if folder.exists():
            return True
        time.sleep(_DIRECTORY_POLL_S)
    return False


def _end_group() -> None:
    """End this process and whatever programs user code has started in loaders and left behind."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
