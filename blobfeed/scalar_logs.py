"""Where the numbers of a training go beside the display: CSV, JSON lines, TensorBoard."""

from __future__ import annotations

import csv
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

from .trainer.solving.solver import Solver
from .workers.base.closing import close_all
from .workers.base.errors import ParameterError
from .workers.base.extras import need

_FIRST = ("iteration", "seconds", "net")
_TRAINED = ("loss", "rate", "samples_per_s", "stall_share")
EVERY = 100
"""Iterations between two rows, if the solver has no `display`."""


class ScalarLog(Protocol):
    """`net`: "train", or "test 0" and so on; `seconds`: since the start."""

    def write(self, iteration: int, seconds: float, net: str, scalars: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class CsvLog:
    """A column for each name, a row for each write; what a row does not have is empty. It goes on in a file of its
    own: raises ParameterError if the file has other columns."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        columns = [*_FIRST, *names]
        if (found := _columns_of(path)) and found != columns:
            raise ParameterError(f"--log {path} has the columns {found}, expected {columns}: name another file")
        self._file = _opened(path)
        self._rows = csv.DictWriter(self._file, columns, extrasaction="ignore")
        if not found:
            self._rows.writeheader()

    def write(self, iteration: int, seconds: float, net: str, scalars: Mapping[str, float]) -> None:
        self._rows.writerow({"iteration": iteration, "seconds": f"{seconds:.3f}", "net": net, **scalars})
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class JsonLinesLog:
    """An object on each line."""

    def __init__(self, path: Path) -> None:
        self._file = _opened(path)

    def write(self, iteration: int, seconds: float, net: str, scalars: Mapping[str, float]) -> None:
        row = {"iteration": iteration, "seconds": round(seconds, 3), "net": net, **scalars}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoardLog:
    """An event file in a folder, by TensorBoard's own writer.

    Not by torch's SummaryWriter, nor by the EventFileWriter below it: that writes in a thread, which would take the
    interpreter from the one that trains.
    """

    def __init__(self, folder: Path) -> None:
        need("tensorboard", "--tensorboard")
        from tensorboard.compat.proto import event_pb2, summary_pb2  # type: ignore[import-untyped]
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("wb")
        self._records = RecordWriter(self._file)
        self._put(self._event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, iteration: int, seconds: float, net: str, scalars: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=f"{net}/{name}", simple_value=value) for name, value in scalars.items()]
        self._put(self._event(wall_time=time.time(), step=iteration, summary=self._summary(value=values)))

    def _put(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        self._records.flush()

    def close(self) -> None:
        self._file.close()


def open_logs(files: Sequence[Path], tensorboard: Path | None, solver: Solver) -> list[ScalarLog]:
    """One for each file, whose ending says which, and one for TensorBoard's folder; raises ParameterError."""
    for path in files:
        if path.suffix not in (".csv", ".jsonl"):
            raise ParameterError(f"--log {path}: expected a name that ends in .csv or .jsonl")
    logs: list[ScalarLog] = []
    try:
        logs.extend(CsvLog(path, _names(solver)) if path.suffix == ".csv" else JsonLinesLog(path) for path in files)
        if tensorboard is not None:
            logs.append(TensorBoardLog(tensorboard))
    except BaseException:
        close_all(*(log.close for log in logs))
        raise
    return logs


def _names(solver: Solver) -> list[str]:
    outputs = [name for net in (solver.train_net, *solver.test_nets) for name in net.output_names]
    total = ["total loss"] if solver.param.test_compute_loss else []
    return list(dict.fromkeys((*_TRAINED, *outputs, *total)))


def _columns_of(path: Path) -> list[str]:
    """Of a table that is there already."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file), [])


def _opened(path: Path) -> TextIO:
    try:
        return path.open("a", newline="", encoding="utf-8")
    except OSError as error:
        raise ParameterError(f"--log {path} cannot be written: {error.strerror}: name another file") from None
