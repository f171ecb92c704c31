"""Mistakes of newcomers in readers: errors.txt has the words, in setup or with the batch that fails."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from blobfeed import BlobfeedError
from tests.support.catalogue import Catalogue

from .wrong import delivered, parameters, samples


def _use(made: Any) -> None:
    with closing(made):
        for _ in made:
            pass


ERRORS = Catalogue(
    Path(__file__).with_name("errors.txt"),
    {name: scenario for part in (parameters, samples, delivered) for name, scenario in part.SCENARIOS.items()},
    _use,
    errors=(BlobfeedError, AttributeError, KeyError, TypeError),
)


@pytest.fixture(autouse=True)
def _no_other_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.parametrize("name", ERRORS.scenarios)
def test_the_error_is_the_one_in_the_catalogue(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    ERRORS.check(name, tmp_path, update=pytestconfig.getoption("--update"))


def test_the_catalogue_has_these_scenarios_and_no_others() -> None:
    ERRORS.check_names()
