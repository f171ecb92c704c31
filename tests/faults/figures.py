"""Figures, the table of them, and which of them must be a certain number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """`value` as it is shown; where `must_be` is set, `value` has to be that number."""

    study: str
    what: str
    value: int | str
    must_be: int | None = None

    @property
    def holds(self) -> bool:
        return self.must_be is None or self.value == self.must_be

    @property
    def cells(self) -> tuple[str, str, str, str]:
        shown = f"{self.value:,}" if isinstance(self.value, int) else self.value
        wanted = "" if self.must_be is None else f"{self.must_be:,}" if self.holds else f"**{self.must_be:,}**"
        return self.study, self.what, shown, wanted


def table(figures: Iterable[Figure]) -> str:
    """A Markdown table; the study is named in its first row."""
    lines = [("study", "figure", "value", "must be"), ("---", "---", "---:", "---:")]
    before = ""
    for study, *cells in (figure.cells for figure in figures):
        lines.append((study if study != before else "", *cells))  # type: ignore[arg-type]
        before = study
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"


def spread(seconds: Sequence[float]) -> str:
    """Median, 95th percentile and maximum."""
    ordered = sorted(seconds)
    middle, high = (ordered[min(len(ordered) - 1, int(part * len(ordered)))] for part in (0.5, 0.95))
    return " / ".join(map(milliseconds, (middle, high, ordered[-1])))


def megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:.1f} MB"
