"""What `blobfeed train` shows and writes beside training: a bar in a terminal, rows in logs, a trace."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .scalar_logs import EVERY, ScalarLogs
from .trainer.layer_types.layer import DataParameters, no_data_parameters
from .trainer.solving.progress import LineReporter
from .trainer.solving.solver import Scores, Solver
from .workers.base.closing import close_all

_REFRESH_S = 0.2


class BarReporter(LineReporter):
    """A bar on stderr that shows the loss, the speed and the stall time, below lines that stay."""

    def __init__(self, solver: Solver) -> None:
        super().__init__()
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
            self._progress.update(self._task, loss=f"{self._loss_of(solver):.4g}", speed=speed, stall_s=stall_s)
            self._progress.refresh()

    def say(self, text: str) -> None:
        if self._shares_screen:
            self._progress.console.print(text, markup=False, highlight=False)
        else:
            super().say(text)

    def close(self) -> None:
        self._progress.stop()


class LoggingReporter(LineReporter):
    """Writes to `logs` and leaves the rest to `shown`; closes all."""

    def __init__(self, shown: LineReporter, logs: ScalarLogs) -> None:
        super().__init__()
        self._shown = shown
        self._begun = time.monotonic()
        self._logs = logs

    def stepped(self, solver: Solver) -> None:
        self._shown.stepped(solver)
        super().stepped(solver)

    def _show(self, solver: Solver) -> None:
        if solver.iteration % (solver.param.display or EVERY) == 0:
            speed, share = self._meter.read(time.monotonic(), self._samples, solver.stall_s())
            outputs = {name: float(value) for name, value in solver.train_net.outputs().items() if value.numel() == 1}
            own = {"loss": solver.loss(), "rate": solver.rate, "samples_per_s": speed, "stall_share": share}
            self._logs.write(solver.iteration, time.monotonic() - self._begun, "train", {**outputs, **own})

    def tested(self, solver: Solver, number: int, scores: Scores) -> None:
        self._shown.tested(solver, number, scores)
        self._logs.write(solver.iteration, time.monotonic() - self._begun, f"test {number}", scores)

    def say(self, text: str) -> None:
        self._shown.say(text)

    def close(self) -> None:
        close_all(self._shown.close, self._logs.close)


def make_reporter(solver: Solver, logs: ScalarLogs | None = None) -> LineReporter:
    """A bar if stderr is a terminal, else lines on stdout; `logs` are closed with it."""
    shown = BarReporter(solver) if sys.stderr.isatty() else LineReporter()
    return LoggingReporter(shown, logs) if logs else shown


def traced_to(trace: Path | None) -> DataParameters:
    """Each layer that is fed by loaders writes a trace: the first into that file, others with their name in it."""
    if trace is None:
        return no_data_parameters
    names: list[str] = []

    def parameters(layer: str) -> Mapping[str, object]:
        names.append(layer)
        path = trace if len(names) == 1 else trace.with_name(f"{trace.stem}.{layer.replace('/', '-')}{trace.suffix}")
        return {"trace": str(path.absolute())}

    return parameters
