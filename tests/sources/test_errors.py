"""Errors of sources have the words that errors.txt lists, in setup or with the sample that is read."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from blobfeed import Source
from tests.support.catalogue import Catalogue
from tests.support.stored import in_loader, rows_of

from .wrong import arrays, cloud, files, hdf5, images, parquet, records


def _read_all(source: Source) -> None:
    with closing(source), closing(in_loader(source)) as arrived:
        rows_of(arrived, range(len(arrived)))


ERRORS = Catalogue(
    Path(__file__).with_name("errors.txt"),
    {
        name: scenario
        for room in (arrays, hdf5, files, images, records, parquet, cloud)
        for name, scenario in room.SCENARIOS.items()
    },
    _read_all,
)


@pytest.mark.timeout(60)  # a FIFO that is opened waits without end
@pytest.mark.parametrize("name", ERRORS.scenarios)
@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
def test_the_error_is_the_one_in_the_catalogue(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    ERRORS.check(name, tmp_path, update=pytestconfig.getoption("--update"))


def test_the_catalogue_has_these_scenarios_and_no_others(pytestconfig: pytest.Config) -> None:
    ERRORS.check_names()
