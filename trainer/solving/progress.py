"""The display of training: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ...workers.base.closing import close_all
from .scalar_logs import EVERY, ScalarLog
from .solver import Scores, Solver

_REFRESH_S = 0.2


@dataclass
class Meter:
    """Speed between two readings."""

    time_s: float
    samples: int = 0
    stall_s: float = 0.0

    def read(self, time_s: float, samples: int, stall_s: float) -> tuple[float, float]:
        """Samples per second and the share of the time spent waiting, since the last reading."""
        passed = max(time_s - self.time_s, 1e-9)
        speed, share = (samples - self.samples) / passed, min((stall_s - self.stall_s) / passed, 1.0)
        self.time_s, self.samples, self.stall_s = time_s, samples, stall_s
        return speed, share


class LineReporter:
    """A line every `display` iterations."""

    def __init__(self, logs: Sequence[ScalarLog] = ()) -> None:
        self._samples = 0
        self._begun = time.monotonic()
        self._meter = Meter(self._begun)
        self._logs = logs
        self._log_meter = Meter(self._begun)

    def stepped(self, solver: Solver) -> None:
        """An iteration is done."""
        self._samples += solver.samples_per_step
        if self._logs and solver.iteration % (solver.param.display or EVERY) == 0:
            self._log_training(solver)
        self._show(solver)

    def tested(self, solver: Solver, number: int, scores: Scores) -> None:
        """Test net `number` has been scored."""
        self.say(f"iteration {solver.iteration}: test net {number}: {scores_text(scores)}")
        self._log(solver, f"test {number}", scores)

    def _log_training(self, solver: Solver) -> None:
        speed, share = self._log_meter.read(time.monotonic(), self._samples, solver.stall_s())
        outputs = {name: float(value) for name, value in solver.train_net.outputs().items() if value.numel() == 1}
        own = {"loss": solver.loss(), "rate": solver.rate, "samples_per_s": speed, "stall_share": share}
        self._log(solver, "train", {**outputs, **own})

    def _log(self, solver: Solver, net: str, scalars: Scores) -> None:
        for log in self._logs:
            log.write(solver.iteration, time.monotonic() - self._begun, net, scalars)

    def _show(self, solver: Solver) -> None:
        display = solver.param.display
        if display and solver.iteration % display == 0:
            stall_s = solver.stall_s()
            speed, share = self._meter.read(time.monotonic(), self._samples, stall_s)
            self.say(
                f"iteration {solver.iteration}/{solver.param.max_iter}: loss {solver.loss():.6g}, "
                f"rate {solver.rate:.6g}, {speed:,.0f} samples/s, stall {stall_s:.2f} s ({share:.1%} of the time)"
            )

    def say(self, text: str) -> None:
        """Show a line that stays."""
        print(text, flush=True)

    def close(self) -> None:
        """Nothing more is told."""
        close_all(*(log.close for log in self._logs))


class BarReporter(LineReporter):
    """A bar on stderr that shows the loss, the speed and the stall time, below lines that stay."""

    def __init__(self, solver: Solver, logs: Sequence[ScalarLog] = ()) -> None:
        super().__init__(logs)
        self._shares_screen = sys.stdout.isatty()
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(
                "loss {task.fields[loss]:<7} · {task.fields[speed]:,.0f} samples/s · stall {task.fields[stall_s]:.1f} s"
            ),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            # Drawn after an iteration: a thread that draws would take the interpreter from the one that trains.
            auto_refresh=False,
            redirect_stdout=self._shares_screen,
        )
        self._task = self._progress.add_task(
            "", total=solver.param.max_iter, completed=solver.iteration, loss="", speed=0.0, stall_s=0.0
        )
        self._progress.start()

    def _show(self, solver: Solver) -> None:
        self._progress.update(self._task, completed=solver.iteration)
        now = time.monotonic()
        # Reading the loss waits for the device, so it is read only as often as a person can follow.
        if now - self._meter.time_s > _REFRESH_S or solver.iteration == solver.param.max_iter:
            stall_s = solver.stall_s()
            speed, _ = self._meter.read(now, self._samples, stall_s)
            self._progress.update(self._task, loss=f"{solver.loss():.4g}", speed=speed, stall_s=stall_s)
            self._progress.refresh()

    def say(self, text: str) -> None:
        if self._shares_screen:
            self._progress.console.print(text, markup=False, highlight=False)
        else:
            super().say(text)

    def close(self) -> None:
        self._progress.stop()
        super().close()


def make_reporter(solver: Solver, logs: Sequence[ScalarLog] = ()) -> LineReporter:
    """A bar if stderr is a terminal, else lines on stdout; `logs` are closed with it."""
    return BarReporter(solver, logs) if sys.stderr.isatty() else LineReporter(logs)


def scores_text(scores: Scores) -> str:
    return ", ".join(f"{name} = {value:.6g}" for name, value in scores.items())
