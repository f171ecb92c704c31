"""The table as a picture: a panel for each work, a bar for each loader. SVG, by hand.

By hand since the colours have to follow the reader's theme, light or dark, which is a style sheet inside the file;
chart libraries write fixed colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _BAR, _GAP, _LABEL, _LONGEST = 400, 17, 5, 150, 150
"""The sizes of a panel, in pixels: a page is as wide as two of them."""
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; font-size: 14px; }
.bar { fill: #8c959f; } .ours { fill: #0969da; } .limit { fill: #d0d7de; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .bar { fill: #6e7681; } .ours { fill: #4493f8; } .limit { fill: #30363d; }
}
"""


class Bar(NamedTuple):
    name: str
    value: float
    text: str


class Panel(NamedTuple):
    title: str
    bars: Sequence[Bar]


def chart(panels: Sequence[Panel]) -> str:
    """Return the panels as an SVG document, two in a row."""
    height = 30 + max(len(panel.bars) for panel in panels) * (_BAR + _GAP) + 20
    rows = -(-len(panels) // 2)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * _WIDTH} {rows * height}" role="img">'
    lines = [
        line
        for number, panel in enumerate(panels)
        for line in _panel(panel, number % 2 * _WIDTH, number // 2 * height + 20)
    ]
    return "\n".join([head, "<title>How fast each loader is</title>", f"<style>{_STYLE}</style>", *lines, "</svg>", ""])


def _panel(panel: Panel, x: int, y: int) -> list[str]:
    lines = [f'<text class="title" x="{x}" y="{y}">{escape(panel.title)}</text>']
    longest = max(bar.value for bar in panel.bars)
    for number, bar in enumerate(panel.bars):
        top = y + 10 + number * (_BAR + _GAP)
        wide = max(1, round(bar.value / longest * _LONGEST))
        kind = {"blobfeed": "ours", "limit": "limit"}.get(bar.name, "bar")
        lines += [
            f'<text x="{x + _LABEL - 8}" y="{top + _BAR - 4}" text-anchor="end">{escape(bar.name)}</text>',
            f'<rect class="{kind}" x="{x + _LABEL}" y="{top}" width="{wide}" height="{_BAR}" rx="2"/>',
            f'<text x="{x + _LABEL + wide + 6}" y="{top + _BAR - 4}">{escape(bar.text)}</text>',
        ]
    return lines
