"""Batches on their way to two devices that are really asynchronous, with delays of any kind."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from tests.support.async_device import deliver_batches
from tests.support.forks import Forks, forks_with

_DELAYS = st.lists(st.sampled_from([0.0, 0.0001, 0.001, 0.003]), min_size=1, max_size=6)


@settings(max_examples=15, deadline=None)
@given(delays=_DELAYS, work=_DELAYS, seed=st.integers(0, 1000), buffers=st.integers(1, 3))
def test_no_byte_is_wrong_whatever_the_delays(
    delays: Sequence[float], work: Sequence[float], seed: int, buffers: int
) -> None:
    assert deliver_batches(24, delays, work, seed, buffers) == []


@pytest.mark.slow
@pytest.mark.parametrize("buffers", [1, 3])
def test_no_byte_is_wrong_in_25_000_batches(buffers: int) -> None:
    delays = [0.0] * 30 + [0.0002, 0.001]
    assert deliver_batches(25_000, delays, delays, 0, buffers) == []


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with forks_with("tests.support.async_device") as forks:
        yield forks


@pytest.mark.parametrize("mistake", ["send_after", "use_after", "synchronize", "close"])
def test_a_step_that_is_left_out_is_found(forks: Forks, tmp_path: Path, mistake: str) -> None:
    (tmp_path / "device.py").write_text("from tests.support.async_device import main; main()")
    ended, _, errors = forks.run(tmp_path, tmp_path / "device.py", mistake)
    assert ended == -signal.SIGSEGV or "a batch of" in errors, errors
