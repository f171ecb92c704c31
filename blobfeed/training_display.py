"""The output of `blobfeed train`: a bar in a terminal, a trace, and rows in CSV, JSON lines and TensorBoard."""

from __future__ import annotations

import csv
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .tools.written import writing
from .trainer.layer_types import DataParameters, no_data_parameters
from .trainer.solving import Event, Interval, Solver, Watcher, numbers_of, printing
from .workers.base import ParameterError, need

_REFRESH_S = 0.2
_FIRST = ("iteration", "seconds", "net")
_TRAINED = ("loss", "rate", "samples_per_s", "stall_share")
_EVERY = 100
"""The number of iterations between two rows, if the solver has no `display`."""

_BESIDE_BAR = 76
"""The width of the numbers on both sides of the bar, with hundreds of thousands of iterations."""

Row = Mapping[str, Any]
"""A row: iteration, seconds since the start, the net ("train", "test 0" and so on), and the net's numbers by name."""


@contextmanager
def bar(solver: Solver) -> Iterator[Watcher]:
    """Make a bar on stderr that shows the loss, the speed and the stall time, below the lines of other events."""
    shares_screen = sys.stdout.isatty()
    console = Console(stderr=True)
    progress = Progress(
        MofNCompleteColumn(),
        BarColumn(max(4, min(40, console.width - _BESIDE_BAR))),  # a line that does not fit is cut, also the count
        TextColumn(
            "loss {task.fields[loss]:<7} · {task.fields[speed]:,.0f} samples/s · stall {task.fields[stall_s]:.1f} s"
        ),
        TimeRemainingColumn(),
        console=console,
        # Drawn after an iteration: a drawing thread would take the interpreter from the training thread.
        auto_refresh=False,
        redirect_stdout=shares_screen,
    )
    task = progress.add_task(
        "", total=solver.param.max_iter, completed=solver.iteration, loss="", speed=0.0, stall_s=0.0
    )
    interval = Interval(solver)

    def watch(event: Event) -> None:
        if event.line and shares_screen:
            progress.console.print(event.line, markup=False, highlight=False)
        elif event.line:
            print(event.line, flush=True)
        else:
            progress.update(task, completed=solver.iteration)
            # Reading the loss waits for the device, so it is read only a few times a second.
            if interval.seconds > _REFRESH_S or solver.iteration == solver.param.max_iter:
                step = interval.read()
                progress.update(task, loss=f"{step.loss:.4g}", speed=step.samples_per_s, stall_s=solver.stall_s())
                progress.refresh()

    with progress:
        yield watch


def _objective(solver: Solver) -> str:
    """Return the objective's name in rows: `total loss` if an output with another meaning is called `loss`.

    The objective is a mean over `average_loss` iterations.
    """
    net, param = solver.train_net, solver.param
    terms = [(name, weight) for step in net.steps for name, _, weight in step.tops if weight]
    is_that_output = terms == [("loss", 1)] and param.iter_size == param.average_loss == 1
    return "loss" if is_that_output or "loss" not in net.output_names else "total loss"


def _csv(file: TextIO, path: Path, solver: Solver) -> Callable[[Row], object]:
    """Return a writer of CSV rows with a column for each name; values that a row lacks are empty.

    Appends to a file of an earlier run; raises ParameterError if that has other columns.
    """
    outputs = [name for net in (solver.train_net, *solver.test_nets) for name in numbers_of(net.outputs())]
    total = ["total loss"] if solver.param.test_compute_loss else [_objective(solver)]
    columns = list(dict.fromkeys((*_FIRST, *_TRAINED, *outputs, *total)))
    file.seek(0)
    if (found := next(csv.reader(file), [])) and found != columns:
        raise ParameterError(f"--log {path} has the columns {found}, expected {columns}: name another file")
    rows = csv.DictWriter(file, columns, extrasaction="ignore")
    if not found:
        rows.writeheader()
    return rows.writerow


def _json_lines(file: TextIO, _path: Path, _solver: Solver) -> Callable[[Row], object]:
    return lambda row: file.write(json.dumps(row) + "\n")


_FORMATS = {".csv": _csv, ".jsonl": _json_lines}
"""By the ending of a log's name."""


