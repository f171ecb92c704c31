"""From traces and logs to numbers, and the page in a real browser."""

from __future__ import annotations

import json
import os
import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.tools.run_facts import RunFacts, covered, read_losses, run_facts
from blobfeed.watching import load
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import BatchReader, Sample
from tests.support.browser import WIDTHS, console_of
from tests.support.commands import error_of, output_of, run
from tests.support.pictures import encoded, picture

MS = 1000
"""Times in a trace are in microseconds."""


def span(cat: str, name: str, ts: float, dur: float, **args: int) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts * MS, "dur": dur * MS, "pid": 1, "tid": 1, "args": args}


def trace() -> dict[str, Any]:
    """Ten batches of 8: each is waited for during 6 ms, copied in 1 and used for 3; two loaders, one of which dies."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {"name": "trainer"}},
        {"ph": "M", "name": "blobfeed", "pid": 1, "args": {"batch_size": 8}},
    ]
    for batch in range(10):
        begin = 10.0 * batch
        events += [
            span("trainer", "wait", begin, 6, batch=batch),
            span("trainer", "copy", begin + 6, 1, batch=batch),
            span("trainer", "step", begin + 7, 3, batch=batch),
        ]
        for loader in (1, 2):
            task, busy = 2 * batch + loader, 8 if loader == 1 else 4
            sample = 4 * task
            events += [
                span("loader", "task", begin, busy, task=task, loader=loader, rows=4, read=1, decode=busy - 2,
                     slowest=sample, slowest_ms=busy - 3),
            ]  # fmt: skip
    args = {"task": 99, "loader": 1, "rows": 1, "decode": 50, "slowest": 4711, "slowest_ms": 50}
    events.append(span("loader", "task", 99, 50, **args))
    events.append({"name": "cache", "ph": "M", "pid": 1, "args": {"hits": 60, "misses": 20, "damaged": 3}})
    events.append(
        {
            "ph": "i",
            "cat": "fault",
            "name": "death",
            "ts": 50 * MS,
            "pid": 2,
            "tid": 2,
            "args": {"loader": 2, "sample": 17},
        }
    )
    return {"traceEvents": events}


@pytest.fixture(scope="module")
def facts() -> RunFacts:
    return run_facts(trace())


def test_what_the_trainer_did(facts: RunFacts) -> None:
    assert (facts.batches, facts.samples) == (10, 80)
    assert facts.batch_ms["trainer"] == pytest.approx({"wait": 6, "copy": 1, "step": 3})
    assert facts.seconds == pytest.approx(0.149)
    width_s = facts.seconds / len(facts.times_s)
    assert facts.throughput.sum() * width_s == pytest.approx(80)
    assert facts.stall.sum() * width_s == pytest.approx(0.060)


def test_a_trace_that_names_no_cores_is_judged_by_those_that_the_control_group_grants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("blobfeed.workers.plan.plan.processors_granted", lambda: 0.5)
    events = trace()["traceEvents"][:-3]  # without the slow sample and the death
    assert "no core is free of 1" in run_facts({"traceEvents": events}).diagnosis


def test_what_the_loaders_did(facts: RunFacts) -> None:
    assert facts.batch_ms["loaders"] == pytest.approx({"read": 2, "decode": 13, "postprocess": 0, "other": 2})
    width_s = facts.seconds / len(facts.times_s)
    assert {loader: shares.sum() * width_s for loader, shares in facts.loaders.items()} == pytest.approx(
        {1: 0.130, 2: 0.040}
    )
    assert [(death.loader, death.sample) for death in facts.deaths] == [(2, 17)]
    assert facts.deaths[0].at_s == pytest.approx(0.050)


def test_the_slowest_samples_come_first_and_the_others_of_a_task_count_with_their_mean(
    facts: RunFacts,
) -> None:
    assert facts.slowest[0][0] == 4711
    assert facts.slowest[0][1] == pytest.approx(50)
    assert facts.slowest[1][1] == pytest.approx(5)
    assert facts.sample_counts.sum() == 20 * 4 + 1
    means = [ms for ms, rows in zip(facts.sample_ms, facts.sample_counts, strict=True) if rows == 3]
    assert sorted(set(means)) == pytest.approx([2 / 3])


@given(st.lists(st.tuples(st.floats(0.1, 9), st.floats(0, 9)), max_size=20), st.integers(2, 30))
def test_covered_is_what_counting_moments_gives(steps: list[tuple[float, float]], parts: int) -> None:
    spans, at = [], 0.0
    for gap, duration in steps:
        spans.append({"ts": at + gap, "dur": duration})
        at += gap + duration
    edges = np.linspace(0, max(at, 1), parts)
    got = covered(spans, edges)
    for number, (begin, end) in enumerate(pairwise(edges)):
        inside = sum(max(0.0, min(end, s["ts"] + s["dur"]) - max(begin, s["ts"])) for s in spans)
        assert got[number] == pytest.approx(inside / (end - begin), abs=1e-6)


def test_covered_counts_many_spans_at_times_since_1970() -> None:
    begin = 1_760_000_000_000_000  # microseconds, which a trace has
    spans = [{"ts": begin + 1000 * number, "dur": 400} for number in range(6000)]
    assert covered(spans, begin + np.array([0.0, 5_240_200, 6_000_000])) == pytest.approx([0.4, 0.4], abs=1e-3)


def test_the_trace_of_a_real_run_gives_its_batches_and_its_slow_sample(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((64, 4), np.float32))

    def decode(sample: Sample, rng: np.random.Generator) -> dict[str, Any]:
        time.sleep(0.2 if sample.index == 17 else 0.002)  # what takes long is what is tested
        return dict(sample)

    source = {"npy": {"data": tmp_path / "x.npy"}}
    with BatchReader(
        source, batch_size=8, epochs=1, num_loaders=2, decode=decode, trace=tmp_path / "run.json"
    ) as reader:
        assert len(list(reader)) == 8
    facts = run_facts(load(tmp_path / "run.json"))
    assert (facts.batches, facts.samples) == (8, 64)
    assert dict(facts.slowest)[17] > 190
    assert facts.batch_ms["loaders"]["decode"] * 8 > 300
    assert set(facts.loaders) <= {1, 2}
    assert facts.deaths == []


def test_events_of_others_that_were_merged_into_a_trace_are_left_out(facts: RunFacts) -> None:
    odd = trace()
    odd["traceEvents"] += [{"cat": "loader"}, {"cat": "trainer", "name": "copy", "ts": 0, "ph": "X"}]
    assert run_facts(odd).batches == facts.batches


# ---- logs

TWO = {"train": ([10, 20], [0.5, 0.25])}
LOGS: dict[str, tuple[str, dict[str, tuple[list[int], list[float]]]]] = {
    "ours": ("iteration 10/30: loss 0.5, rate 0.01, 900 samples/s\niteration 20/30: loss 2.5e-1, rate 0.01\n", TWO),
    "caffe": ("I0101 solver.cpp:228] Iteration 10 (5 iter/s), loss = 0.5\nIteration 20, loss = 0.25\n", TWO),
    "json lines": (
        '{"iteration": 10, "loss": 0.5}\n{"iteration": 20, "net": "train", "loss": 0.25}\n{"iteration": 30, "lo',
        TWO,
    ),
    "csv": ("iteration,loss,rate\n10,0.5,1\n20,0.25,1\n", TWO),
    "no numbers": (
        "Iteration 10, loss = -nan\nIteration 20, loss = -inf\niteration 40/50: loss nan, rate 1\n",
        {"train": ([10, 20, 40], [np.nan, -np.inf, np.nan])},
    ),
    "a row that was cut": ("iteration,net,total loss,rate\n10,train,0.5,1\n20,train,0.\n20,train,0.25,1\n", TWO),
    "the objective, and not an output called loss": (
        "iteration,net,loss,total loss\n10,train,0.5,0.75\n10,test 0,0.25,\n",
        {"train": ([10], [0.75]), "test 0": ([10], [0.25])},
    ),
    "test nets": (
        "iteration,seconds,net,loss,accuracy\n10,1,train,0.5,\n10,2,test 0,0.7,0.9\n10,2,test 1,,1\n",
        {"train": ([10], [0.5]), "test 0": ([10], [0.7])},
    ),
}


@pytest.mark.parametrize("name", LOGS)
def test_a_log_has_a_curve_for_each_net(name: str, tmp_path: Path) -> None:
    text, expected = LOGS[name]
    (tmp_path / "log").write_text(text)
    curves = read_losses(tmp_path / "log")
    assert curves.keys() == expected.keys()
    for net, (iterations, losses) in expected.items():
        np.testing.assert_array_equal(curves[net], [iterations, losses])


# ---- the page


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "run.json").write_text(json.dumps(trace()))
    (tmp_path / "a.log").write_text("iteration 1/3: loss 0.5\niteration 2/3: loss 0.4\n")
    (tmp_path / "b.csv").write_text("iteration,loss\n1,0.7\n2,0.6\n")
    with h5py.File(tmp_path / "train.h5", "w") as file:
        file["data"] = np.arange(5000, dtype=np.uint8).repeat(64).reshape(5000, 1, 8, 8)
    files = [tmp_path / name for name in ("run.json", "a.log", "b.csv")]
    output_of("report", *files, "--out", tmp_path / "report.html", "--source", tmp_path / "train.h5")
    return tmp_path / "report.html"


def test_the_page_has_everything_and_fetches_nothing(page: Path) -> None:
    pytest.importorskip("plotly", reason="the report needs plotly")
    text = page.read_text()
    for title in ("Throughput and stall", "What the time of a batch", "Loaders at work", "How long", "Faults", "Loss"):
        assert f"<h2>{title}" in text
    assert "</h1><p><strong>one sample takes 50 times the median, 0.05 s: index 4711; the trainer waits" in text
    assert "loader 2 died" in text
    assert "<b>75.0%</b><span>of the samples were in the cache" in text
    assert "3 damaged samples in the cache" in text
    assert "train.h5:data[4711]" in text
    assert "<th>sample</th><th>time</th><th>beside others</th><th>where it lies</th>" in text
    assert 'alt="sample 4711" src="data:image/png;base64,' in text
    markup = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert re.findall(r"""(?:src|href)=["'](?!data:)""", markup) == []


