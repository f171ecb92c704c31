"""The table as a picture: for each work a bar for each entrant, as long as its share of the limit. SVG, by hand.

By hand since the colours have to follow the reader's theme, light or dark, which is a style sheet inside the file;
chart libraries write fixed colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .harness import Results
from .report import LIMITS, ratio, times
from .works import Work

_WIDTH, _BAR, _GAP, _LABEL = 860, 13, 3, 250
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; font-size: 13px; }
.bar { fill: #8c959f; } .ours { fill: #0969da; } .axis { stroke: #d0d7de; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .bar { fill: #6e7681; } .ours { fill: #4493f8; } .axis { stroke: #30363d; }
}
"""


def chart(works: Sequence[Work], results: Results) -> str:
    """The best entrants of each work that has a rate, as an SVG document."""
    lines: list[str] = []
    y = 20
    for work in works:
        bars = [] if work.step_s else _bars(work, results)
        if not bars:
            continue
        lines.append(f'<text class="title" x="0" y="{y}">{escape(work.title)}</text>')
        y += 9
        full = max(1.0, *(share for _, share in bars))
        for name, share in bars:
            lines += _bar(name, share, share / full, y)
            y += _BAR + _GAP
        y += 24
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" role="img">'
    title = "<title>Samples per second as a share of the limit of the run</title>"
    return "\n".join([head, title, f"<style>{_STYLE}</style>", *lines, "</svg>", ""])


def _bars(work: Work, results: Results) -> list[tuple[str, float]]:
    """(entrant, share of the work's limit), the best first."""
    limit = results.get((work.name, LIMITS + work.limits[0]))
    whole = limit.median("samples_per_s") if limit else None
    shares = [
        (name, ratio(result.median("samples_per_s"), whole))
        for (work_name, name), result in results.items()
        if work_name == work.name and not name.startswith(LIMITS)
    ]
    return sorted(((name, share) for name, share in shares if share is not None), key=lambda bar: -bar[1])


def _bar(name: str, share: float, length: float, y: int) -> list[str]:
    wide = max(1, round(length * (_WIDTH - _LABEL - 50)))
    kind = "ours" if name.startswith("blobfeed") else "bar"
    return [
        f'<text x="{_LABEL - 8}" y="{y + _BAR - 3}" text-anchor="end">{escape(name)}</text>',
        f'<rect class="{kind}" x="{_LABEL}" y="{y}" width="{wide}" height="{_BAR}" rx="2"/>',
        f'<text x="{_LABEL + wide + 6}" y="{y + _BAR - 3}">{times(share)}</text>',
    ]
