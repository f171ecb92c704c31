"""The trainer keeps its limits while setup tries user code in it; tests/readers/test_own_code.py has a hook do it."""

from __future__ import annotations

import resource

import pytest
from blobfeed.readers.opening.limits import limits_kept

from blobfeed import ParameterError

FILES = resource.RLIMIT_NOFILE


def test_a_hard_limit_that_cannot_be_put_back_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Played: the superuser may put all limits back."""
    limits = dict.fromkeys(range(32), (100, 100))

    def lower(number: int, new: tuple[int, int]) -> None:
        if new[1] > limits[number][1]:
            raise ValueError("not allowed to raise maximum limit")
        limits[number] = new

    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", lower)
    with limits_kept():
        lower(FILES, (16, 100))
    assert limits[FILES] == (100, 100)
    with pytest.raises(ParameterError, match=r"RLIMIT_NOFILE .*\(100, 100\).*\(16, 16\)"):  # noqa: SIM117
        with limits_kept():
            lower(FILES, (16, 16))