def _tensorboard(folder: Path, stack: ExitStack, begun_at: int) -> Callable[[Row], object]:
    """Return a writer of an event file in `folder`; `begun_at`: the iteration of the snapshot, if any.

    It uses TensorBoard's RecordWriter. Torch's SummaryWriter and the EventFileWriter below it write in a thread, which
    would take the interpreter from the training thread.
    """
    need("tensorboard", "--tensorboard")
    from tensorboard.compat.proto import event_pb2, summary_pb2  # type: ignore[import-untyped]
    from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

    folder.mkdir(parents=True, exist_ok=True)
    name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
    records = RecordWriter(stack.enter_context((folder / name).open("wb", buffering=0)))

    def put(**event: Any) -> None:
        records.write(event_pb2.Event(wall_time=time.time(), **event).SerializeToString())

    def write(row: Row) -> None:
        scalars = {f"{row['net']}/{name}": value for name, value in row.items() if name not in _FIRST}
        values = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        put(step=row["iteration"], summary=summary_pb2.Summary(value=values))

    put(file_version="brain.Event:2")
    if begun_at:  # rows of a killed run after its last snapshot come again, and must not be drawn twice
        put(step=begun_at + 1, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))
    return write


@contextmanager
def rows(solver: Solver, files: Sequence[Path], tensorboard: Path | None) -> Iterator[Watcher]:
    """Write the numbers of steps and tests into `files`, in the format of their endings, and TensorBoard's folder.

    Raises ParameterError.
    """
    writers: dict[str, Callable[[Row], object]] = {}
    with ExitStack() as stack:
        for path in files:
            if path.suffix not in _FORMATS:
                raise ParameterError(f"--log {path}: expected a name that ends in {' or '.join(_FORMATS)}")
            stack.enter_context(writing(what := f"--log {path}"))  # closing writes, too
            file = stack.enter_context(path.open("a+", buffering=1, newline="", encoding="utf-8"))
            writers[what] = _FORMATS[path.suffix](file, path, solver)
            if (size := os.fstat(file.fileno()).st_size) and os.pread(file.fileno(), 1, size - 1) != b"\n":
                file.write("\n")  # after an incomplete row, which a full disk can leave
        if tensorboard is not None:
            stack.enter_context(writing(what := f"--tensorboard {tensorboard}"))
            writers[what] = _tensorboard(tensorboard, stack, solver.iteration)
        interval, begun = Interval(solver), time.monotonic()  # from here on: importing TensorBoard takes seconds

        def watch(event: Event) -> None:
            if event.scores is not None:
                write(f"test {event.test}", event.scores)
            elif not event.line and solver.iteration % (solver.param.display or _EVERY) == 0:
                step, outputs = interval.read(), numbers_of(solver.train_net.outputs())
                own = {name: getattr(step, name) for name in _TRAINED[1:]}
                write("train", {**outputs, _objective(solver): step.loss, **own})

        def write(net: str, scalars: Mapping[str, float]) -> None:
            seconds = round(time.monotonic() - begun, 3)
            row = {"iteration": solver.iteration, "seconds": seconds, "net": net, **scalars}
            for what, put in writers.items():
                with writing(what):
                    put(row)

        yield watch


@contextmanager
def watching(solver: Solver, logs: Sequence[Path] = (), tensorboard: Path | None = None) -> Iterator[list[Watcher]]:
    """Make the watchers: a bar if stderr is a terminal that can draw, else lines on stdout; and the logs."""
    with ExitStack() as stack:
        can_draw = sys.stderr.isatty() and not Console(stderr=True).is_dumb_terminal
        logged = [stack.enter_context(rows(solver, logs, tensorboard))] if logs or tensorboard else []
        yield [stack.enter_context(bar(solver)) if can_draw else printing(solver), *logged]


def traced_to(trace: Path | None) -> DataParameters:
    """Return parameters by which each layer with loaders writes a trace: the first into `trace`, others beside it."""
    if trace is None:
        return no_data_parameters
    names: list[str] = []

    def parameters(layer: str) -> Mapping[str, object]:
        names.append(layer)
        path = trace if len(names) == 1 else trace.with_name(f"{trace.stem}.{layer.replace('/', '-')}{trace.suffix}")
        return {"trace": str(path.absolute())}

    return parameters