def test_names_that_are_no_utf_8_are_escaped(tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="the report needs plotly")
    name = os.fsdecode(b"caf\xe9")
    for suffix, content in {"json": json.dumps(trace()), "log": "iteration 1/3: loss 0.5\n"}.items():
        (tmp_path / f"{name}.{suffix}").write_text(content)
    (tmp_path / f"{name}.png").write_bytes(encoded(picture(8, 8), ".png"))
    (tmp_path / "list.txt").write_bytes(b"caf\xe9.png 0\n" * 9)
    files = [tmp_path / f"{name}.{suffix}" for suffix in ("json", "log")]
    output_of("report", *files, "--out", tmp_path / "report.html", "--source", tmp_path / "list.txt")
    assert "list.txt line 5: " in (page := (tmp_path / "report.html").read_text())
    assert r"caf\udce9.png" in page


def test_the_page_does_not_take_the_place_of_a_trace_and_a_missing_file_is_named(tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="the report needs plotly")
    (tmp_path / "run.json").write_text(json.dumps(trace()))
    said = run("report", tmp_path / "run.json", "--out", tmp_path / "run.json").stderr
    assert "run.json is one of the files that the page is made of: name another file" in said
    assert json.loads((tmp_path / "run.json").read_text()) == trace()
    (tmp_path / "run.csv").write_text(log := "iteration,loss\n1,2\n")
    said = run("report", tmp_path / "run.json", "--out", tmp_path / "run.csv").stderr
    assert "run.csv: the page is HTML: name a file that ends in .html" in said
    assert (tmp_path / "run.csv").read_text() == log
    assert "there is no file 'none'; name a trace" in error_of("report", "none")


def test_a_page_is_made_of_what_a_killed_run_has_left(tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="the report needs plotly")
    np.save(tmp_path / "x.npy", np.zeros((64, 4)))
    source = {"npy": {"data": str(tmp_path / "x.npy")}}
    with BatchReader(source, batch_size=8, epochs=1, num_loaders=1, trace=str(tmp_path / "run.json")) as reader:
        assert len(list(reader)) == 8
        left = (tmp_path / "run.json").read_bytes()
        output_of("report", tmp_path / "run.json", "--out", tmp_path / "so_far.html")
        assert "The run goes on" in (tmp_path / "so_far.html").read_text()
    (tmp_path / "killed.json").write_bytes(left)
    output_of("report", tmp_path / "killed.json", "--out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<h1>killed.json</h1>" in page
    assert "The run goes on" not in page


@pytest.mark.slow
def test_a_browser_shows_it_without_an_error(page: Path, tmp_path: Path) -> None:
    for name, size in WIDTHS.items():
        picture = tmp_path / f"{name}.png"
        assert console_of(page, tmp_path, size, picture, dark=name == "tablet") == ""
        assert picture.stat().st_size > 10_000
