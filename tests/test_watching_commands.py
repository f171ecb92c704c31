"""What the command says of a run beside training it: logs, a trace, the doctor; and progress bars."""

from __future__ import annotations

import csv
import io
import json
import signal
import sys
import threading
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tqdm  # type: ignore[import-untyped]
from rich.console import Console
from rich.progress import track

import blobfeed
from blobfeed import BatchReader, training_display

from .support.commands import error_of, output_of, run
from .support.trainer_nets import SMALL_NET, SMALL_SOLVER, write_project
from .support.training import importing_leaves_no_trace, one_thread
from .test_cli import OURS

__all__ = ["importing_leaves_no_trace", "one_thread"]

SOLVER = SMALL_SOLVER + "display: 10 test_iter: 5 test_interval: 30 "


def rows_of(table: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(table.read_text().splitlines()))


def events_of(file: Path) -> list[Any]:
    """TensorBoard's events, read by its own code."""
    from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
    from tensorboard.compat.tensorflow_stub.errors import OutOfRangeError  # type: ignore[import-untyped]
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import (  # type: ignore[import-untyped]
        PyRecordReader_New,
    )

    events: list[Any] = []
    records = PyRecordReader_New(str(file))
    with suppress(OutOfRangeError):
        while True:
            records.GetNext()
            events.append(Event.FromString(records.record()))
    return events


def scalars_of(board: Path) -> dict[str, list[tuple[int, float]]]:
    (file,) = board.iterdir()
    scalars: dict[str, list[tuple[int, float]]] = {}
    for event in events_of(file):
        for value in event.summary.value:
            scalars.setdefault(value.tag, []).append((event.step, value.simple_value))
    return scalars


def test_training_writes_logs_that_others_read_and_ends_with_a_diagnosis(tmp_path: Path) -> None:
    path = write_project(tmp_path, net=OURS, solver=SOLVER)
    table, lines, board = tmp_path / "log.csv", tmp_path / "log.jsonl", tmp_path / "board"
    threads = threading.active_count()
    shown = output_of("train", "--solver", path, "--log", table, "--log", lines, "--tensorboard", board)
    assert threading.active_count() == threads
    *_, diagnosis, scores = shown.splitlines()
    assert diagnosis.startswith("data of layer 'data': ")
    assert scores.startswith("iteration 30: test net 0: ")
    rows = rows_of(table)
    told = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(row["iteration"], row["net"]) for row in rows] == [
        ("0", "test 0"), ("10", "train"), ("20", "train"), ("30", "train"), ("30", "test 0")
    ]  # fmt: skip
    assert [int(row["iteration"]) for row in rows] == [each["iteration"] for each in told]
    assert [float(row["loss"]) for row in rows] == [each["loss"] for each in told]
    assert 0 <= told[1]["stall_share"] <= 1
    assert told[1]["samples_per_s"] > 0
    scalars = scalars_of(board)
    trained = [each for each in told if each["net"] == "train"]
    assert [step for step, _ in scalars["train/loss"]] == [each["iteration"] for each in trained]
    assert [value for _, value in scalars["train/loss"]] == pytest.approx([each["loss"] for each in trained])
    assert len(scalars["test 0/accuracy"]) == 2
    again = run("train", "--solver", path, "--log", table)
    assert again.exit_code == 0
    assert len(rows_of(table)) == 10
    table.write_text("a,b\n")
    assert "has the columns ['a', 'b'], expected" in error_of("train", "--solver", path, "--log", table)
    assert "expected a name that ends in .csv or .jsonl" in error_of("train", "--solver", path, "--log", "x.txt")


def test_tensorboard_is_told_that_a_resumed_run_does_iterations_again(tmp_path: Path) -> None:
    """It shows no event from this step on that an earlier file has. Its reader would import TensorFlow here."""
    path = write_project(tmp_path, solver=f'{SOLVER} snapshot: 10 snapshot_prefix: "{tmp_path}/s"')
    output_of("train", "--solver", path)
    snapshot, board = tmp_path / "s_iter_10.pt", tmp_path / "board"
    output_of("train", "--solver", path, "--tensorboard", board, "--snapshot", snapshot)
    (file,) = board.iterdir()
    version, start, *others = events_of(file)
    assert version.file_version == "brain.Event:2"
    assert (start.step, start.session_log.status) == (11, start.session_log.START)
    assert [event.step for event in others] == [20, 30, 30]


def test_the_time_in_which_logs_are_made_ready_is_none_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = training_display._tensorboard

    def slow(*given: Any) -> Any:  # as the import of TensorBoard may be
        time.sleep(2)
        return make(*given)

    monkeypatch.setattr(training_display, "_tensorboard", slow)
    path, lines = write_project(tmp_path, solver=SMALL_SOLVER + "display: 1"), tmp_path / "log.jsonl"
    begun = time.monotonic()
    output_of("train", "--solver", path, "--log", lines, "--tensorboard", tmp_path / "board")
    most = time.monotonic() - begun - 2
    first = json.loads(lines.read_text().splitlines()[0])
    assert first["seconds"] < most
    assert first["samples_per_s"] > 8 / most  # of a batch


