"""Traces of real runs: every span is there with what belongs to it, also after the trainer was killed."""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from blobfeed.workers.base.errors import ParameterError, RingAllocationError
from blobfeed.workers.base.hooks import Hooks, Sample
from blobfeed.workers.pipeline.variants import make_pipeline
from blobfeed.workers.processes.slot_trace import SlotTrace
from blobfeed.workers.transport.messages import Announce
from blobfeed.workers.transport.status_board import About, Activity, StatusBoard
from blobfeed.workers.transport.trace_ring import RECORDS, Kind, Run, Span, TracedStatus, TraceRing, read_ring, ring_of
from blobfeed.workers.watching.trace_events import merged, trace_of
from typer.testing import CliRunner

from blobfeed.cli import app
from tests.support.pipelines import Fault, Numbered, Place, Trap, deliver, parameters, trapped_pipeline
from tests.test_monitor import trainer

Event = dict[str, Any]
RUN = Run(10**18, 0, About(1, 3, 2, "numbers"))


def spans_of(trace: Path, *names: str) -> list[Event]:
    events = json.loads(trace.read_text())["traceEvents"]
    return [event for event in events if event["name"] in names]


def within(inner: Event, outer: Event) -> bool:
    return bool(outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 0.002)


def traced(trace: Path, **values: Any) -> None:
    """All batches of two epochs: ten each, of four samples."""

    def decode(sample: Sample, _: object) -> dict[str, Any]:
        return {"data": sample["data"], "label": sample["label"]}

    def postprocess(batch: Any) -> None:
        batch["label"] += 0

    values = {"tops": ("data", "label"), **values}
    given = parameters(trace=str(trace), **values)
    with make_pipeline(given, Hooks(decode, postprocess), source=Numbered()) as pipeline:
        assert len(list(deliver(pipeline))) == 20


def test_a_trace_has_the_spans_of_every_process_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    trace = tmp_path / "run.json"
    traced(trace)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    copies, steps = spans_of(trace, "copy"), spans_of(trace, "step")
    assert (copies[0]["cat"], copies[0]["args"]) == ("trainer", {"batch": 0})
    numbers = [event["args"]["batch"] for event in copies]
    assert [number + event["args"].get("batches", 1) for number, event in zip(numbers, copies, strict=True)] == [
        *numbers[1:], 20
    ]  # fmt: skip
    assert [event["args"]["batch"] for event in steps] == numbers
    tasks = {event["args"]["task"]: event for event in spans_of(trace, "task")}
    parts = spans_of(trace, "read", "decode", "postprocess")
    assert {event["name"] for event in parts} == {"read", "decode", "postprocess"}
    assert all(within(part, tasks[part["args"]["task"]]) for part in parts)
    assert all(part["args"]["batch"] == tasks[part["args"]["task"]]["args"]["batch"] for part in parts)
    assert sum(event["args"]["rows"] for event in parts if event["name"] == "decode") == 80
    assert {event["args"].get("sample", 0) for event in parts if event["name"] == "read"} <= set(range(40))
    filled = spans_of(trace, "fill")
    assert [event["args"]["batch"] for event in filled] == list(range(20))
    assert {event["tid"] for event in filled} == {event["args"]["slot"] for event in filled}
    assert len(spans_of(trace, "start")) in (1, 2)  # on a busy machine all may be done before the second one is there
    named = {event["pid"]: event["args"]["name"] for event in spans_of(trace, "process_name")}
    assert {"trainer", "assembler", "slots of the ring"} < set(named.values())
    assert named[os.getpid()] == "trainer"
    assert {named[event["pid"]] for event in tasks.values()} <= {"loader 1", "loader 2"}


def test_a_slot_that_is_not_released_is_full_until_the_end(tmp_path: Path) -> None:
    trace = tmp_path / "run.json"
    with make_pipeline(parameters(trace=str(trace), epochs=1), source=Numbered()) as pipeline:
        pipeline.take()
    for name in ("fill", "full"):
        assert 0 in [event["args"]["batch"] for event in spans_of(trace, name)]


