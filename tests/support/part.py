"""The part of long tests that `make test` runs: `make test-all` runs the rest, and every property in full."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

WHOLE = "whole"
"""The profile of hypothesis with all examples of a property."""


def examples(number: int, **more: Any) -> settings:
    """Return settings for so many examples in the profile `whole`, and for a quarter of them else."""
    is_whole = settings.get_current_profile_name() == WHOLE
    return settings(max_examples=number if is_whole else -(-number // 4), **more)


def some_of(cases: Iterable[Any], every: int) -> list[Any]:
    """Return the cases as parameters, of which all but one in `every` are marked slow."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else [case]), marks=pytest.mark.slow if number % every else ())
        for number, case in enumerate(cases)
    ]
