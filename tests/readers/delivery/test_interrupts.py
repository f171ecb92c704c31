"""Ctrl-C inside deliveries: some of those that `make faults` raises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blobfeed.readers.delivery import HostDelivery, Upcoming

pytest.importorskip("torch")
from tests.faults import interrupts
from tests.faults.scale import QUICK


def test_interrupts_inside_deliveries_lose_no_batch_and_repeat_none(tmp_path: Path) -> None:
    *figures, total = interrupts.study(replace(QUICK, interrupts=36), tmp_path)
    assert [figure for figure in figures if not figure.holds] == []
    assert int(total.value) >= 36


def test_no_place_of_get_next_batch_loses_a_batch_to_an_interrupt(tmp_path: Path) -> None:
    found, ledger = interrupts.fetched_batches(tmp_path, 30)
    assert 3 <= found < 30
    assert ledger.lost_and_doubled == (0, 0)


def test_a_step_that_ends_before_it_has_copied_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def received_first(delivery: HostDelivery, upcoming: Upcoming, blobs: list[Any]) -> None:
        batch = delivery.pipeline.take()
        delivery.before = None
        for top, blob in zip(delivery.tops, blobs, strict=True):
            top.put(batch, blob.data)
        delivery.pipeline.release(batch)

    monkeypatch.setattr(HostDelivery, "_put", received_first)
    runs = (interrupts._layer(interrupts._write(tmp_path, 1), 20, seed) for seed in range(8))
    assert any(ledger.lost_and_doubled[0] for _, ledger in runs)
