"""The decoded cache is right whatever its files hold: what was damaged is made anew, said and counted."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.sources.cache import CachedSource

from blobfeed import BatchReader, ParameterError
from tests.sources.cache.numbers import (
    LIMIT,
    SAMPLES,
    Numbers,
    check,
    check_lent,
    database,
    everything,
    filled,
    names_in,
)

FIXED, VARYING = ("data", "label"), ("label", "words")
DATA_BYTES, SUM_BYTES, SHAPE_BYTES, LABEL_BYTES = 120, 8, 8, 8


def _flip(path: Path, sample: bytes, offset: int = 0) -> None:
    """Flip a bit at `offset` from where the bytes of `sample` lie."""
    content = bytearray(database(path).read_bytes())
    assert content.count(sample) == 1
    content[content.find(sample) + offset] ^= 4
    database(path).write_bytes(content)


@pytest.mark.parametrize(
    ("names", "array", "offset"),
    [
        (FIXED, "data", 0),
        (FIXED, "data", DATA_BYTES),  # the label
        (FIXED, "data", -SUM_BYTES),
        (VARYING, "words", 0),
        (VARYING, "words", -LABEL_BYTES - SHAPE_BYTES),
    ],
    ids=["row", "label", "checksum", "varying", "shape"],
)
def test_a_flipped_bit_costs_one_read_and_no_sample(
    names: tuple[str, ...], array: str, offset: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cache"
    filled(path, Numbers(names))
    _flip(path, Numbers(names).sample(array, 33).tobytes(), offset)
    inner = Numbers(names)
    with closing(CachedSource(inner, path, LIMIT)) as source:
        with caplog.at_level(logging.WARNING):
            assert source.lend(np.array([5, 33])) is None
            check_lent(source, inner, [5, 34])
            check(source, inner, everything)
        assert inner.reads.tolist() == [int(index == 33) for index in everything]
        assert source.cache_counts == (SAMPLES + 1, 1, 1)
        assert "sample 33" in caplog.text
        check(source, inner, everything)
        check_lent(source, inner, [5, 33])
        assert inner.reads.sum() == 1


def test_samples_that_changed_places_are_not_taken_for_each_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, inner = tmp_path / "cache", Numbers()
    filled(path, Numbers())
    content, size = database(path).read_bytes(), SUM_BYTES + DATA_BYTES + LABEL_BYTES
    places = [content.find(inner.sample("data", index).tobytes()) - SUM_BYTES for index in (7, 8)]
    one, other = (content[place : place + size] for place in places)
    database(path).write_bytes(content.replace(one, b"?" * size).replace(other, one).replace(b"?" * size, other))
    with closing(CachedSource(inner, path, LIMIT)) as source:
        check(source, inner, everything)
        assert source.cache_counts.damaged == 2
        assert ["sample 7 " in record.getMessage() for record in caplog.records] == [True]  # the first, and no other


@pytest.mark.parametrize("transform", [{}, {"crop_size": 2}], ids=["copied", "lent"])
def test_a_run_counts_the_damaged_samples_and_delivers_all(transform: dict[str, int], tmp_path: Path) -> None:
    path, inner = tmp_path / "cache", Numbers()
    filled(path, inner)
    for index in (0, 33, 41, 42):  # the first of them is met in setup
        _flip(path, inner.sample("data", index).tobytes())
    cache = {"path": "cache", "size_limit": LIMIT}
    with BatchReader(
        Numbers(),
        batch_size=20,
        epochs=1,
        num_loaders=1,
        transform=transform,
        cache=cache,
        base_dir=tmp_path,
        train=False,
    ) as reader:
        data = np.concatenate([batch["data"] for batch in reader])
        counted = reader.statistics()
        assert counted.cache_hits >= SAMPLES - 4  # loaders work ahead
        assert counted.damaged_in_cache == 4
        assert sum(reader.statistics().damaged_in_cache for _ in reader) == 12  # they were mended
    corner = (slice(0, 2), slice(1, 3)) if transform else ()
    np.testing.assert_array_equal(data, [inner.sample("data", index)[:, *corner] for index in range(SAMPLES)])
    assert reader.statistics().damaged_in_cache == 4


# ---- what lay there before


@pytest.mark.parametrize(
    "change",
    [
        lambda content: b"",
        lambda content: content[:-4096],
        lambda content: content[:3000],
        lambda content: b"text" * 5000,
        lambda content: content[:8192] + bytes(len(content) - 8192),
        lambda content: content.replace(b"\xde\xc0\xef\xbe", b"\xde\xc0\xef\xbf"),
    ],
    ids=["empty", "short", "header only", "text", "pages that never reached the disk", "other signature"],
)
def test_a_damaged_database_is_noticed_and_made_anew(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "cache"
    filled(path, Numbers())
    database(path).write_bytes(change(database(path).read_bytes()))
    for _ in range(2):  # it may be noticed by the run that reads it
        filled(path, Numbers())
    with closing(CachedSource(Numbers(), path, LIMIT)) as source:
        assert source.cached_samples == SAMPLES


@pytest.mark.parametrize(
    "options",
    [{"version": 1}, {"samples": SAMPLES + 1}, {"names": ("label", "data")}, {"names": ("words",)}],
    ids=["content", "length", "order", "shape"],
)
def test_a_cache_of_other_samples_is_replaced_and_whoever_uses_it_keeps_it(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    path = tmp_path / "cache"
    inner, other = Numbers(), Numbers(**options)
    with closing(CachedSource(inner, path, LIMIT)) as first:
        check(first, inner, everything)
        with closing(CachedSource(other, path, LIMIT)) as second:
            check(second, other, everything)
            check(first, inner, everything)
        assert set(other.reads[:SAMPLES]) == {1}
    assert set(inner.reads) == {1}
    assert len(names_in(path)) == 1, "nothing lies beside it"


def test_a_loader_that_finds_other_samples_goes_on_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    inner = Numbers()
    made = pickle.dumps(CachedSource(inner, tmp_path / "cache", LIMIT))
    filled(tmp_path / "cache", Numbers(version=1))
    with closing(pickle.loads(made)) as source:
        check(source, inner, everything)
        check(source, inner, everything)
        source.will_need(np.array([1]))
        assert source.cached_samples == 0
    assert caplog.text.count("another run has replaced it") == 1


def test_what_is_no_cache_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "train.h5"
    path.write_bytes(b"\x89HDF\r\n\x1a\n precious")
    with pytest.raises(ParameterError):
        CachedSource(Numbers(), path, LIMIT)
    filled(tmp_path, Numbers())
    filled(tmp_path, Numbers(version=1))
    assert path.read_bytes().endswith(b"precious")
    assert len(names_in(tmp_path)) == 2
