"""The decoded cache and a disk, or a limit, that is too small."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from blobfeed.workers.sources.cache import PAGE_BYTES, CachedSource, lay_out

from blobfeed import ParameterError, SourceError
from tests.workers.sources.cache.numbers import LIMIT, SAMPLES, Numbers, check, everything


def test_a_limit_that_is_too_small_is_refused_with_the_need(tmp_path: Path) -> None:
    need = lay_out(Numbers().specs, SAMPLES, "").size
    with pytest.raises(ParameterError):
        CachedSource(Numbers(), tmp_path / "cache", 100)
    assert not any(tmp_path.iterdir())
    CachedSource(Numbers(), tmp_path / "cache", need).close()


@pytest.mark.parametrize("names", [("data",), ("words",)])
def test_a_disk_that_is_too_small_is_refused_with_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    class Usage:
        free = 1_000

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    with pytest.raises(SourceError):
        CachedSource(Numbers(names), tmp_path / "cache", LIMIT)
    assert not any(tmp_path.iterdir())


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """The kernel refuses to make a file longer, much as a full disk does: the signal that goes with it is ignored."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_the_disk_is_taken_up_front_where_the_need_is_known(tmp_path: Path) -> None:
    with closing(CachedSource(Numbers(samples=10_000), tmp_path / "cache", LIMIT)):
        status = (tmp_path / "cache").stat()
        assert status.st_blocks * 512 >= status.st_size > 10_000 * 120


def test_a_file_that_cannot_be_allocated_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with no_file_larger_than(5_000), pytest.raises(SourceError):
        CachedSource(Numbers(), tmp_path / "cache", LIMIT)
    assert not any(tmp_path.iterdir())


def test_samples_beyond_the_limit_are_read_each_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    inner = Numbers(("words",))
    limit = lay_out(inner.specs, SAMPLES, "").sparse_at + 10 * PAGE_BYTES
    with closing(CachedSource(inner, tmp_path / "cache", limit)) as source:
        for _ in range(3):
            check(source, inner, everything)
        held = source.cached_samples
        assert 5 <= held <= 11
        assert (inner.reads == 1).sum() == held
        assert (inner.reads == 3).sum() == SAMPLES - held
        assert (tmp_path / "cache").stat().st_blocks * 512 <= limit + 2 * PAGE_BYTES
    assert caplog.text.count("takes no more samples") == 1
    assert f"it holds {held} of 60: size_limit of" in caplog.text


def test_a_disk_that_fills_up_later_costs_no_sample(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    inner = Numbers(("words",))
    with closing(CachedSource(inner, tmp_path / "cache", LIMIT)) as source:
        check(source, inner, everything[:10])
        with no_file_larger_than(lay_out(inner.specs, SAMPLES, "").sparse_at):
            check(source, inner, everything)
        check(source, inner, everything)
        assert source.cached_samples == 10
    assert "takes no more samples, it holds 10 of 60: File too large" in caplog.text
