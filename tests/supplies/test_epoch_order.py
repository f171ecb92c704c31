"""Epoch orders: every sample once in each epoch, as a function of seed and position, however it is asked for."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest
from blobfeed.supplies import BLOCK, EpochOrder, Shuffle, computed, make_order
from blobfeed.workers.order import Permutation, keyed_permutation
from hypothesis import given
from hypothesis import strategies as st

from tests.support.part import examples

SHUFFLES = st.sampled_from((False, True, "chunk"))


def _order(samples: int, shuffle: Shuffle, seed: int = 3) -> EpochOrder:
    return make_order(samples, shuffle=shuffle, seed=seed, chunk_samples=7, window_chunks=3)


@examples(80)
@given(
    samples=st.one_of(st.integers(1, 60), st.integers(BLOCK - 50, BLOCK + 50)),
    shuffle=SHUFFLES,
    seed=st.integers(0, 2**70),
    epoch=st.integers(0, 10**6),
)
def test_every_sample_comes_once_in_each_epoch(samples: int, shuffle: Shuffle, seed: int, epoch: int) -> None:
    epochs = _order(samples, shuffle, seed).indices(epoch * samples, 3 * samples).reshape(3, samples)
    assert np.array_equal(np.sort(epochs, axis=1), np.tile(np.arange(samples), (3, 1)))


@examples(60)
@given(samples=st.integers(1, 60), shuffle=SHUFFLES, epoch=st.integers(0, 3), data=st.data())
def test_a_run_names_the_samples_of_its_epoch_from_its_position_on(
    samples: int, shuffle: Shuffle, epoch: int, data: st.DataObject
) -> None:
    item = data.draw(st.integers(0, samples - 1))
    count = data.draw(st.integers(1, samples - item))
    order = _order(samples, shuffle)
    indices, epochs, own = order.samples_of(order.run(3, epoch, item, count))
    assert indices.tolist() == own.tolist() == order.indices(epoch * samples, samples)[item : item + count].tolist()
    assert set(epochs.tolist()) == {epoch}


@given(
    samples=st.one_of(st.integers(1, 60), st.integers(BLOCK - 50, BLOCK + 50), st.just(10**9)),
    shuffle=SHUFFLES,
    asked=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 300)), min_size=1, max_size=6),
)
def test_the_answer_does_not_depend_on_what_was_asked_before(
    samples: int, shuffle: Shuffle, asked: list[tuple[int, int]]
) -> None:
    whole = _order(samples, shuffle).indices(0, 10_300)
    order = _order(samples, shuffle)
    for start, count in asked:
        assert np.array_equal(order.indices(start, count), whole[start : start + count])
        order = pickle.loads(pickle.dumps(order))


def test_an_epoch_s_permutation_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(n: int, key: int) -> Permutation:
        made.append(key)
        return keyed_permutation(n, key)

    monkeypatch.setattr(computed, "keyed_permutation", counted)
    order = _order(4 * BLOCK, True)
    for position in range(0, 12 * BLOCK, BLOCK // 2):
        order.indices(position, 10)
    assert len(made) == len(set(made)) == 3


def test_what_is_handed_out_is_the_caller_s_own() -> None:
    for shuffle in (False, True, "chunk"):
        order = _order(100, shuffle)
        first = order.indices(0, 10)
        kept = first.copy()
        first[:] = -1
        assert np.array_equal(order.indices(0, 10), kept)


@pytest.mark.parametrize("samples", [50, 20_000])
@pytest.mark.parametrize("shuffle", [True, "chunk"])
def test_epochs_and_seeds_have_orders_of_their_own(samples: int, shuffle: Shuffle) -> None:
    epochs = [_order(samples, shuffle, seed).indices(epoch * samples, 50) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 4


def test_sequential_is_sequential_across_epochs() -> None:
    assert _order(5, False).indices(3, 9).tolist() == [3, 4, 0, 1, 2, 3, 4, 0, 1]


@pytest.mark.parametrize("shuffle", [False, True, "chunk"])
def test_memory_does_not_grow_with_the_samples(shuffle: Shuffle) -> None:
    def peak(samples: int) -> int:
        tracemalloc.start()
        order = _order(samples, shuffle)
        for position in (0, samples // 2, 10**15):
            order.indices(position, 256)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert peak(10**12) < 2 * peak(10**5) < 4 * 2**20


def test_a_pickled_order_is_small_even_after_use() -> None:
    for shuffle in (False, True, "chunk"):
        order = _order(10**6, shuffle)
        order.indices(0, 5000)
        assert len(pickle.dumps(order)) < 1000


def test_a_source_without_chunks_can_be_shuffled_by_chunk_too() -> None:
    order = make_order(1000, shuffle="chunk", seed=0, chunk_samples=None, window_chunks=2)
    assert sorted(order.indices(0, 1000).tolist()) == list(range(1000))
    assert order.window_at(500) is None  # any loader may read any sample: none is decoded with its neighbours


def test_only_chunked_orders_have_windows() -> None:
    assert [_order(100, shuffle).window_at(99) for shuffle in (False, True, "chunk")] == [None, None, 4]
