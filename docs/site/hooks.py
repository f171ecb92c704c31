"""What mkdocs does beyond its own: README.md is the first page, diagrams of text become pictures."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))

import diagram

_ROOT = Path(__file__).resolve().parents[2]


def on_files(files: Any, config: Any) -> Any:
    files.append(File.generated(config, "index.md", content=first_page((_ROOT / "README.md").read_text())))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    return with_pictures(with_links(markdown), page.file.src_uri)


def first_page(readme: str) -> str:
    """README.md with links as they are from docs/, and its table of programs as sections."""
    text = re.sub(r"\]\(docs/", "](", readme).replace("](prototxt_examples", "](../prototxt_examples")
    rows = re.sub(r"</?table>\n|<tr><th>.*\n", "", text)
    rows = re.sub(r"<tr><td>(.*?)(?:<br>.*?)?</td><td>\n", lambda row: f"**{row[1]}**\n", rows)
    return rows.replace("</td></tr>\n", "\n")


def with_links(markdown: str) -> str:
    """Links to the README lead to the first page; those to files of the repository, which the site lacks, are text."""
    markdown = markdown.replace("](../README.md", "](index.md")
    markdown = re.sub(r"\[(?:docs/)?(\w+)\.md\]\((\w+\.md)", lambda link: f"[{_title(link[2])}]({link[2]}", markdown)
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"`\1`", markdown)


def _title(page: str) -> str:
    return (_ROOT / "docs" / page).read_text().partition("\n")[0].removeprefix("# ")


def with_pictures(markdown: str, name: str) -> str:
    def picture(block: re.Match[str]) -> str:
        return diagram.as_svg(block[1], f"Diagram in {name}") if diagram.is_diagram(block[1]) else block[0]

    return re.sub(r"^```\n(.*?)^```$", picture, markdown, flags=re.DOTALL | re.MULTILINE)