def test_ctrl_c_while_logs_are_made_ready_ends_the_command_without_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_display, "_tensorboard", lambda *_: signal.raise_signal(signal.SIGINT))
    path = write_project(tmp_path, solver=SMALL_SOLVER)
    result = run("train", "--solver", path, "--tensorboard", tmp_path / "board")
    assert (result.exit_code, result.stderr) == (130, "blobfeed: interrupted\n")
    assert not list(tmp_path.glob("*.pt"))


def test_a_log_that_ends_in_a_part_of_a_row_goes_on_in_a_row_of_its_own(tmp_path: Path) -> None:
    table, lines = tmp_path / "log.csv", tmp_path / "log.jsonl"
    path = write_project(tmp_path, solver=SMALL_SOLVER + "display: 10")
    command = ("train", "--solver", path, "--log", table, "--log", lines)
    output_of(*command)
    for log in (table, lines):
        log.write_bytes(log.read_bytes()[:-9])  # as a full disk leaves it
    output_of(*command)
    assert [row["iteration"] for row in rows_of(table)[-3:]] == ["10", "20", "30"]
    assert [json.loads(line)["iteration"] for line in lines.read_text().splitlines()[-3:]] == [10, 20, 30]


def test_a_log_has_each_number_of_an_output_and_the_objective_beside_an_output_called_loss(tmp_path: Path) -> None:
    more = """layer { name: "size" type: "Reduction" bottom: "ip2" top: "size" loss_weight: 0.001
                reduction_param { operation: SUMSQ } }"""
    net = SMALL_NET.replace('top: "accuracy"', 'top: "accuracy" top: "per_class"') + more
    path, table, lines = write_project(tmp_path, net=net, solver=SOLVER), tmp_path / "log.csv", tmp_path / "log.jsonl"
    output_of("train", "--solver", path, "--log", table, "--log", lines)
    tested, trained, *_ = rows_of(table)
    assert all(0 <= float(tested[f"per_class[{nth}]"]) <= 1 for nth in range(3))
    told = json.loads(lines.read_text().splitlines()[1])
    assert told["total loss"] == pytest.approx(told["loss"] + told["size"] / 1000, rel=1e-5)
    assert [float(trained[name]) for name in ("loss", "total loss")] == [told["loss"], told["total loss"]]
    assert {name for name, value in trained.items() if not value} == {
        "accuracy",
        *(f"per_class[{n}]" for n in range(3)),
    }


def test_training_writes_a_trace(tmp_path: Path) -> None:
    path = write_project(tmp_path, net=OURS)
    trace = tmp_path / "run.json"
    output_of("train", "--solver", path, "--trace", trace)
    events = json.loads(trace.read_text())
    copies = [event["args"] for event in events if event["name"] == "copy"]
    batches = [n for copy in copies for n in range(copy["batch"], copy["batch"] + copy.get("batches", 1))]
    assert batches[:30] == list(range(30))  # the last slot holds more than training takes
    assert {"task", "step"} <= {event["name"] for event in events}


def test_the_doctor_tells_what_a_bug_report_needs() -> None:
    shown = output_of("doctor")
    for part in (
        f"blobfeed {blobfeed.__version__}",
        f"numpy {np.__version__}",
        "Linux ",
        "cores",
        "locked memory",
        "torch ",
    ):
        assert part in shown


def test_the_doctor_names_the_extra_of_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blobfeed.doctor.is_installed", lambda library: library != "lmdb")
    monkeypatch.setitem(sys.modules, "blobfeed.sources.images._crop", None)
    said = output_of("doctor")
    assert "lmdb, for Caffe's LMDB, the decoded cache: pip install 'blobfeed[lmdb]'" in said
    assert "decoding crops alone: install blobfeed again beside libjpeg-turbo's headers" in said


def test_the_doctor_works_in_a_checkout_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(package: str) -> list[str]:
        raise PackageNotFoundError(package)

    monkeypatch.setattr("blobfeed.doctor.requires", requires)
    output_of("doctor")


def test_the_doctor_tells_the_rest_if_a_fact_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOBFEED_PYTHON", "/bin/false")
    told = output_of("doctor")
    for part in ("unknown: InterpreterError: ", "/bin/false", f"numpy {np.__version__}", "limits:", "locked memory"):
        assert part in told


def test_progress_bars_know_how_long_a_loop_is() -> None:
    source = {"arrays": {"x": np.arange(40, dtype=np.float32)}}
    with BatchReader(source, batch_size=4, epochs=1, num_loaders=1) as reader:
        loop: Any = iter(reader)
        lengths = [len(loop) for _ in loop]
        assert lengths == list(range(9, -1, -1))
        shown = io.StringIO()
        assert len(list(tqdm.tqdm(reader, file=shown))) == 10
        assert "10/10" in shown.getvalue()
        assert tqdm.tqdm(iter(reader), file=shown).total == 10
        assert len(list(track(reader, console=Console(file=shown)))) == 10
        assert "100%" in shown.getvalue()
    with BatchReader(source, batch_size=4, num_loaders=1, epochs=None) as endless:
        assert tqdm.tqdm(iter(endless), file=shown).total is None
