"""What mkdocs does beyond its own: README.md is the first page, diagrams of text become pictures."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_WIDTH, _HEIGHT = 8.4, 18.0
_SIDES = {  # which sides of its cell a character reaches: left, right, up, down
    "─": "lr", "│": "ud", "┌": "rd", "┐": "ld", "└": "ru", "┘": "lu",
    "├": "rud", "┤": "lud", "┬": "lrd", "┴": "lru", "┼": "lrud",
}  # fmt: skip
_ARROWS = {"►": "0,-4 8,0 0,4", "◄": "8,-4 0,0 8,4", "▲": "0,4 4,-4 8,4", "▼": "0,-4 4,4 8,-4"}


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    files.append(File.generated(config, "index.md", content=first_page((_ROOT / "README.md").read_text())))
    pages = re.sub(r"\]\(docs/(\w+)\.md", r"](\1.html", (_ROOT / "llms.txt").read_text())
    files.append(File.generated(config, "llms.txt", content=pages))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    return with_pictures(with_links(markdown), page.file.src_uri)


def first_page(readme: str) -> str:
    """README.md with links as they are from docs/."""
    return re.sub(r"\]\(docs/", "](", readme).replace("](prototxt_examples", "](../prototxt_examples")


def with_links(markdown: str) -> str:
    """Links to the README lead to the first page; those to files of the repository, which the site lacks, are text."""
    markdown = markdown.replace("](../README.md", "](index.md")
    markdown = re.sub(r"\[(?:docs/)?(\w+)\.md\]\((\w+\.md)", lambda link: f"[{_title(link[2])}]({link[2]}", markdown)
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"`\1`", markdown)


def _title(page: str) -> str:
    return (_ROOT / "docs" / page).read_text().partition("\n")[0].removeprefix("# ")


def with_pictures(markdown: str, name: str) -> str:
    def picture(block: re.Match[str]) -> str:
        return as_svg(block[1], f"Diagram in {name}") if is_diagram(block[1]) else block[0]

    return re.sub(r"^```\n(.*?)^```$", picture, markdown, flags=re.DOTALL | re.MULTILINE)


# ---- diagrams: the text stays the source, readable in a terminal and on any page that shows Markdown


def is_diagram(text: str) -> bool:
    return "┌" in text and "┘" in text


def as_svg(text: str, title: str) -> str:
    """`text` as an SVG, which takes the page's colours and can be searched; `title` is for those who cannot see it."""
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
