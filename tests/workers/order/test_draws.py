"""What a sampler draws: the sample can be read back, and copies of it are told apart."""

from __future__ import annotations

from collections import Counter

import numpy as np
from blobfeed.workers.order.draws import MOST_SAMPLES, draws_of, samples_in
from hypothesis import example, given
from hypothesis import strategies as st


@given(st.lists(st.integers(0, 9) | st.integers(0, MOST_SAMPLES - 1), max_size=50))
@example([])
def test_a_draw_says_its_sample_and_how_often_that_came_before(indices: list[int]) -> None:
    draws = draws_of(np.array(indices, np.int64))
    assert samples_in(draws).tolist() == indices
    seen: Counter[int] = Counter()
    for draw, index in zip(draws.tolist(), indices, strict=True):
        assert draw == index + seen[index] * MOST_SAMPLES
        seen[index] += 1


def test_a_sample_that_comes_too_often_to_be_counted_is_still_that_sample() -> None:
    draws = draws_of(np.full(40_000, MOST_SAMPLES - 1))
    assert (samples_in(draws) == MOST_SAMPLES - 1).all()
    assert len(np.unique(draws)) == 2**15
