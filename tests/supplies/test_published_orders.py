"""Orders of all sizes at which the way of computing them changes: later versions must go on from a saved state."""

from __future__ import annotations

import hashlib

import pytest
from blobfeed.supplies import ChunkOrder, EpochOrder, MixedOrder, ShuffledOrder, chunk_order, computed, mixed_order


def _digest(order: EpochOrder, start: int, count: int) -> str:
    return hashlib.blake2b(order.indices(max(0, start), count).astype("<i8").tobytes(), digest_size=6).hexdigest()


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (2, "c28b4383c472"),
        (97, "9fe3ce17640b"),
        (8191, "ec3fd6400449"),
        (8192, "7a87b8ab0d3b"),
        (8193, "872a55314196"),
        (8194, "57a6517768d8"),
        (9999, "c73105069d7f"),
        (10000, "7f8e7f5d784a"),
        (10001, "4125fc4567bf"),
        (16383, "603b0dd40630"),
        (16384, "1a0c2f037b80"),
        (16385, "09e1afd5eecb"),
        (1000000000000, "56795ca8e044"),
    ],
)
def test_a_shuffled_order_once_published_stays(samples: int, expected: str) -> None:
    assert _digest(ShuffledOrder(samples, 5), 2 * samples - 3000, 6000) == expected


@pytest.mark.parametrize(
    ("samples", "chunk", "window", "expected"),
    [
        (50, 7, 3, "21f2897618ab"),
        (1000, 10, 7, "34c694c423e1"),
        (20000, 64, 128, "567cd6ee004a"),
        (16384, 64, 128, "d29de3984fba"),
        (16256, 64, 127, "03f00aa8ca61"),
        (30000, 4096, 1, "0530f3ef0832"),
        (30000, 4096, 2, "71650e333630"),
        (30000, 8192, 1, "5bde60e218e7"),
        (30000, 8193, 1, "4aa28f2e6501"),
        (30000, 2730, 2, "ae6601a9e9bc"),
        (30000, 2731, 2, "903c69053bff"),
        (1000000000, 1000, 16, "9f996f5cd752"),
    ],
)
def test_a_chunked_order_once_published_stays(samples: int, chunk: int, window: int, expected: str) -> None:
    assert _digest(ChunkOrder(samples, 5, chunk, window), 2 * samples - 12000, 24000) == expected


def test_how_many_positions_are_computed_together_changes_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def digests() -> list[str]:
        exact = MixedOrder([5000, 3000], [0.7, 0.3], shuffle=True, seed=5)
        rounded = MixedOrder([5000, 3000, 2000], [1.37, 2.91, 3.3331], shuffle=True, seed=5)
        orders = (ShuffledOrder(20_000, 5), ChunkOrder(20_000, 5, 64, 16), exact, rounded)
        return [_digest(order, 0, 40_000) for order in orders]

    expected = digests()
    for module in (computed, chunk_order, mixed_order):
        monkeypatch.setattr(module, "BLOCK", 500)
    assert digests() == expected
