"""Ctrl-C inside deliveries: some of the two thousand that `make faults` raises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from blobfeed.readers.delivery import HostDelivery, Upcoming

pytest.importorskip("torch")
from tests.faults import interrupts
from tests.faults.scale import QUICK


def test_interrupts_inside_deliveries_lose_no_batch_and_repeat_none(tmp_path: Path) -> None:
    *figures, total = interrupts.study(replace(QUICK, interrupts=100), tmp_path)
    assert [figure for figure in figures if not figure.holds] == []
    assert int(total.value) >= 100


def test_no_place_of_get_next_batch_loses_a_batch_to_an_interrupt(tmp_path: Path) -> None:
    found, ledger = interrupts.fetched_batches(tmp_path, 30)
    assert 3 <= found < 30
    assert ledger.lost_and_doubled == (0, 0)


def test_a_delivery_that_takes_before_it_copies_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upcoming = HostDelivery._upcoming

    def take_first(delivery: HostDelivery) -> Upcoming:
        found = upcoming(delivery)
        delivery.pipeline.release(delivery.pipeline.take())
        return found

    monkeypatch.setattr(HostDelivery, "_upcoming", take_first)
    monkeypatch.setattr(HostDelivery, "next_shapes", lambda delivery: [(4, 3, 1, 64), (4,)])
    _, ledger = interrupts._layer(interrupts._write(tmp_path, 1), 20, seed=1)
    lost, _ = ledger.lost_and_doubled
    assert lost > 0
