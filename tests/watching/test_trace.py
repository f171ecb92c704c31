"""Traces of real runs: every span is there with what belongs to it, also after the trainer was killed."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from blobfeed.readers.opening import open_pipeline
from blobfeed.watching import TraceFile, TrainerTrace, load
from blobfeed.workers.api import CacheCounts, Hooks
from blobfeed.workers.transport import About
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import BlobfeedError, ParameterError, RingAllocationError, Sample
from tests.support.pipelines import Fault, Numbered, Place, Trap, deliver, parameters, trapped_pipeline
from tests.test_monitor import trainer

Event = dict[str, Any]
ABOUT = About(1, 3, 2, "numbers")


def spans_of(trace: Path, *names: str) -> list[Event]:
    return [event for event in load(trace)["traceEvents"] if event["name"] in names]


def traced(trace: Path, **values: Any) -> None:
    """All batches of two epochs: ten each, of four samples."""

    def decode(sample: Sample, _: object) -> dict[str, Any]:
        return {"data": sample["data"], "label": sample["label"]}

    def postprocess(batch: Any) -> None:
        batch["label"] += 0

    values = {"tops": ("data", "label"), **values}
    given = parameters(trace=str(trace), **values)
    with open_pipeline(given, Hooks(decode, postprocess), source=Numbered()) as pipeline:
        assert len(list(deliver(pipeline))) == 20


def test_a_trace_is_json_of_whole_lines_with_the_spans_of_every_process_and_leaves_nothing_beside_it(
    tmp_path: Path,
) -> None:
    trace = tmp_path / "run.json"
    trace.write_text("an earlier one")
    traced(trace)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert isinstance(json.loads(trace.read_text()), list)
    first, *lines, last = trace.read_text().splitlines()
    assert (first, last) == ("[", "]")
    assert all(json.loads(f"[{line.removeprefix(',')}]") for line in lines)
    assert all(line.startswith(",") for line in lines[1:])
    copies, steps = spans_of(trace, "copy"), spans_of(trace, "step")
    assert (copies[0]["cat"], copies[0]["args"]) == ("trainer", {"batch": 0})
    assert [event["args"]["batch"] for event in copies] == list(range(20))
    assert [event["args"]["batch"] for event in steps] == list(range(20))
    assert all(copy["ts"] + copy["dur"] == step["ts"] for copy, step in zip(copies, steps, strict=True))
    tasks = spans_of(trace, "task")
    assert len({event["args"]["task"] for event in tasks}) == len(tasks)
    assert sum(event["args"].get("rows", 0) for event in tasks) == 80
    assert {name for event in tasks for name in event["args"]} >= {"read", "decode", "postprocess"}
    for event in tasks:
        work = sum(event["args"].get(name, 0) for name in ("read", "decode", "postprocess"))
        assert 0 < work <= (event["dur"] + 1) / 1000
    assert {event["args"].get("slowest", 0) for event in tasks} <= set(range(40))
    assert {event["args"]["batch"] for event in tasks} == set(range(20))
    assert len(spans_of(trace, "start")) in (1, 2)  # on a busy machine all may be done before the second one is there
    named = {event["pid"]: event["args"]["name"] for event in spans_of(trace, "process_name")}
    assert {"trainer", "assembler"} < set(named.values())
    assert named[os.getpid()] == "trainer"
    assert {named[event["pid"]] for event in tasks} <= {"loader 1", "loader 2"}


def test_a_trace_names_the_cores_that_the_control_group_grants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blobfeed.workers.plan.plan.processors_granted", lambda: 0.5)
    traced(tmp_path / "run.json")
    (about,) = spans_of(tmp_path / "run.json", "blobfeed")
    assert about["args"]["cores"] == 1


def test_a_sampler_traces_the_epochs_it_draws(tmp_path: Path) -> None:
    trace = tmp_path / "run.json"
    np.save(tmp_path / "w.npy", np.ones(40))
    traced(trace, sampler={"weights": str(tmp_path / "w.npy"), "draws": 40}, shuffle=False)
    assert {event["args"]["epoch"] for event in spans_of(trace, "draw")} >= {0, 1}


def test_a_death_is_an_instant_that_names_loader_and_sample(tmp_path: Path) -> None:
    trace = tmp_path / "run.json"
    trap = Trap(Fault.KILLED, Place.DECODE, frozenset({7}), tmp_path / "marker")
    with trapped_pipeline(trap, trace=str(trace), kind=open_pipeline) as pipeline:
        assert len(list(deliver(pipeline))) == 20
    (death,) = spans_of(trace, "death")
    assert (death["ph"], death["args"]["sample"]) == ("i", 7)
    assert death["args"]["loader"] in (1, 2)


def test_a_killed_trainer_leaves_a_trace_that_can_be_read(tmp_path: Path) -> None:
    trace = tmp_path / "run.json"
    with trainer("starving", tmp_path, str(trace)) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        pid = process.pid
    assert not trace.read_text().endswith("]\n")
    steps = spans_of(trace, "step")
    assert {event["pid"] for event in steps} == {pid}
    assert [event["args"]["batch"] for event in steps] == list(range(len(steps)))
    assert len(steps) >= 4
    assert all(event["dur"] >= 50_000 for event in steps)
    assert spans_of(trace, "task")


def test_two_pipelines_cannot_write_the_same_trace_and_a_folder_must_be_there(tmp_path: Path) -> None:
    given = parameters(trace=str(tmp_path / "run.json"), epochs=1)
    with open_pipeline(given, source=Numbered()) as one, open_pipeline(given, source=Numbered()) as other:
        one.start()
        with pytest.raises(ParameterError):
            other.start()
        one.release(one.take())
    assert spans_of(tmp_path / "run.json", "copy")


def test_a_pipeline_that_cannot_start_leaves_nothing_of_a_trace(tmp_path: Path) -> None:
    given = parameters(trace=str(tmp_path / "run.json"), epochs=1, batch_size=1 << 36)
    with open_pipeline(given, source=Numbered()) as pipeline, pytest.raises(RingAllocationError):
        pipeline.start()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["{}", '{"traceEvents": ['])
def test_what_is_no_trace_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(BlobfeedError, match=r"a\.json is no trace, or one that was cut: expected Trace Event JSON"):
        load(tmp_path / "a.json")


# ---- the file


@pytest.fixture
def file(tmp_path: Path) -> Iterator[TraceFile]:
    with closing(TraceFile.create(tmp_path / "t", ABOUT, 4, 2)) as trace:
        yield trace


def events_in(folder: Path) -> list[Event]:
    """The events in the file, those that name things left out."""
    return [event for event in load(folder / "t")["traceEvents"] if event["ph"] != "M"]


def test_processes_append_whole_lines_to_one_file(tmp_path: Path, file: TraceFile) -> None:
    others = []
    for number in range(4):
        if (pid := os.fork()) == 0:
            own = TraceFile(file.descriptor)
            for begun in range(500):
                own.write(own.span("loader", "task", begun, begun + 1, task=begun, loader=number, text="x" * 300))
            os._exit(0)
        others.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in others] == [0] * 4
    file.finish(CacheCounts(1, 2, 3))
    found = json.loads((tmp_path / "t").read_bytes())
    for number, pid in enumerate(others):
        its = [event for event in found if event["args"].get("loader") == number]
        assert [event["args"]["task"] for event in its] == list(range(500))
        assert {event["pid"] for event in its} == {pid}
    assert found[-1]["args"] == {"hits": 1, "misses": 2, "damaged": 3}


@given(st.data())
def test_a_trace_that_was_cut_anywhere_has_the_lines_before(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        with closing(TraceFile.create(Path(folder, "t"), ABOUT, 4, 2)) as file:
            ends = []
            for number in range(5):
                file.write(file.span("loader", "task", number, number + 1, task=number))
                ends.append(Path(folder, "t").stat().st_size)
        whole = Path(folder, "t").read_bytes()
        cut = data.draw(st.integers(ends[0], len(whole)))
        Path(folder, "t").write_bytes(whole[:cut] + b',{"name":"late","ph":"X","ts":1,"dur":1}\n' * (cut in ends))
        told = [event["args"]["task"] for event in events_in(Path(folder)) if event["name"] == "task"]
        assert told == list(range(sum(end - 1 <= cut for end in ends)))  # a line is whole without its newline


def test_a_line_that_a_full_disk_has_cut_spoils_no_other_process(tmp_path: Path, file: TraceFile) -> None:
    os.write(file.descriptor, b',{"name":"ta\n')
    file.write(file.span("loader", "task", 1, 2, task=7))
    assert [event["args"]["task"] for event in events_in(tmp_path)] == [7]


def test_a_trace_that_cannot_be_written_any_more_is_said_once_and_ends_nothing(
    tmp_path: Path, file: TraceFile, caplog: pytest.LogCaptureFixture
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "t").stat().st_size, before[1]))
    try:
        with caplog.at_level(logging.WARNING, "blobfeed"):
            for number in range(3):
                file.write(file.span("loader", "task", 1, 2, task=number))
            file.finish(CacheCounts())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [record.message for record in caplog.records] == [
        f"the trace has no more of process {os.getpid()} from here on: File too large"
    ]
    assert events_in(tmp_path) == []


def test_a_disk_that_is_full_at_the_last_line_does_not_hinder_the_end(tmp_path: Path, file: TraceFile) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    cache = b',{"name":"cache","ph":"M","pid":%d,"args":{"hits":0,"misses":0,"damaged":0}}\n' % os.getpid()
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "t").stat().st_size + len(cache), before[1]))
    try:
        file.finish(CacheCounts())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert load(tmp_path / "t")["traceEvents"][-1]["name"] == "cache"


def test_the_trainer_writes_a_line_for_the_batches_that_came_together(
    tmp_path: Path, file: TraceFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [10_000_000]
    monkeypatch.setattr("time.monotonic_ns", lambda: now[0])
    trainer_trace = TrainerTrace()
    trainer_trace.file = file
    for number, batches in ((0, 2), (1, 1), (2, 2), (3, 1)):
        trainer_trace.asks()
        now[0] += 50_000 if batches == 2 else 0
        trainer_trace.asks()  # as after an interrupt
        trainer_trace.has()
        now[0] += 10_000
        trainer_trace.takes(number, batches)
        now[0] += 500_000
    trainer_trace.end()
    told = [(event["name"], event["args"]["batch"], event["args"]["batches"], event["dur"])
            for event in events_in(tmp_path)]  # fmt: skip
    assert told == [
        ("wait", 0, 2, 50), ("copy", 0, 2, 10), ("step", 0, 2, 1010),
        ("wait", 2, 2, 50), ("copy", 2, 2, 10), ("step", 2, 2, 1010),
    ]  # fmt: skip