def test_a_death_is_an_instant_that_names_loader_and_sample(tmp_path: Path) -> None:
    trace = tmp_path / "run.json"
    trap = Trap(Fault.KILLED, Place.DECODE, frozenset({7}), tmp_path / "marker")
    with trapped_pipeline(trap, trace=str(trace), kind=make_pipeline) as pipeline:
        assert len(list(deliver(pipeline))) == 20
    (death,) = spans_of(trace, "death")
    assert (death["ph"], death["args"]["sample"]) == ("i", 7)
    assert death["args"]["loader"] in (1, 2)


def test_a_killed_trainer_leaves_a_ring_of_which_the_command_makes_the_trace(tmp_path: Path) -> None:
    trace = tmp_path / "run.json"
    with trainer("starving", tmp_path, str(trace)) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        pid = process.pid
    assert not trace.exists()
    result = CliRunner().invoke(app, ["trace", str(ring_of(trace))])
    assert (result.exit_code, result.stdout) == (0, f"{trace}\n")
    steps = spans_of(trace, "step")
    assert {event["pid"] for event in steps} == {pid}
    assert [event["args"]["batch"] for event in steps] == list(range(len(steps)))
    assert len(steps) >= 4
    assert all(event["dur"] >= 50_000 for event in steps)
    assert spans_of(trace, "decode")


def test_two_pipelines_cannot_write_the_same_trace_and_a_folder_must_be_there(tmp_path: Path) -> None:
    given = parameters(trace=str(tmp_path / "run.json"), epochs=1)
    with make_pipeline(given, source=Numbered()) as one, make_pipeline(given, source=Numbered()) as other:
        one.start()
        with pytest.raises(ParameterError, match=r"another pipeline writes into .*run.json.ring"):
            other.start()
    with pytest.raises(ParameterError, match=r"parameter 'trace' is '/nowhere/run\.json': there is no folder /nowhere"):
        make_pipeline(parameters(trace="/nowhere/run.json"), source=Numbered())


def test_a_pipeline_that_cannot_start_leaves_nothing_of_a_trace(tmp_path: Path) -> None:
    given = parameters(trace=str(tmp_path / "run.json"), epochs=1, batch_size=1 << 36)
    with make_pipeline(given, source=Numbered()) as pipeline, pytest.raises(RingAllocationError):
        pipeline.start()
    assert not list(tmp_path.iterdir())


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[]")
    (tmp_path / "b.json").write_text('{"traceEvents": []}')
    (tmp_path / "a.json.ring").write_bytes(b"x" * 5000)
    ring = TraceRing.create(tmp_path / "b", RUN, lines=1)
    ring.trainer().write(Kind.STEP, 0, 1, 1, -1, 0)
    ring.close()
    (tmp_path / "a.ring").write_bytes(ring_of(tmp_path / "b").read_bytes()[:5000])
    for arguments, words in (
        (["a.json.ring"], "is no trace of this version"),
        (["a.ring"], "a.ring is cut short: it has 5,000 of "),
        (["a.json", "-o", "b.json"], "expected a JSON object with 'traceEvents'"),
        (["b.json"], "say with -o where"),
        (["none.json"], "error: there is no file 'none.json'; name FILE.ring or a trace"),
        (["b.json", "--merge", "none.json", "-o", "c"], "error: there is no file 'none.json'; name"),
    ):
        paths = [str(tmp_path / each) if each.startswith(("a", "b")) else each for each in arguments]
        result = CliRunner().invoke(app, ["trace", *paths])
        assert result.exit_code == 1
        assert words in result.stderr


def test_torchs_own_events_fall_into_the_step_in_which_they_ran(tmp_path: Path) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile

    trace, theirs, both = (tmp_path / name for name in ("run.json", "torch.json", "both.json"))
    with make_pipeline(parameters(trace=str(trace), epochs=1), source=Numbered()) as pipeline:
        pipeline.release(pipeline.take())
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            torch.ones(7).cumsum(0)
        for _ in range(9):
            pipeline.release(pipeline.take())
    profiled.export_chrome_trace(str(theirs))
    result = CliRunner().invoke(app, ["trace", str(trace), "--merge", str(theirs), "-o", str(both)])
    assert result.exit_code == 0, result.output
    (operation,) = spans_of(both, "aten::cumsum")
    (step,) = [event for event in spans_of(both, "step") if event["args"]["batch"] == 0]
    assert step["ts"] - 1000 < operation["ts"] < step["ts"] + step["dur"] + 1000  # clocks are read apart


# ---- the ring and its conversion


