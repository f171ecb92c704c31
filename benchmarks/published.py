"""`python -m benchmarks.published`: writes README.md's table and docs/benchmarks.svg from benchmarks/figures.md.

Both are made from the tables that a whole run wrote, so that no figure stands in two places by hand. Six works are
shown, each with torch as its experts write it, the best other loader, blobfeed as it comes, and the limit of the run.
Like stands beside like: a loop over a BatchReader gets memory of its own, as from the other loaders; in the work with
float32 blobs all of them fill one that was there before, and blobfeed does so by its layer.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .chart import Bar, Panel, chart
from .report import LIMITS, is_peer, table
from .works import find_work

_ROOT = Path(__file__).resolve().parent.parent
FIGURES, README, CHART = _ROOT / "benchmarks" / "figures.md", _ROOT / "README.md", _ROOT / "docs" / "benchmarks.svg"
_BLOCK = re.compile(r"(?<=<!-- python -m benchmarks\.published -->\n).*?(?=<!-- end -->)", re.DOTALL)
_TUNED, _READER, _LAYER = "torch, tuned", "blobfeed, BatchReader", "blobfeed, layer"
_UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0}

Column = Mapping[str, str]
"""The figures of one entrant, by the title of the column."""


@dataclass(frozen=True)
class Row:
    """A work of the table: `ours` is the entrant that stands for blobfeed in it."""

    work: str
    title: str
    ours: str = _READER
    metric: str = "samples/s"

    @property
    def is_time(self) -> bool:
        return self.metric != "samples/s"


_WAIT = "stall per batch"
ROWS = (
    Row("stall_10ms", "wait per batch, step of 10 ms", metric=_WAIT),
    Row("hdf5_224", "HDF5 rows, 3×224×224"),
    Row("jpeg", "JPEG 500×375, decoded and cropped"),
    Row("hdf5_samples", "HDF5, one data set per sample"),
    Row("hdf5_gzip", "HDF5 with gzip, shuffled by chunks"),
    Row("hdf5_float", "HDF5 rows into a float32 blob", _LAYER),
)


class Cell(NamedTuple):
    name: str
    text: str
    value: float
    spread: str


class Cells(NamedTuple):
    tuned: Cell
    other: Cell
    ours: Cell
    limit: Cell


def tables_of(text: str) -> dict[str, dict[str, Column]]:
    """Return the figures of every work, by its title and by entrant."""
    found: dict[str, dict[str, Column]] = {}
    for section in text.split("\n### ")[1:]:
        title, *lines = section.splitlines()
        head, _, *rows = (
            [cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines if line.startswith("|")
        )
        found[title] = {row[0]: dict(zip(head, row, strict=False)) for row in rows if len(row) == len(head)}
    return found


def value_of(text: str) -> float:
    """Return "1,280" as a number, "2.6 ms" in seconds."""
    number, _, unit = text.partition(" ")
    return float(number.replace(",", "")) * _UNITS[unit]


def cells_of(row: Row, figures: Mapping[str, Mapping[str, Column]]) -> Cells:
    work = find_work(row.work)
    columns = figures[work.title]

    def cell(name: str, shown_as: str) -> Cell:
        text = columns[name][row.metric]
        shown = text if row.is_time else f"{text}/s"
        return Cell(shown_as, shown, value_of(text), columns[name]["spread"])

    peers = [cell(name, name) for name in columns if is_peer(name)]
    best = (min if row.is_time else max)(peers, key=lambda each: each.value)
    limit = Cell("limit", "0", 0.0, "0%") if row.is_time else cell(LIMITS + work.limits[0], "limit")
    return Cells(cell(_TUNED, _TUNED), best, cell(row.ours, "blobfeed"), limit)


def block_of(text: str) -> str:
    """Return what README.md says of speed: the table, where and how it was measured, and the start."""
    figures = tables_of(text)
    rows = {row: cells_of(row, figures) for row in ROWS}
    machine = next(line for line in text.splitlines() if re.search(r"; \d{4}-\d\d-\d\d$", line))
    spread = max(int(cell.spread.rstrip("%")) for cells in rows.values() for cell in cells)
    starts = {name: columns["first batch"] for name, columns in figures[find_work("hdf5_224").title].items()}
    first = min((name for name in starts if is_peer(name)), key=lambda name: value_of(starts[name]))
    return (
        table(["", "torch, tuned", "best other", "blobfeed", "limit"], itertools.starmap(_line, rows.items()))
        + f"\n\n{machine}; two workers, batches of 64, warm; rounds differ by up to {spread} %. "
        + f"Start to first batch: torch {starts[_TUNED]}, {first} {starts[first]}, blobfeed {starts[_READER]}.\n"
    )


def _line(row: Row, cells: Cells) -> list[str]:
    loaders = cells[:3]
    best = (min if row.is_time else max)(cell.value for cell in loaders)
    texts = [cells.tuned.text, f"{cells.other.name} {cells.other.text}", cells.ours.text]
    bold = [f"**{text}**" if cell.value == best else text for text, cell in zip(texts, loaders, strict=True)]
    return [row.title, *bold, cells.limit.text]


def panels_of(text: str) -> list[Panel]:
    figures = tables_of(text)
    return [
        Panel(
            f"{row.title} (less is better)" if row.is_time else row.title,
            [Bar(cell.name, cell.value, cell.text) for cell in cells_of(row, figures)],
        )
        for row in ROWS
    ]


def main() -> None:
    text = FIGURES.read_text()
    README.write_text(_BLOCK.sub(lambda _: block_of(text), README.read_text()))
    CHART.write_text(chart(panels_of(text)))


if __name__ == "__main__":
    main()
