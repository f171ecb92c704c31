"""Where the numbers of a training go beside the display: CSV, JSON lines, TensorBoard."""

from __future__ import annotations

import csv
import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from .trainer.solving.solver import Solver
from .workers.base.errors import ParameterError
from .workers.base.extras import need
from .workers.base.whole_files import writing

_FIRST = ("iteration", "seconds", "net")
_TRAINED = ("loss", "rate", "samples_per_s", "stall_share")
EVERY = 100
"""Iterations between two rows, if the solver has no `display`."""

Row = Mapping[str, Any]
"""Iteration, seconds since the start, the net ("train", "test 0" and so on), and the net's numbers by name."""


class ScalarLogs:
    """One for each file, whose ending says which, and one for TensorBoard's folder; raises ParameterError."""

    def __init__(self, files: Sequence[Path], tensorboard: Path | None, solver: Solver) -> None:
        self._writers: dict[str, Callable[[Row], object]] = {}
        with ExitStack() as stack:
            for path in files:
                if path.suffix not in (".csv", ".jsonl"):
                    raise ParameterError(f"--log {path}: expected a name that ends in .csv or .jsonl")
                stack.enter_context(writing(what := f"--log {path}"))  # closing writes, too
                file = stack.enter_context(path.open("a+", buffering=1, newline="", encoding="utf-8"))
                self._writers[what] = _csv(file, path, solver) if path.suffix == ".csv" else _json_lines(file)
            if tensorboard is not None:
                stack.enter_context(writing(what := f"--tensorboard {tensorboard}"))
                self._writers[what] = _tensorboard(tensorboard, stack)
            self.close = stack.pop_all().close

    def __bool__(self) -> bool:
        return bool(self._writers)

    def write(self, iteration: int, seconds: float, net: str, scalars: Mapping[str, float]) -> None:
        for what, write in self._writers.items():
            with writing(what):
                write({"iteration": iteration, "seconds": round(seconds, 3), "net": net, **scalars})


def _csv(file: TextIO, path: Path, solver: Solver) -> Callable[[Row], object]:
    """A column for each name, a row for each write; what a row does not have is empty. It goes on in a file of its
    own: raises ParameterError if the file has other columns."""
    outputs = [name for net in (solver.train_net, *solver.test_nets) for name in net.output_names]
    total = ["total loss"] if solver.param.test_compute_loss else []
    columns = list(dict.fromkeys((*_FIRST, *_TRAINED, *outputs, *total)))
    file.seek(0)
    if (found := next(csv.reader(file), [])) and found != columns:
        raise ParameterError(f"--log {path} has the columns {found}, expected {columns}: name another file")
    rows = csv.DictWriter(file, columns, extrasaction="ignore")
    if not found:
        rows.writeheader()
    return rows.writerow


def _json_lines(file: TextIO) -> Callable[[Row], object]:
    return lambda row: file.write(json.dumps(row) + "\n")


def _tensorboard(folder: Path, stack: ExitStack) -> Callable[[Row], object]:
    """An event file in a folder, by TensorBoard's own writer.

    Not by torch's SummaryWriter, nor by the EventFileWriter below it: that writes in a thread, which would take the
    interpreter from the one that trains.
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
    return write
