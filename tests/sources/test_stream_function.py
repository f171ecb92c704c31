"""The parts of a stream: the function that makes it, and the buffer that shuffles it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from blobfeed.sources.stream import shuffled
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import BatchReader, ParameterError, StreamSource
from tests.support.part import examples
from tests.support.uniformity import deviation


def _whole_epoch(epoch: int) -> Iterator[int]:
    return iter(range(100 * epoch, 100 * epoch + 7))


def _shares(shard: int, num_shards: int, *, epoch: int) -> Iterator[int]:
    return iter(range(100 * epoch + shard, 100 * epoch + 7, num_shards))


def _plain() -> list[int]:
    return [0, 1, 2]


def _numbers(make: Any, **options: Any) -> list[list[int]]:
    chosen: dict[str, Any] = {"batch_size": 3, "num_loaders": 0, "epochs": 2, **options}
    with BatchReader(StreamSource(make, names=["data"]), **chosen) as reader:
        return [batch["data"].tolist() for batch in reader]


def test_a_function_that_takes_no_shard_is_one_shard_and_may_take_the_epoch() -> None:
    assert _numbers(_plain, last_batch="partial") == [[0, 1, 2]] * 2
    got = _numbers(_whole_epoch, last_batch="partial")
    assert got == [[0, 1, 2], [3, 4, 5], [6], [100, 101, 102], [103, 104, 105], [106]]


def test_the_epoch_may_stand_anywhere() -> None:
    functions: list[Any] = [
        lambda epoch, shard, num_shards: _shares(shard, num_shards, epoch=epoch),
        lambda shard, epoch, num_shards: _shares(shard, num_shards, epoch=epoch),
        lambda shard, num_shards, step=1, epoch=0: _shares(shard, num_shards, epoch=epoch),
        lambda epoch, /, *share: _shares(*share, epoch=epoch),
        lambda epoch=0, shard=0, num_shards=1: _shares(shard, num_shards, epoch=epoch),
    ]
    for make in functions:
        source = StreamSource(make, shards=2)
        assert list(source.open(1, 2, 3)) == [301, 303, 305]


def xyz() -> Iterator[dict[str, float]]:
    return ({"x": float(n), "y": n + 0.25, "z": n + 0.5} for n in range(4))


def pairs() -> Iterator[tuple[float, int]]:
    return ((n + 0.5, n) for n in range(4))


def made_of(source: Any, **given: Any) -> dict[str, list[float]]:
    with BatchReader(source, batch_size=4, epochs=1, num_loaders=0, **given) as reader:
        return {name: values.tolist() for name, values in next(iter(reader)).items()}


@pytest.mark.parametrize(
    "source",
    [
        lambda: StreamSource(xyz),
        lambda: {"stream": {"make": f"{__name__}:xyz"}},
        lambda: {"stream": {"make": xyz}},
        lambda: {"stream": {"make": xyz, "shards": 1}},
    ],
)
def test_tops_and_fields_choose_among_what_a_stream_gives(source: Any) -> None:
    z, y = [0.5, 1.5, 2.5, 3.5], [0.25, 1.25, 2.25, 3.25]
    assert made_of(source(), tops=["z", "y"]) == {"z": z, "y": y}
    assert made_of(source(), fields=["z"]) == {"z": z}
    assert made_of(source(), tops=["y"], decode=lambda sample, _: {"y": sample["x"] + sample["y"]})["y"][1] == 2.25
    for wrong in ({"tops": ["zz"]}, {"fields": ["zz"], "tops": ["a"], "decode": lambda sample, _: sample["x"]}):
        with pytest.raises(ParameterError, match="zz"):
            made_of(source(), **wrong)


def test_with_a_hook_the_tops_of_a_declared_stream_are_what_the_hook_makes() -> None:
    tops = {"tops": ["data", "label"], "decode": lambda sample, _: (sample["x"], sample["z"])}
    assert made_of({"stream": {"make": f"{__name__}:xyz"}}, **tops)["label"][0] == 0.5
    swapped = {"tops": ["label", "data"], "decode": lambda sample, _: dict(sample)}
    assert made_of({"stream": {"make": f"{__name__}:pairs"}}, **swapped)["data"] == [0.5, 1.5, 2.5, 3.5]


def test_a_declared_streams_tuple_is_named_by_the_tops() -> None:
    source = {"stream": {"make": f"{__name__}:pairs"}}
    assert made_of(source, tops=["a", "b"])["b"] == [0, 1, 2, 3]
    with pytest.raises(ParameterError, match=r"\b2 .*\b3 .*a, b, c"):
        made_of(source, tops=["a", "b", "c"])


def test_only_the_components_that_are_named_count() -> None:
    texts = [{"id": 1, "text": "x" * 1000}, {"id": 2, "text": None, "more": 3}, {"more": 4, "id": 5}, {"id": 7}]
    assert made_of(StreamSource(texts, names=["id"])) == {"id": [1, 2, 5, 7]}
    firsts = [{"id": 1}, {"id": 2, "more": 3}, {"id": 3}, {"id": 4}]
    assert made_of(StreamSource(firsts, names=["id"])) == {"id": [1, 2, 3, 4]}
    assert made_of(StreamSource([{0: number, 1: 5} for number in range(4)])) == {"0": [0, 1, 2, 3], "1": [5, 5, 5, 5]}


# ---- the shuffle buffer


@examples(100)
@given(capacity=st.integers(1, 20), seed=st.integers(0, 2**40), count=st.integers(0, 100))
def test_a_stream_passes_whole_and_in_the_seed_s_order(capacity: int, seed: int, count: int) -> None:
    first = list(shuffled(range(count), capacity, seed))
    assert sorted(first) == list(range(count))
    assert first == list(shuffled(iter(range(count)), capacity, seed))


def test_a_stream_is_read_no_further_ahead_than_the_capacity() -> None:
    read = 0

    def stream() -> Iterator[int]:
        nonlocal read
        for item in range(1000):
            read += 1
            yield item

    for taken, item in enumerate(shuffled(stream(), 50, 0), start=1):
        assert item < taken + 50
        assert read <= taken + 49


def test_each_held_element_is_equally_likely() -> None:
    places: Counter[int] = Counter()
    for seed in range(3000):
        _, second, *_ = shuffled(range(11), 10, seed)
        places[second] += 1
    # 10 has just come; each of the others has left first once in ten times.
    assert deviation([places[item] for item in range(10)]) < 4
    assert abs(places[10] - 300) < 4 * 300**0.5


def test_the_order_of_a_full_drain_is_uniform() -> None:
    orders = Counter(tuple(shuffled(range(4), 4, seed)) for seed in range(2400))
    assert len(orders) == 24
    assert deviation(list(orders.values())) < 4


def test_an_order_once_published_stays() -> None:
    assert list(shuffled(range(12), 5, seed=1)) == [0, 3, 1, 7, 8, 9, 6, 11, 10, 4, 2, 5]