def test_a_ring_keeps_the_last_spans_of_each_process(tmp_path: Path) -> None:
    trace = tmp_path / "t"
    ring = TraceRing.create(trace, RUN, lines=1)
    size = ring_of(trace).stat().st_size
    writers = ring.trainer(), ring.line(0)
    for number in range(RECORDS + 5):
        writers[0].write(Kind.STEP, number, number + 1, 1, -1, number)
    writers[1].write(Kind.READ, 3, 9, 4, 2, 1, 5, 11)
    with ring_of(trace).open("r+b") as file:  # killed at the next span, which begins with zeros
        at = ring_of(trace).read_bytes().index(struct.pack("=qq", 5, 1))
        file.seek(at)
        file.write(bytes(64))
    run, spans = read_ring(ring_of(trace))
    listed = list(spans)
    ring.close()
    assert run == RUN
    assert ring_of(trace).stat().st_size == size
    assert [span.group for span in listed if span.kind is Kind.STEP] == list(range(6, RECORDS + 5))
    assert listed[-2:] == [
        (3, 6, Kind.TASK, 0, os.getpid(), 2, 1, 5, -1), (3, 6, Kind.READ, 4, os.getpid(), 2, 1, 5, 11)
    ]  # fmt: skip
    again = TraceRing.create(trace, RUN, lines=1)  # what a crash has left does not come back
    assert list(read_ring(ring_of(trace))[1]) == []
    again.close()


def spans_of_a_task(
    folder: Path, monkeypatch: pytest.MonkeyPatch, steps: Iterable[tuple[Activity, int, int]]
) -> list[Span]:
    """Those of a loader's task of such steps: what it does, with which sample, for how many nanoseconds."""
    now = [1_000_000]
    monkeypatch.setattr("time.monotonic_ns", lambda: now[0])
    ring = TraceRing.create(folder / "t", RUN, lines=1)
    board = StatusBoard.create(1)
    status = TracedStatus(board.words_of(0), ring.line(0))
    status.begin(1, 9)
    status.begin_task(4, 2)
    for activity, sample, took_ns in steps:
        status.write(activity, sample)
        now[0] += took_ns
    status.begin_task(0)
    spans = list(read_ring(ring_of(folder / "t"))[1])
    del status
    ring.close()
    board.close()
    return spans


def test_short_spans_of_one_kind_are_gathered_until_more_than_two_milliseconds_have_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [(Activity.DECODING, sample, 100_000) for sample in range(30)]
    spans = spans_of_a_task(tmp_path, monkeypatch, steps)
    decodes = [span for span in spans if span.kind is Kind.DECODE]
    assert [(span.sample, span.rows, span.duration_ns) for span in decodes] == [
        (0, 21, 2_100_000), (21, 9, 900_000)
    ]  # fmt: skip
    (task,) = [span for span in spans if span.kind is Kind.TASK]
    assert (task.task, task.group, task.duration_ns) == (4, 2, 3_000_000)


