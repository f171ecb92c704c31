"""The decoded cache is right whatever its file holds: what was damaged is made anew, said and counted."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.workers.sources.cache import STATES_AT, CachedSource, Layout, lay_out

from blobfeed import BatchReader, ParameterError
from tests.workers.sources.cache.numbers import LIMIT, SAMPLES, Numbers, check, check_lent, everything, filled, names_in

FIXED, VARYING = ("data", "label"), ("label", "words")


def _layout(inner: Numbers) -> Layout:
    return lay_out(inner.specs, SAMPLES, inner.fingerprint())


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 4]))


def _swap(path: Path, first: int, second: int, size: int) -> None:
    content = bytearray(path.read_bytes())
    content[first : first + size], content[second : second + size] = (
        content[second : second + size],
        content[first : first + size],
    )
    with path.open("r+b") as file:
        file.write(content)


@pytest.mark.parametrize(
    ("names", "region", "part"),
    [
        (FIXED, "data", "row"),
        (FIXED, "label", "row"),
        (FIXED, "data", "checksum"),
        (VARYING, "words", "row"),
        (VARYING, "words", "shape"),
    ],
)
def test_a_flipped_bit_costs_one_read_and_no_sample(
    names: tuple[str, ...], region: str, part: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cache"
    filled(path, Numbers(names))
    layout = _layout(Numbers(names))
    place = layout.regions[region]
    _flip(path, {"row": place.row_at(33), "shape": place.shape_at(33), "checksum": layout.sums_at + 33 * 8}[part])
    inner = Numbers(names)
    with closing(CachedSource(inner, path, LIMIT)) as source:
        assert source.lend(np.array([5, 33])) is None
        check_lent(source, inner, [5, 34])
        with caplog.at_level(logging.WARNING):
            check(source, inner, everything)
        assert inner.reads.tolist() == [int(index == 33) for index in everything]
        assert source.cache_counts.damaged == 1
        assert "sample 33" in caplog.text
        check(source, inner, everything)
        check_lent(source, inner, [5, 33])
        assert inner.reads.sum() == 1


@pytest.mark.parametrize("names", [FIXED, VARYING, ("label",)])
def test_what_a_power_failure_kept_from_the_disk_is_made_anew(names: tuple[str, ...], tmp_path: Path) -> None:
    path, inner = tmp_path / "cache", Numbers(names)
    filled(path, inner)
    size, lost_from = path.stat().st_size, _layout(inner).sums_at
    os.truncate(path, lost_from)
    os.truncate(path, size)
    with closing(CachedSource(inner, path, LIMIT)) as source:
        assert source.cached_samples == SAMPLES
        check(source, inner, everything)
        assert source.cache_counts.damaged == SAMPLES
        check(source, inner, everything)
        assert source.cache_counts.damaged == SAMPLES
    assert set(inner.reads) == {2}


def test_samples_that_changed_places_are_not_taken_for_each_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cache"
    filled(path, Numbers())
    layout = _layout(Numbers())
    for region in layout.regions.values():
        _swap(path, region.row_at(7), region.row_at(8), region.stride)
    _swap(path, layout.sums_at + 7 * 8, layout.sums_at + 8 * 8, 8)
    inner = Numbers()
    with closing(CachedSource(inner, path, LIMIT)) as source:
        check(source, inner, everything)
        assert source.cache_counts.damaged == 2
        assert ["sample 7 " in record.getMessage() for record in caplog.records] == [True]  # the first, and no other


def test_a_cache_of_the_version_before_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    path.write_bytes(b"blobfeed sample cache 1\n" + bytes(5000))
    filled(path, Numbers())
    with closing(CachedSource(Numbers(), path, LIMIT)) as source:
        assert source.cached_samples == SAMPLES


@pytest.mark.parametrize("transform", [{}, {"crop_size": 2}], ids=["copied", "lent"])
def test_a_run_counts_the_damaged_samples_and_delivers_all(transform: dict[str, int], tmp_path: Path) -> None:
    path, layout, inner = tmp_path / "cache", _layout(Numbers()), Numbers()
    filled(path, inner)
    for index in (0, 33, 41, 42):  # the first of them is met in setup
        _flip(path, layout.regions["data"].row_at(index))
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
        assert counted.cache_hits >= SAMPLES  # loaders work ahead
        assert (counted.cache_misses, counted.damaged_in_cache) == (0, 4)
        assert sum(reader.statistics().damaged_in_cache for _ in reader) == 12  # they were mended
    corner = (slice(0, 2), slice(1, 3)) if transform else ()
    np.testing.assert_array_equal(data, [inner.sample("data", index)[:, *corner] for index in range(SAMPLES)])
    assert reader.statistics().damaged_in_cache == 4


# ---- what lay there before


@pytest.mark.parametrize(
    "change",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[:3000],
        lambda content: content + b"\0",
        lambda content: content[:100] + b"?" + content[101:],
        lambda content: content[: STATES_AT + 5] + b"\x07" + content[STATES_AT + 6 :],
    ],
    ids=["empty", "short", "header only", "long", "other identity", "impossible state"],
)
def test_a_damaged_file_is_noticed_and_made_anew(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "cache"
    filled(path, Numbers())
    path.write_bytes(change(path.read_bytes()))
    inner = Numbers()
    filled(path, inner)
    assert set(inner.reads) == {1}


@pytest.mark.parametrize(
    "options",
    [{"version": 1}, {"samples": SAMPLES + 1}, {"names": ("label", "data")}, {"names": ("words",)}],
    ids=["content", "length", "order", "shape"],
)
def test_a_file_of_other_samples_is_replaced_and_whoever_uses_it_keeps_it(
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
    assert names_in(tmp_path) == {"cache"}, "nothing lies beside it"


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


def test_a_file_that_is_no_cache_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "train.h5"
    path.write_bytes(b"\x89HDF\r\n\x1a\n precious")
    with pytest.raises(ParameterError):
        CachedSource(Numbers(), path, LIMIT)
    assert path.read_bytes().endswith(b"precious")
