"""What the assembler decides, and which of its messages the trainer takes. Pure: no I/O, no clock.

`Assembly` is the assembler's: which task goes to which loader, and what the trainer is told. The assembler's process
brings the events (a loader is ready, a task is done, a loader has died, a slot is released) and carries the answers
out: `assignments` to the loaders, `outbox` to the trainer. `Reception` is the trainer's: which of these messages it
still has to take. So every order of events can be tried without a process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..plan.plan import Plan
from ..sources.stream import FIX_STREAM
from ..transport.messages import (
    Announce,
    BadRow,
    Done,
    End,
    Failure,
    Fill,
    Order,
    Postprocess,
    Resent,
    ToTrainer,
)
from ..transport.status_board import LoaderState
from .ledger import Ledger, Task, Weight, moving_mean

TASK_S = 0.010
"""A task of this length makes its own cost about a hundredth."""

REMOTE_TASK_S = 0.100
"""With remote loaders: what a task makes is an object of the cluster, and one of these costs 5 to 10 ms of processor
time on its way from node to node."""

_ALL_ROWS = 1 << 40

_FIX_HOOK = "fix the hook"
"""No other sample takes the place of a whole batch."""

OUT_OF_MEMORY = "perhaps out of memory: see dmesg; use fewer loaders or smaller prefetch_batches"
"""What to do if loaders are killed by SIGKILL, which the kernel does when memory runs out."""

_KILLED = "killed by SIGKILL"


@dataclass(frozen=True, slots=True)
class Death:
    """A loader that has ended: what it was doing, and how it ended in words."""

    loader: int
    last: LoaderState
    how: str
    was_ready: bool
    dismissed: bool
    weight: Weight

    def __str__(self) -> str:
        return f"{self.last}, {self.how}"


@dataclass(slots=True)
class TaskSize:
    """Rows in a task of `task_s` seconds, at most those of a slot, following the measured time per row.

    A task costs about 0.1 ms of messages and book-keeping in all processes together. So rows that take microseconds go
    a whole slot at a time, and slow decodes are cut small, so that the first batch is there soon and the loaders end it
    together. This changes no byte: rows are made where they belong, whoever makes them.

    `least`: rows that a source fetches at the same time over a network. There a row takes less time the more of them
    are in a task; without this, measured times would make tasks ever smaller.
    """

    seconds_per_row: float
    slot_rows: int
    least: int = 1
    task_s: float = TASK_S

    def observe(self, rows: int, seconds: float) -> None:
        if rows > 0:
            self.seconds_per_row = moving_mean(self.seconds_per_row, seconds / rows)

    @property
    def rows(self) -> int:
        return min(self.slot_rows, max(self.least, int(self.task_s / max(1e-9, self.seconds_per_row))))


class Assembly:
    """One run, from the first task to `last`, the message behind which nothing comes."""

    def __init__(self, plan: Plan, slots: int | None = None) -> None:
        """`slots`: those that there are at first, if not all."""
        self.outbox: list[ToTrainer] = []
        self.last: Failure | End | None = None
        self.tasks_done = 0
        self.replaced = 0
        """Rows for which another sample was put in."""
        self._new_bad_samples: list[BadRow] = []
        self._parameters = plan.parameters
        self.schedule = plan.schedule()
        self.ledger = Ledger(
            self.schedule,
            slots=plan.slots if slots is None else slots,
            postprocess=plan.postprocesses,
            waits=plan.rows_at_once > 1,
        )
        task_s = TASK_S if plan.parameters.remote_loaders is None else REMOTE_TASK_S
        self._task_size = TaskSize(plan.seconds_per_row, plan.layout.rows, plan.rows_at_once, task_s)
        self._orders: dict[int, int] = {}
        self._replaced: dict[int, dict[int, int]] = {}
        self._failures: dict[int, dict[int, Failure]] = {}
        self._bad_samples: dict[tuple[int, str], str] = {}
        self._unreleased: dict[int, Announce] = {}

    # ---- towards the loaders

    def assignments(self, now: float) -> Iterator[Order]:
        if self.last is not None:
            return
        self.ledger.rows_per_task = self._task_size.rows
        self.ledger.open_groups()
        for loader, task in self.ledger.assign(now):
            self._orders[loader] = number = self._orders.get(loader, 0) + 1
            yield Order(loader, number, self._message_for(task))

    def _message_for(self, task: Task) -> Fill | Postprocess:
        rows = self.schedule.rows_of(task.group) if task.is_postprocess else task.rows
        stream = self.schedule.stream_batch(task.group)
        drawn = self.schedule.drawn(task.group, task.first_row, rows)
        if not task.is_postprocess:
            return Fill(task.id, task.group, task.slot, task.first_row, task.rows, task.skip, stream, drawn)
        batches = self.schedule.batch_rows(task.group, min(self._failures.get(task.group, (_ALL_ROWS,))))
        replaced = tuple(self._replaced.get(task.group, {}).items())
        return Postprocess(task.id, task.group, task.slot, batches, replaced, stream, drawn)

    # ---- from the loaders

    def done(self, done: Done, now: float) -> bool:
        """A loader reports; False if it has no such task (a repeated or late message)."""
        task = self.ledger.done(done.loader, done.task, now)
        if task is None:
            return False
        if not task.is_postprocess:
            self.schedule.note_done(task.group, done.stream_rows)
        self.tasks_done += 1
        self._task_size.observe(task.rows, done.elapsed_ns / 1e9)
        for bad in done.bad:
            self._note_bad(task.group, bad)
        return True

    def _note_bad(self, group: int, bad: BadRow) -> None:
        if bad.replacement < 0:
            self._failures.setdefault(group, {})[bad.row] = self._failure_of(group, bad)
            return
        replaced = self._replaced.setdefault(group, {})
        if bad.row in replaced:  # the row was made a second time, since a loader died in the group's postprocessing
            return
        replaced[bad.row] = bad.replacement
        self.replaced += 1
        # The same sample is bad again in every epoch: that makes it no further one.
        if (bad.index, bad.path) not in self._bad_samples:
            self._bad_samples[bad.index, bad.path] = bad.text
            self._new_bad_samples.append(bad)
        if len(self._bad_samples) > self._parameters.max_bad_samples:
            self._fail_for_bad_samples()

    def taken_bad_samples(self) -> list[str]:
        """For the log: each bad sample once, however often it comes."""
        new, self._new_bad_samples = self._new_bad_samples, []
        return [
            f"bad sample {bad.index} of epoch {bad.epoch} ({bad.path}) replaced by sample {bad.replacement}: {bad.text}"
            for bad in new
        ]

    def _failure_of(self, group: int, bad: BadRow) -> Failure:
        epoch, index, path = bad.epoch, bad.index, bad.path
        advice = bad.advice
        if index < 0:
            epoch, index, path = self.schedule.sample_in(group, bad.row, -1)
            advice = _FIX_HOOK
        return Failure("SampleError", bad.text, epoch, index, path, bad.cause, bad.traceback, advice=advice)

    def _fail_for_bad_samples(self) -> None:
        limit = self._parameters.max_bad_samples
        listed = [f"{index} ({path}): {text}" for (index, path), text in self._bad_samples.items()]
        text = f"{len(listed)} bad samples, more than max_bad_samples={limit}: {'; '.join(listed[:10])}"
        self.end(Failure("TooManyBadSamples", text, details=tuple(str(index) for index, _ in self._bad_samples)))

    def loader_died(self, death: Death) -> bool:
        """Its tasks go to others; returns whether it was ready and had none."""
        self._orders.pop(death.loader, None)
        if death.loader not in self.ledger.loaders:
            return False
        was_idle = not self.ledger.assigned(death.loader)
        poisoned = self.ledger.remove_loader(death.loader, death.last.task, death.weight)
        if poisoned is not None:
            self._settle(poisoned, death)
        return was_idle

    def _settle(self, poisoned: Task, death: Death) -> None:
        """Loaders die on this task again and again."""
        replace = self._parameters.on_error == "replace" and self.schedule.can_be_cut
        if replace and not poisoned.is_postprocess:
            self.ledger.retry(poisoned)
            return
        what = "its batch's postprocessing" if poisoned.is_postprocess else "it"
        text = f"{poisoned.deaths} loaders died on {what}, the last one, {death}"
        sample = self.schedule.sample_in(poisoned.group, poisoned.first_row, death.last.sample)
        if death.how == _KILLED:
            advice = OUT_OF_MEMORY
        else:
            advice = _FIX_HOOK if poisoned.is_postprocess else "" if self.schedule.can_be_cut else FIX_STREAM
        failure = Failure("SampleError", text, *sample, advice=advice)
        self._failures.setdefault(poisoned.group, {})[poisoned.first_row] = failure
        self.ledger.write_off(poisoned)

    # ---- towards the trainer

    def announce(self) -> bool:
        """Tell the trainer of all that is complete and has its turn, or how the run ends.

        Returns whether slots have become free, since nothing in them was for the trainer.
        """
        freed = False
        for group, slot in self.ledger.announcements():
            if self.last is not None:
                return False
            replaced = tuple(self._replaced.pop(group, {}).items())
            if failures := self._failures.get(group):
                self._tell(self.schedule.announcement(group, slot, replaced, good_rows=min(failures)))
                self.end(failures[min(failures)])
                return False
            if not self._tell(self.schedule.announcement(group, slot, replaced)):
                self.ledger.release(group)
                freed = True
        if self.schedule.complaint:
            cause, traceback = self.schedule.cause
            self.end(Failure("SourceError", self.schedule.complaint, cause=cause, traceback=traceback))
        elif self.schedule.finished:
            self.end(End())
        return freed

    def _tell(self, announce: Announce | None) -> bool:
        if announce is not None:
            self._unreleased[announce.group] = announce
            self.outbox.append(announce)
        return announce is not None

    def end(self, last: Failure | End) -> None:
        """Tell the trainer how it ends, once; nothing comes behind that."""
        if self.last is None:
            self.last = last
            self.outbox.append(last)

    def release(self, group: int) -> Announce | None:
        """The trainer is done with `group`: what was announced; None if it does not hold it (a repeated or foreign
        message)."""
        announce = self._unreleased.pop(group, None)
        return announce if self.ledger.release(group) else None

    def batch_rows(self, announce: Announce) -> tuple[int, ...]:
        """The rows of each batch in an announced group."""
        if announce.drawn:
            return tuple(batch.rows for batch in announce.drawn)
        if announce.stream is not None:
            return (announce.stream.rows,)
        return self.schedule.batch_rows(announce.group, announce.rows if announce.rows >= 0 else _ALL_ROWS)

    def resend(self, number: int) -> None:
        """The trainer cannot be sure that it has received everything: all that it may still need, in order."""
        last = () if self.last is None else (self.last,)
        self.outbox += [Resent(number), *self._unreleased.values(), *last]


class Reception:
    """Which of the assembler's messages are for the trainer now; each call may be interrupted and repeated.

    Groups are announced in rising order, with gaps where the trainer gets nothing of one. So the last one that was
    accepted tells what is new, and a run keeps no more of its millionth group than of its first.

    `held`: the groups that the trainer has accepted and not released. `dropped`: messages that were not expected.
    """

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.dropped = 0
        self._resends = 0
        self._awaited = 0
        self._next = 0
        """The first group that may be new."""

    def wants(self, message: ToTrainer) -> Announce | Failure | End | None:
        """`message`, if the trainer has still to be told of it."""
        if isinstance(message, Resent):
            self._awaited = 0 if message.number == self._awaited else self._awaited
            return None
        if self._awaited:
            return None  # it comes again
        if isinstance(message, Announce) and not self._is_new(message.group):
            if message.group not in self.held or not self._resends:
                self.dropped += 1  # a frame of ours that somebody sent again
            return None
        return message

    def ask_again(self) -> int:
        """A message may have been lost: the number for `Resend`. What comes before `Resent` of that number is void."""
        self._resends += 1
        self._awaited = self._resends
        return self._resends

    def accept(self, group: int) -> bool:
        """`group` has been received: the next one is another. False if it was accepted before."""
        if not self._is_new(group):
            return False
        self.held.add(group)
        self._next = group + 1
        return True

    def release(self, group: int) -> None:
        self.held.discard(group)

    def _is_new(self, group: int) -> bool:
        return group >= self._next
