"""The table of a first run on a GPU: its code on a played card, its arithmetic, and its reason where there is none."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from benchmarks import delivery, delivery_cuda  # noqa: E402
from benchmarks.delivery_cuda import Card, Spans, cuda_report, hidden_share, profiled, spans_of  # noqa: E402
from benchmarks.still_pipeline import Shape  # noqa: E402
from tests.support.played_card import PlayedCard  # noqa: E402

_SHAPE = Shape(2, (3, 64, 64))
_SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)).map(lambda span: (span[0], span[0] + span[1])))


def _cells(report: str) -> dict[str, list[str]]:
    rows = [line.strip("| ").split(" | ") for line in report.splitlines() if line.startswith("|")]
    return {name: cells for name, *cells in rows}


def _figures(cells: list[str]) -> list[float]:
    return [float(re.match(r"-?[\d.]+", cell)[0]) for cell in cells if cell[:1] not in "–≥≤"]  # type: ignore[index]


def test_the_table_is_measured_on_a_played_card() -> None:
    with PlayedCard(copy_s=0.001) as card, card.kernels:
        report = cuda_report(_SHAPE, card, steps=5)
    assert card.played.wrong == []
    assert report.startswith("a played card, torch ")
    cells = _cells(report)
    assert {len(row) for row in cells.values()} == {4}
    counts = {name: len(_figures(row[:3])) for name, row in cells.items() if name not in ("CUDA", "---")}
    assert list(counts.values()) == [2, 3, 2, 1, 3, 2, 2, 2]
    staged, ring = _figures(cells["a step without a delivery"])
    assert min(staged, ring) >= 2 * 3 * 1.0  # ms: two copies of three pieces
    assert min(_figures(cells["copies beside kernels, by the profiler"][:2])) > 20


def test_a_ring_that_cannot_be_locked_is_said_in_the_table() -> None:
    with PlayedCard(copy_s=0.0, locks=False) as card, card.kernels:
        report = cuda_report(_SHAPE, card, steps=2)
    assert _cells(report)["page-locking, for 1 GB"][2] == "refused: staged"


def test_the_profilers_own_trace_is_read() -> None:
    assert profiled(lambda: torch.ones(3).sum(), lambda: None) == Spans([], [])
    assert hidden_share(Spans([], [(0, 1)])) is None
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "ts": 10.0, "dur": 4.0},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pinned)", "ts": 1.0, "dur": 2.0},
        {"ph": "X", "cat": "kernel", "name": "spin_kernel(long)", "ts": 11.0, "dur": 9.0},
        {"ph": "X", "cat": "cpu_op", "name": "aten::copy_", "ts": 0.0, "dur": 90.0},
        {"ph": "M", "name": "process_name"},
    ]
    assert spans_of(events) == Spans([(10.0, 14.0)], [(11.0, 20.0)])
    assert hidden_share(spans_of(events)) == 0.75


@given(copies=_SPANS, kernels=_SPANS)
def test_the_hidden_share_counts_each_moment_once(copies: list[Any], kernels: list[Any]) -> None:
    moments = [moment for begin, end in copies for moment in range(begin, end)]
    under = [any(begin <= moment < end for begin, end in kernels) for moment in moments]
    expected = sum(under) / len(under) if under else None
    assert hidden_share(Spans(copies, kernels)) == pytest.approx(expected)


def test_the_card_asks_torch_for_a_kernel_of_the_seconds_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[int] = []
    event = SimpleNamespace(record=lambda: None, elapsed_time=lambda _: 5.0)  # ms for the trial
    stream = SimpleNamespace(synchronize=lambda: slept.append(-1))
    played = {
        "current_device": lambda: 1,
        "get_device_name": lambda device: f"the card at {device}",
        "Event": lambda enable_timing: event,
        "_sleep": slept.append,
        "synchronize": lambda device: None,
        "current_stream": lambda device: stream,
    }
    for name, value in played.items():
        monkeypatch.setattr(torch.cuda, name, value)
    card = Card()
    assert (card.name, str(card.device)) == ("the card at cuda:1", "cuda:1")
    slept.clear()
    card.compute(0.02)
    card.wait_for_step()
    assert slept == [40_000_000, -1]
    assert card.traced(lambda: card.compute(0.001)) == Spans([], [])


def test_the_reason_for_no_table_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(delivery, "host_rows", lambda *_: [])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for built_for, reason in [(None, "is built without CUDA"), ("12.8", "built for CUDA 12.8, finds no device")]:
        monkeypatch.setattr(torch.version, "cuda", built_for)
        delivery.main(["--rows", "1", "--seconds", "0"])
        assert f"CUDA: not measured, torch {torch.__version__}" in (printed := capsys.readouterr().out)
        assert reason in printed


def test_the_table_is_printed_where_there_is_a_card(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(delivery, "host_rows", lambda *_: [])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(delivery_cuda, "cuda_report", lambda shape, card: f"the table of {card} with {shape.rows} rows")
    monkeypatch.setattr(delivery_cuda, "Card", lambda: "a card")
    delivery.main(["--rows", "3", "--seconds", "0"])
    assert "the table of a card with 3 rows" in capsys.readouterr().out


@pytest.mark.cuda
def test_the_table_is_measured_on_a_gpu() -> None:
    cells = _cells(cuda_report(Shape(8, (3, 64, 64)), Card(), steps=5))
    assert all(0 <= share <= 100 for share in _figures(cells["copies beside kernels, by the profiler"][:3]))
