"""The decoded cache is right whatever its file held before."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.workers.base.errors import ParameterError
from blobfeed.workers.sources.cache.layout import STATES_AT
from blobfeed.workers.sources.cache.source import CachedSource

from tests.workers.sources.cache.numbers import LIMIT, SAMPLES, Numbers, check, everything, filled, names_in


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
    with pytest.raises(ParameterError, match=r"train\.h5 is a file, but no sample cache: it is left alone"):
        CachedSource(Numbers(), path, LIMIT)
    assert path.read_bytes().endswith(b"precious")