@pytest.mark.parametrize("slow", [45, 49])
def test_a_slow_sample_among_short_ones_is_a_span_of_its_own(
    slow: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the report would show another one as the slowest."""
    steps = []
    for sample in range(40, 50):
        steps.append((Activity.READING, sample, 10_000))
        steps.append((Activity.DECODING, sample, 300_000_000 if sample == slow else 100_000))
    spans = spans_of_a_task(tmp_path, monkeypatch, steps)
    decodes = [(span.sample, span.rows, span.duration_ns) for span in spans if span.kind is Kind.DECODE]
    before, behind = slow - 40, 49 - slow
    expected = [(40, before, before * 100_000), (slow, 1, 300_000_000), (slow + 1, behind, behind * 100_000)]
    assert decodes == [span for span in expected if span[1]]
    assert sum(span.duration_ns for span in spans if span.kind is Kind.READ) == 100_000


def test_a_death_in_the_ring_of_the_assembler_is_no_task_of_its_own(tmp_path: Path) -> None:
    ring = TraceRing.create(tmp_path / "t", RUN, lines=0)
    writer = ring.assembler()
    writer.write(Kind.FILL, 1_000, 2_000, 4, 0, 0)
    writer.write(Kind.DEATH, 5_000, 5_000, 0, 2, -1, 7, 11)
    writer.write(Kind.FULL, 2_000, 6_000, 4, 0, 0, 1)
    events = trace_of(*read_ring(ring_of(tmp_path / "t")))["traceEvents"]
    ring.close()
    assert [event["name"] for event in events if event["ph"] != "M"] == ["fill", "full", "death"]
    (full,) = (event["args"] for event in events if event["name"] == "full")
    assert full == {"batch": 0, "rows": 4, "slot": 0}, "a slot of fewer batches than there is room for says so"
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["trainer", "assembler", "slots of the ring"]


def test_slots_that_follow_soon_are_one_record_and_its_batches_are_counted(tmp_path: Path) -> None:
    ring = TraceRing.create(tmp_path / "t", RUN, lines=0)
    writer = ring.trainer()
    for number, step_ns in ((0, 0), (2, 500_000), (8, 700_000)):
        asked_ns = 10_000_000 + 1_000_000 * number
        writer.write(Kind.TAKEN, asked_ns, asked_ns + 60_000, 0, -1, number, step_ns, asked_ns + 50_000)
    events = trace_of(*read_ring(ring_of(tmp_path / "t")))["traceEvents"]
    ring.close()
    told = [(event["name"], event["args"], event["dur"]) for event in events if event["ph"] == "X"]
    assert told == [
        ("wait", {"batch": 0, "batches": 2}, 50),
        ("copy", {"batch": 0, "batches": 2}, 10),
        ("step", {"batch": 0, "batches": 2}, 500),
        ("wait", {"batch": 2, "batches": 6}, 50),
        ("copy", {"batch": 2, "batches": 6}, 10),
        ("step", {"batch": 2, "batches": 6}, 700),
        ("wait", {"batch": 8, "batches": 2}, 50),
        ("copy", {"batch": 8, "batches": 2}, 10),
    ]


def test_the_last_record_stands_for_all_batches_to_the_end(tmp_path: Path) -> None:
    ring = TraceRing.create(tmp_path / "t", RUN, lines=0)
    writer = ring.trainer()
    writer.write(Kind.TAKEN, 10_000, 20_000, group=5, sample=10_000)
    writer.write(Kind.END, 20_000, 50_000, group=305)
    events = trace_of(*read_ring(ring_of(tmp_path / "t")))["traceEvents"]
    ring.close()
    told = [(event["name"], event["args"], event["dur"]) for event in events if event["ph"] == "X"]
    args = {"batch": 5, "batches": 300}
    assert told == [("copy", args, 10), ("step", args, 30)]


def test_a_slot_that_is_announced_again_after_its_release_is_written_once(tmp_path: Path) -> None:
    ring = TraceRing.create(tmp_path / "t", RUN, lines=0)
    slots, announce = SlotTrace(ring.descriptor), Announce(7, 2)
    slots.assigned(7)
    slots.announced(announce)
    slots.released(announce, (4,))
    slots.announced(announce)
    slots.end(lambda _: (4,))
    spans = list(read_ring(ring_of(tmp_path / "t"))[1])
    ring.close()
    assert [(span.kind, span.group, span.loader) for span in spans] == [(Kind.FILL, 7, 2), (Kind.FULL, 7, 2)]


def test_events_are_moved_to_the_other_traces_time_base() -> None:
    ours = trace_of(RUN, [])
    base = ours["baseTimeNanoseconds"]
    theirs = {"baseTimeNanoseconds": base + 5000, "traceEvents": [{"ph": "X", "ts": 1.5}, {"ph": "M"}]}
    assert merged(ours, theirs)["traceEvents"][-2:] == [{"ph": "X", "ts": 6.5}, {"ph": "M"}]


def test_a_ring_file_can_be_mapped_by_others(tmp_path: Path) -> None:
    ring = TraceRing.create(tmp_path / "t", RUN, lines=1)
    ring.assembler().write(Kind.FULL, 1, 2, loader=0, group=3)
    with mmap.mmap(ring.descriptor, 0) as seen:
        assert len(seen) == ring_of(tmp_path / "t").stat().st_size
    other = TraceRing(os.dup(ring.descriptor))
    other.assembler().write(Kind.FULL, 2, 3, loader=0, group=4)  # goes on behind it
    assert [span.group for span in read_ring(ring_of(tmp_path / "t"))[1]] == [3, 4]
    ring.close()
    other.close()
