"""A diagram drawn with box characters, as an SVG: it takes the page's colours and can be searched and scaled.

The text stays the source: it is readable in a terminal and on any page that shows Markdown.
"""

from __future__ import annotations

import re
from html import escape

_WIDTH, _HEIGHT = 8.4, 18.0
_SIDES = {  # which sides of its cell a character reaches: left, right, up, down
    "─": "lr", "│": "ud", "┌": "rd", "┐": "ld", "└": "ru", "┘": "lu",
    "├": "rud", "┤": "lud", "┬": "lrd", "┴": "lru", "┼": "lrud",
}  # fmt: skip
_ARROWS = {"►": "0,-4 8,0 0,4", "◄": "8,-4 0,0 8,4", "▲": "0,4 4,-4 8,4", "▼": "0,-4 4,4 8,-4"}


def is_diagram(text: str) -> bool:
    return "┌" in text and "┘" in text


def as_svg(text: str, title: str) -> str:
    """`text` as an SVG; `title` is for those who cannot see it."""
    lines = text.rstrip("\n").split("\n")
    width, height = max(map(len, lines)) * _WIDTH, len(lines) * _HEIGHT
    parts = [part for row, line in enumerate(lines) for part in _row(line, row * _HEIGHT + _HEIGHT / 2)]
    strokes = "".join(part for part in parts if part.startswith("<path"))
    filled = "".join(part for part in parts if not part.startswith("<path"))
    return (
        f'<div class="diagram"><svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(title)}"><g stroke="currentColor" fill="none">{strokes}</g>'
        f'<g fill="currentColor" font-family="monospace" font-size="14">{filled}</g></svg></div>'
    )


def _row(line: str, y: float) -> list[str]:
    parts = []
    for column, character in enumerate(line):
        x = column * _WIDTH
        if character in _SIDES:
            parts.append(f'<path d="{_strokes(_SIDES[character], x, y)}"/>')
        elif character in _ARROWS:
            parts.append(f'<polygon transform="translate({x:g},{y:g})" points="{_ARROWS[character]}"/>')
    for words in re.finditer(r"[^\s─│┌┐└┘├┤┬┴┼►◄▲▼]+(?: [^\s─│┌┐└┘├┤┬┴┼►◄▲▼]+)*", line):
        length = len(words[0]) * _WIDTH
        parts.append(
            f'<text x="{words.start() * _WIDTH:g}" y="{y + 5:g}" textLength="{length:g}">{escape(words[0])}</text>'
        )
    return parts


def _strokes(sides: str, x: float, y: float) -> str:
    middle, half = x + _WIDTH / 2, _HEIGHT / 2
    ends = {"l": (x, y), "r": (x + _WIDTH, y), "u": (middle, y - half), "d": (middle, y + half)}
    return "".join(f"M{middle:g} {y:g}L{ends[side][0]:g} {ends[side][1]:g}" for side in sides)
