"""The assembler's decisions. Pure: no I/O, no clock.

`Assembly` assigns tasks to loaders and composes messages to the trainer. The assembler's process reports the events (a
loader is ready, a task is done, a loader has died, batches are released) and sends the results: `assignments` to the
loaders, `outbox` to the trainer. So tests can try every order of events without a process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import msgspec

from ..plan import Plan
from ..transport import (
    BadRow,
    Count,
    Done,
    Drawn,
    End,
    Failure,
    Fill,
    LoaderState,
    ToLoader,
    ToTrainer,
)
from .autoscale import Work
from .bad_samples import FIX_HOOK, BadSamples
from .ledger import Evidence, Ledger, Task

_MEMORY = 0.7
"""The weight of the past in the moving mean of the time per row: a change of speed shows after a dozen tasks."""

OUT_OF_MEMORY = "perhaps out of memory: see dmesg; use fewer loaders or smaller prefetch_batches"
"""The advice if loaders are killed by SIGKILL, which the kernel sends when memory runs out."""

KILLED = "killed by SIGKILL"
"""The end of a process that the kernel, or somebody, has killed, in words."""


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
    """The number of rows in a task of about `task_s` seconds by the measured time per row, at most `most`.

    A task costs about 0.1 ms of messages and book-keeping in all processes together. So rows that take microseconds are
    assigned a batch or several at a time. Slow decodes are cut into small tasks, so that the first batch is complete
    soon and the loaders finish it together. The size of tasks does not affect the data: each row has its fixed place.

    `least`: rows that a source fetches concurrently over a network. There a row takes less time in a larger task, so
    without a minimum the measured times would shrink tasks further and further.
    """

    seconds_per_row: float
    most: int
    least: int = 1
    task_s: float = 0.010

    def observe(self, rows: int, seconds: float) -> None:
        if rows > 0:
            self.seconds_per_row = _MEMORY * self.seconds_per_row + (1 - _MEMORY) * seconds / rows

    @property
    def rows(self) -> int:
        return min(self.most, max(self.least, int(self.task_s / max(1e-9, self.seconds_per_row))))


class Assembly:
    """One run, from the first task to `last`, the final message."""

    def __init__(self, plan: Plan) -> None:
        self.outbox: list[ToTrainer] = []
        self.last: Failure | End | None = None
        self.tasks_done = 0
        self.work = Work()
        self.bad_samples = BadSamples(plan.parameters)
        self._batches = self._samples = 0
        """The counts of what the trainer has released."""
        self._parameters = plan.parameters
        self.schedule = plan.schedule()
        self.ledger = Ledger(
            self.schedule, slots=plan.slots, batches_per_task=plan.batches_per_task, hook=plan.postprocesses
        )
        most = plan.batches_per_task * plan.parameters.batch_size
        self._task_size = TaskSize(plan.seconds_per_row, most, plan.rows_at_once, plan.task_s)
        self._replaced: dict[int, dict[int, int]] = {}
        self._failures: dict[int, dict[int, Failure]] = {}
        """By batch and row."""
        self._sizes: dict[int, int] = {}
        """The rows of each batch that the trainer has and has not released."""

    # ---- to the loaders

    def assignments(self, now: float) -> Iterator[tuple[int, ToLoader]]:
        """Yield (loader, task) for all tasks that can be assigned now."""
        if self.last is not None:
            return
        self.ledger.rows_per_task = self._task_size.rows
        self.ledger.open()
        if (draw := self.schedule.wanted()) is not None:
            self.ledger.enqueue_draw(draw)
        for loader, task in self.ledger.assign(now):
            yield loader, self._message_for(task)

    def _message_for(self, task: Task) -> ToLoader:
        if task.draw is not None:
            return msgspec.structs.replace(task.draw, task=task.id)
        first = 0 if task.finishes else task.first_row
        fill = Fill(
            task.id,
            task.batch,
            self.ledger.slots.of(task.batch),
            task.first_row,
            task.rows,
            task.skip,
            self.schedule.runs(task.batch, first, task.end - first),
        )
        if not task.finishes:
            return fill
        replaced = tuple(self._replaced.get(task.batch, {}).items())
        return msgspec.structs.replace(fill, finishes=True, replaced=replaced)

    # ---- from the loaders

    def done(self, done: Done, now: float) -> None:
        """Record a loader's report; one of a task that it does not have, as of a repeated message, changes nothing."""
        task = self.ledger.done(done.loader, done.task, now)
        if task is None:
            return
        self.tasks_done += 1
        if task.draw is not None:
            assert done.work.drawn is not None
            self.schedule.draws.note_drawn(task.draw, done.work.drawn)
            return
        self._task_size.observe(task.rows, (done.elapsed_ns - done.work.hook_ns) / 1e9)
        self.work = Work(self.work.busy_s + done.elapsed_ns / 1e9, self.work.rows + task.rows)
        for bad in done.work.bad:
            skipped, row = divmod(bad.row, self._parameters.batch_size)
            self._note_bad(task.batch + skipped, msgspec.structs.replace(bad, row=row))
        self.schedule.note_done(task.batch, done.work.stream_rows)

    def _note_bad(self, batch: int, bad: BadRow) -> None:
        if bad.replacement < 0:
            in_row = self.schedule.sample_in(batch, bad.row, -1)
            self._failures.setdefault(batch, {})[bad.row] = self.bad_samples.failure_of(bad, in_row)
            self.ledger.give_up_behind(batch, bad.row)
            return
        replaced = self._replaced.setdefault(batch, {})
        if bad.row in replaced:  # the row is a repetition, since a loader died in the batch's postprocessing
            return
        replaced[bad.row] = bad.replacement
        if (failure := self.bad_samples.note(bad)) is not None:
            self.end(failure)

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
            draws, what = self.schedule.draws, f"{poisoned.deaths} loaders died on it, the last one, {death}"
            text = f"{draws.called(poisoned.draw.epoch)}: {what}"
            draws.note_drawn(poisoned.draw, Drawn(failure=text))
            return
        replace = self._parameters.on_error == "replace" and self.schedule.can_be_cut
        if replace and not poisoned.is_hook:
            self.ledger.retry(poisoned)
            return
        what = "its batch's postprocessing" if poisoned.is_hook else "it"
        text = f"{poisoned.deaths} loaders died on {what}, the last one, {death}"
        row = 0 if poisoned.is_hook else poisoned.first_row
        epoch, index, where = self.schedule.sample_in(poisoned.batch, row, death.last.sample)
        path = where or (death.place if index == death.last.sample else "")
        advice = OUT_OF_MEMORY if death.how == KILLED else FIX_HOOK if poisoned.is_hook else self.schedule.advice
        failure = Failure("SampleError", text, epoch, index, path, advice=advice)
        self._failures.setdefault(poisoned.batch, {})[row] = failure
        self.ledger.write_off(poisoned)

    # ---- to the trainer

    def announce(self) -> bool:
        """Tell the trainer of all batches that are complete with all before them, and of the end of the run.

        Returns true if slots became free because a stream had no batch for them.
        """
        complete, freed = self.ledger.completed(), False
        batch = complete.start
        while batch < complete.stop and self.last is None:
            if failures := self._failures.get(batch):
                self.end(failures[min(failures)])
                break
            failed_at = min(self._failures, default=complete.stop)
            count = self.schedule.told(batch, min(complete.stop, failed_at))
            freed |= not self._tell(batch, count)
            batch += count
        if self.last is not None:
            return False
        if (failure := self.schedule.failure) is not None:
            self.end(failure)
        elif self.schedule.finished:
            self.end(End())
        return freed

    def _tell(self, batch: int, count: int) -> bool:
        """Tell of `count` batches that were opened together; returns False if a stream had none there."""
        size = self._parameters.batch_size
        replaced = tuple(
            (place * size + row, index)
            for place in range(count if self._replaced else 0)
            for row, index in self._replaced.pop(batch + place, {}).items()
        )
        last = batch + count - 1
        message = self.schedule.announcement(batch, count, self.ledger.slots.of(batch), replaced)
        if message is None:
            self.ledger.slots.drop(batch)
            return False
        self._sizes.update(dict.fromkeys(range(batch, last), size))
        self._sizes[last] = message.runs[-1].row + message.runs[-1].rows - (count - 1) * size
        self.outbox.append(message)
        return True

    def end(self, last: Failure | End) -> None:
        """Send the trainer the final message, once."""
        if self.last is None:
            self.last = last
            self.outbox.append(last)

    def release(self, upto: int, loans: Collection[int] = ()) -> bool:
        """Free the slots of all batches below `upto` but for `loans`; returns true if some became free."""
        released = self.ledger.release(upto, loans)
        self._batches += len(released)
        self._samples += sum(self._sizes.pop(batch, 0) for batch in released)
        return bool(released)

    @property
    def counts(self) -> dict[Count, int]:
        """The counts for the status board."""
        return {
            Count.REPLACED: self.bad_samples.replaced,
            Count.TASKS: self.tasks_done,
            Count.BATCHES: self._batches,
            Count.SAMPLES: self._samples,
        }
