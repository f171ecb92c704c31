"""The assembler's decisions, and the trainer's filter for its messages. Pure: no I/O, no clock.

`Assembly` assigns tasks to loaders and composes messages to the trainer. The assembler's process reports the events (a
loader is ready, a task is done, a loader has died, a slot is released) and sends the results: `assignments` to the
loaders, `outbox` to the trainer. `Reception` runs in the trainer and drops messages that it has already received. So
tests can try every order of events without a process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from ..order import FIX_STREAM, batch_sizes
from ..plan import Plan
from ..transport import (
    Announce,
    BadRow,
    Count,
    Done,
    Drawn,
    End,
    Failure,
    Fill,
    LoaderState,
    Postprocess,
    ToLoader,
    ToTrainer,
)
from .autoscale import Work
from .ledger import Evidence, Ledger, Task

_MEMORY = 0.7
"""The weight of the past in the moving mean of the time per row: a change of speed shows after a dozen tasks."""

_ALL_ROWS = 1 << 40

_FIX_HOOK = "fix the hook"
"""The advice for a failed hook: a whole batch has no replacement."""

OUT_OF_MEMORY = "perhaps out of memory: see dmesg; use fewer loaders or smaller prefetch_batches"
"""The advice if loaders are killed by SIGKILL, which the kernel sends when memory runs out."""

_KILLED = "killed by SIGKILL"


class Death(msgspec.Struct, frozen=True):
    """The death of a loader: its last state, and the way it ended in words; `place`: of its last sample, or ""."""

    loader: int
    last: LoaderState
    how: str
    was_ready: bool
    dismissed: bool
    evidence: Evidence
    place: str = ""

    def __str__(self) -> str:
        return f"{self.last}, {self.how}"


@dataclass(slots=True)
class TaskSize:
    """The number of rows in a task of about `task_s` seconds by the measured time per row, at most a slot's.

    A task costs about 0.1 ms of messages and book-keeping in all processes together. So rows that take microseconds are
    assigned a whole slot at a time. Slow decodes are cut into small tasks, so that the first batch is complete soon and
    the loaders finish it together. The size of tasks does not affect the data: each row has its fixed place.

    `least`: rows that a source fetches concurrently over a network. There a row takes less time in a larger task, so
    without a minimum the measured times would shrink tasks further and further.
    """

    seconds_per_row: float
    slot_rows: int
    least: int = 1
    task_s: float = 0.010

    def observe(self, rows: int, seconds: float) -> None:
        if rows > 0:
            self.seconds_per_row = _MEMORY * self.seconds_per_row + (1 - _MEMORY) * seconds / rows

    @property
    def rows(self) -> int:
        return min(self.slot_rows, max(self.least, int(self.task_s / max(1e-9, self.seconds_per_row))))


class Assembly:
    """One run, from the first task to `last`, the final message; over a stream it may go on behind that."""

    def __init__(self, plan: Plan, *, alone: bool = False) -> None:
        """Prepare the run. `alone`: see Ledger."""
        self.outbox: list[ToTrainer] = []
        self.last: Failure | End | None = None
        self._ends = 0
        """The number of ends behind which the run went on."""
        self.tasks_done = 0
        self.work = Work()
        self.replaced = 0
        """The number of rows filled with a replacement."""
        self._batches = self._samples = 0
        """The counts of what the trainer has released."""
        self._new_bad_samples: list[BadRow] = []
        self._parameters = plan.parameters
        self.schedule = plan.schedule()
        self.ledger = Ledger(
            self.schedule,
            slots=plan.slots,
            postprocess=plan.postprocesses,
            alone=alone,
        )
        self._task_size = TaskSize(plan.seconds_per_row, plan.layout.rows, plan.rows_at_once, plan.task_s)
        self._replaced: dict[int, dict[int, int]] = {}
        self._failures: dict[int, dict[int, Failure]] = {}
        self._bad_samples: dict[tuple[int, str], str] = {}
        self._unreleased: dict[int, tuple[int, ...]] = {}
        """By group that was announced, the rows of its batches."""

    # ---- to the loaders

    def assignments(self, now: float) -> Iterator[tuple[int, ToLoader]]:
        """Yield (loader, task) for all tasks that can be assigned now."""
        if self.last is not None:
            return
        self.ledger.rows_per_task = self._task_size.rows
        self.ledger.open_groups()
        if (draw := self.schedule.wanted()) is not None:
            self.ledger.enqueue_draw(draw)
        for loader, task in self.ledger.assign(now):
            yield loader, self._message_for(task)

    def _message_for(self, task: Task) -> ToLoader:
        if task.draw is not None:
            return msgspec.structs.replace(task.draw, task=task.id)
        rows = self.schedule.rows_of(task.group) if task.is_postprocess else task.rows
        runs = self.schedule.runs(task.group, task.first_row, rows)
        if not task.is_postprocess:
            return Fill(task.id, task.group, task.slot, task.first_row, task.rows, task.skip, runs)
        batches = self.schedule.batch_rows(task.group, min(self._failures.get(task.group, (_ALL_ROWS,))))
        replaced = tuple(self._replaced.get(task.group, {}).items())
        return Postprocess(task.id, task.group, task.slot, batches, replaced, runs)

    # ---- from the loaders

    def done(self, done: Done, now: float) -> bool:
        """Record a loader's report; returns False if it has no such task (a repeated or late message)."""
        task = self.ledger.done(done.loader, done.task, now)
        if task is None:
            return False
        self.tasks_done += 1
        if task.draw is not None:
            self.schedule.note_drawn(task.draw, done.drawn or Drawn(failure="the epoch was not drawn"))
            return True
        if not task.is_postprocess:
            self.schedule.note_done(task.group, done.stream_rows)
        self._task_size.observe(task.rows, done.elapsed_ns / 1e9)
        self.work = Work(self.work.busy_s + done.elapsed_ns / 1e9, self.work.rows + task.rows)
        for bad in done.bad:
            self._note_bad(task.group, bad)
        return True

    def _note_bad(self, group: int, bad: BadRow) -> None:
        if bad.replacement < 0:
            self._failures.setdefault(group, {})[bad.row] = self._failure_of(group, bad)
            self.ledger.give_up_behind(group, bad.row)
            return
        replaced = self._replaced.setdefault(group, {})
        if bad.row in replaced:  # the row is a repetition, since a loader died in the group's postprocessing
            return
        replaced[bad.row] = bad.replacement
        self.replaced += 1
        # A bad sample comes again in every epoch, and counts once.
        if (bad.index, bad.path) not in self._bad_samples:
            self._bad_samples[bad.index, bad.path] = bad.text
            self._new_bad_samples.append(bad)
        if len(self._bad_samples) > self._parameters.max_bad_samples:
            self._fail_for_bad_samples()

    def note_bad_later(self, group: int, bad: Iterable[BadRow]) -> None:
        """Record bad rows of a group that was announced before its rows were made."""
        for row in bad:
            self._note_bad(group, row)
            if row.replacement < 0:
                self.end(self._failures[group][row.row])

    def taken_bad_samples(self) -> list[str]:
        """Return new bad samples for the log, each sample only once."""
        new, self._new_bad_samples = self._new_bad_samples, []
        return [
            f"bad sample {bad.index} of epoch {bad.epoch} ({bad.path}) replaced by sample {bad.replacement}: {bad.text}"
            for bad in new
        ]

    def _failure_of(self, group: int, bad: BadRow) -> Failure:
        epoch, index, path = bad.epoch, bad.index, bad.path
        advice = bad.advice
        if index < 0:
            epoch, index, where = self.schedule.sample_in(group, bad.row, -1)
            path = where or path
            advice = _FIX_HOOK
        return Failure("SampleError", bad.text, epoch, index, path, bad.cause, bad.traceback, advice=advice)

    def _fail_for_bad_samples(self) -> None:
        limit = self._parameters.max_bad_samples
        listed = [f"{index} ({path}): {text}" for (index, path), text in self._bad_samples.items()]
        text = f"{len(listed)} bad samples, more than max_bad_samples={limit}: {'; '.join(listed[:10])}"
        self.end(Failure("TooManyBadSamples", text, details=tuple(str(index) for index, _ in self._bad_samples)))

    def loader_died(self, death: Death) -> bool:
        """Reassign the tasks of a dead loader; returns true if it was ready and idle."""
        if death.loader not in self.ledger.loaders:
            return False
        was_idle = not self.ledger.assigned(death.loader)
        poisoned = self.ledger.remove_loader(death.loader, death.last.task, death.evidence)
        if poisoned is not None:
            self._settle(poisoned, death)
        return was_idle

    def _settle(self, poisoned: Task, death: Death) -> None:
        """Replace or fail a task on which loaders died repeatedly."""
        if poisoned.draw is not None:
            text = f"{self.schedule.called(poisoned.draw)}: {poisoned.deaths} loaders died on it, the last one, {death}"
            self.schedule.note_drawn(poisoned.draw, Drawn(failure=text))
            return
        replace = self._parameters.on_error == "replace" and self.schedule.can_be_cut
        if replace and not poisoned.is_postprocess:
            self.ledger.retry(poisoned)
            return
        what = "its batch's postprocessing" if poisoned.is_postprocess else "it"
        text = f"{poisoned.deaths} loaders died on {what}, the last one, {death}"
        epoch, index, where = self.schedule.sample_in(poisoned.group, poisoned.first_row, death.last.sample)
        path = where or (death.place if index == death.last.sample else "")
        if death.how == _KILLED:
            advice = OUT_OF_MEMORY
        else:
            advice = _FIX_HOOK if poisoned.is_postprocess else "" if self.schedule.can_be_cut else FIX_STREAM
        failure = Failure("SampleError", text, epoch, index, path, advice=advice)
        self._failures.setdefault(poisoned.group, {})[poisoned.first_row] = failure
        self.ledger.write_off(poisoned)

    # ---- to the trainer

    def announce(self) -> bool:
        """Send the trainer all complete groups that are next in order, and the end of the run.

        Returns true if slots became free because their groups had no batch for the trainer.
        """
        freed = False
        for group, slot in self.ledger.announcements():
            if self.last is not None:
                return False
            replaced = tuple(self._replaced.pop(group, {}).items())
            if failures := self._failures.get(group):
                self._send(self.schedule.announcement(group, slot, replaced, good_rows=min(failures)))
                self.end(failures[min(failures)])
                return False
            if not self._send(self.schedule.announcement(group, slot, replaced)):
                self.ledger.release(group)
                freed = True
        if complaint := self.schedule.complaint:
            cause, traceback = self.schedule.cause
            self.end(Failure("SourceError", complaint, cause=cause, traceback=traceback))
        elif self.schedule.finished:
            self.end(End(self._ends))
        return freed

    def _send(self, announce: Announce | None) -> bool:
        if announce is not None:
            self._unreleased[announce.group] = batch_sizes(announce.runs, self._parameters.batch_size)
            self.outbox.append(announce)
        return announce is not None

    def end(self, last: Failure | End) -> None:
        """Send the trainer the final message, once."""
        if self.last is None:
            self.last = last
            self.outbox.append(last)

    def go_on(self, end: int) -> None:
        """Go on with a stream's next loop behind End number `end`; a repeated message changes nothing."""
        if self.last == End(end):
            self._ends += 1
            self.last = None
            self.schedule.go_on()

    def release(self, group: int) -> bool:
        """Free the slot of `group`; returns False for a repeated or foreign message."""
        rows = self._unreleased.pop(group, ())
        self._replaced.pop(group, None)
        self._batches += len(rows)
        self._samples += sum(rows)
        return self.ledger.release(group)

    @property
    def counts(self) -> dict[Count, int]:
        """The counts for the status board."""
        return {
            Count.REPLACED: self.replaced,
            Count.TASKS: self.tasks_done,
            Count.BATCHES: self._batches,
            Count.SAMPLES: self._samples,
        }


class Reception:
    """Filters the assembler's messages in the trainer; each call may be interrupted and repeated.

    Groups are announced in rising order, with gaps for groups without a batch. So the number of the last accepted group
    identifies new ones, and the memory does not grow with the number of groups.

    `held`: the groups that the trainer has accepted and not released. `dropped`: the number of unexpected messages.
    `ends`: the number of the next end of the run.
    """

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.dropped = 0
        self.ends = 0
        self._next = 0
        """The first group that may be new."""

    def wants(self, message: ToTrainer) -> Announce | Failure | End | None:
        """Return `message` if it is new to the trainer, else None."""
        if isinstance(message, Announce):
            is_new = self._is_new(message.group)
        elif isinstance(message, End):
            is_new = message.number == self.ends
        else:
            return message
        if not is_new:
            self.dropped += 1  # a repeated frame of this run
            return None
        return message

    def accept(self, group: int) -> bool:
        """Record `group` as received; returns False if it was accepted before."""
        if not self._is_new(group):
            return False
        self.held.add(group)
        self._next = group + 1
        return True

    def release(self, group: int) -> None:
        self.held.discard(group)

    def _is_new(self, group: int) -> bool:
        return group >= self._next
