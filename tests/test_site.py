"""The documents as a site: links, commands, the page of parameters, diagrams, and a look in a real browser."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
import yaml
from blobfeed.sources import KINDS, options_of
from blobfeed.tools import parameters
from blobfeed.trainer.prototxt import NetParameter, read_prototxt
from blobfeed.workers.api import Parameters
from blobfeed.workers.base import errors
from msgspec.inspect import StructType, Type, UnionType, type_info
from typer.testing import CliRunner

from blobfeed import BlobfeedError, ParameterError, Statistics
from blobfeed.cli import app

from .support.browser import WIDTHS, console_of
from .support.imports import FOLDERS

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.DOTALL | re.MULTILINE)


# ---- links


def slugs(page: Path) -> set[str]:
    """The anchors that GitHub and the site give to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text())))


_BESIDE = (
    *ROOT.glob("benchmarks/**/*.md"),
    *ROOT.glob("prototxt_examples/*/README.md"),
    *ROOT.glob("*.md"),
    ROOT / "llms.txt",
)


@pytest.mark.parametrize("page", sorted({*PAGES, *_BESIDE}), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if link.startswith(("http://", "https://")):
            continue
        if not target.exists() or (anchor and anchor not in slugs(target)):
            broken.append(link)
    assert broken == []


def test_links_are_found_and_broken_ones_seen(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("# One, two: `three`\n[a](b.md#c) `[no](x)`\n```\n[no](y)\n```\n[d](#one-two-three)")
    assert links(page) == ["b.md#c", "#one-two-three"]
    assert slugs(page) == {"one-two-three"}


# ---- files that are named: in the pages by a path, in docstrings and comments often by the name alone

_FILE = re.compile(r"(?<![\w./-])(?:[\w-]+/)*[\w-]+\.(?:py|md)\b")
_FOLDERS = ("blobfeed", "benchmarks", "tests", "docs", *FOLDERS)


def files_named(path: Path) -> set[str]:
    if path.suffix == ".md":
        return {name for name in _FILE.findall(path.read_text()) if "/" in name}
    with path.open("rb") as file:
        tokens = list(tokenize.tokenize(file.readline))
    docs = [token.string for token in tokens if token.type == tokenize.COMMENT or token.string.startswith('"""')]
    return {name for text in docs for name in _FILE.findall(text)}


def test_every_file_that_pages_and_docstrings_name_is_there() -> None:
    written = [path for folder in _FOLDERS for path in (ROOT / folder).rglob("*.*")]
    there = {
        f"/{path.relative_to(ROOT)}" for path in (*written, *ROOT.glob("*.*"), *ROOT.glob("prototxt_examples/**/*"))
    }
    texts = [*PAGES, *(path for path in written if path.suffix == ".py" and ROOT / "tests" not in path.parents)]
    named = {(str(path.relative_to(ROOT)), name) for path in texts for name in files_named(path)}
    assert len(named) > 50
    assert {(path, name) for path, name in named if not any(it.endswith(f"/{name}") for it in there)} == set()


def test_files_are_found_in_pages_by_their_path_and_in_docstrings_by_their_name(tmp_path: Path) -> None:
    page, module = tmp_path / "a.md", tmp_path / "a.py"
    page.write_text("`readers/none.py`, [b](../c/d.md), mine.py")
    module.write_text('"""See one.py and b/two.md."""\nthree = "three.py"  # four.py, */five.py\n')
    assert files_named(page) == {"readers/none.py"}
    assert files_named(module) == {"one.py", "b/two.md", "four.py"}


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    first, *parts = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    assert first == {"Overview": "index.md"}  # its heading is the site's name, which the header has
    assert {page for part in parts for page in next(iter(part.values()))} == {page.name for page in PAGES[1:]}


# ---- commands


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for block in re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE):
            yield from ((page.name, line) for line in block.splitlines() if line.startswith("blobfeed "))


COMMANDS = list(commands())


def test_commands_are_found() -> None:
    assert len(COMMANDS) > 10


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=lambda value: value[:60])
def test_every_command_is_one_that_there_is(page: str, line: str) -> None:
    name, *arguments = shlex.split(line, comments=True)[1:]
    group: Any = typer.main.get_command(app)
    group.commands[name].make_context(name, arguments)  # raises for an unknown option, or a missing argument


# ---- blocks that are no Python: test_documents.py runs those


def blocks(language: str) -> list[tuple[str, str]]:
    fence = re.compile(rf"^```{language}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return [(page.name, block) for page in PAGES for block in fence.findall(page.read_text())]


def unknown_parameters(declared: Any) -> set[str]:
    structs: list[type[msgspec.Struct]] = [Parameters, *(options_of(kind) for kind in KINDS if KINDS[kind].options)]
    return set(declared) - {name for struct in structs for name in struct.__struct_fields__} - {"data", "label"}


@pytest.mark.parametrize(("page", "block"), blocks("yaml"))
def test_every_block_of_yaml_has_parameters_that_there_are(page: str, block: str) -> None:
    assert unknown_parameters(yaml.safe_load(block)) == set()


@pytest.mark.parametrize(("page", "block"), blocks("protobuf"))
def test_every_block_of_a_net_definition_can_be_read(page: str, block: str, tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(block)
    net: Any = read_prototxt(tmp_path / "net.prototxt", NetParameter).message
    written = [layer.python_param.param_str for layer in net.layer if layer.type == "Python"]
    assert written
    assert [unknown_parameters(yaml.safe_load(text)) for text in written] == [set()] * len(written)


# ---- parameters


def test_the_page_of_parameters_is_made_from_the_definitions() -> None:
    assert (ROOT / "docs" / "parameters.md").read_text() == parameters.as_markdown(), (
        "run: python -m blobfeed.tools.parameters > docs/parameters.md"
    )


def rows_of(page: str, heading: str) -> list[list[str]]:
    """The table below a heading, without its head."""
    section = (ROOT / "docs" / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]


def test_the_table_of_errors_has_every_one() -> None:
    rows = rows_of("troubleshooting.md", "What the errors mean")
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    assert set(named) == {each.__name__ for each in vars(errors).values() if each in BlobfeedError.__subclasses__()}


def test_the_table_of_counts_has_all_statistics() -> None:
    assert [row[0] for row in rows_of("watching.md", "The counts")] == [f"`{each.name}`" for each in fields(Statistics)]


def _with_parts(kind: Type) -> Iterator[type[msgspec.Struct]]:
    """The parameters of `kind`, and those of each parameter that is a mapping itself."""
    if isinstance(kind, StructType):
        yield kind.cls
        for field in kind.fields:
            yield from _with_parts(field.type)
    if isinstance(kind, UnionType):
        for each in kind.types:
            yield from _with_parts(each)


ALL_OPTIONS = (Parameters, *(options_of(kind) for kind in KINDS if KINDS[kind].options))
STRUCTS = {struct.__name__: struct for options in ALL_OPTIONS for struct in _with_parts(type_info(options))}


@pytest.mark.parametrize("name", STRUCTS)
def test_every_parameter_says_what_it_means(name: str) -> None:
    documented = parameters.documented(STRUCTS[name])
    assert [each.name for each in documented if not each.text] == []
    assert set(parameters.described(STRUCTS[name])) <= {each.name for each in documented}, "names no parameter"


def test_params_in_the_terminal() -> None:
    def said(*arguments: str) -> str:
        return CliRunner().invoke(app, ["params", *arguments]).output

    assert said("batch_size") == "batch_size: rows of a batch.\n    a whole number >= 1; required\n"
    assert "last_batch: if the batch size does not divide" in said()
    assert "  crop_size: height and width" in said("transform")
    assert said("hdf5").startswith("source: {hdf5: …}\n  path: an HDF5 file")
    assert said("idx").startswith("source: {idx: …}\n  the files of MNIST")
    assert "unknown parameter 'shufle' (did you mean 'shuffle'?)" in said("shufle")
    with pytest.raises(ParameterError):
        parameters.as_text("none")


# ---- the site, in a browser


_MEASURING = """<script>window.addEventListener("load", () => {
    const wider = document.documentElement.scrollWidth - window.innerWidth
    const names = [...document.querySelectorAll("td:first-child code")]
    const broken = names.filter(name => name.getClientRects().length > 1).length
    console.log("measured " + JSON.stringify({page: Math.max(0, wider), broken}))
})</script>"""


def measured(page: Path, folder: Path, size: tuple[int, int]) -> dict[str, int]:
    """Return the pixels by which the page is wider than the window, and the number of names in two lines."""
    copy = page.with_name("measured.html")
    copy.write_text(page.read_text() + _MEASURING)
    (line,) = re.findall(r"measured ({.*?})", console_of(copy, folder, size))
    found: dict[str, int] = json.loads(line.replace("\\", ""))
    return found


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_its_pages_without_an_error(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="make docs installs what the site needs")
    built = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    run = subprocess.run(built, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    for size in WIDTHS.values():
        for page in ("index.html", "architecture.html", "parameters.html"):
            assert (tmp_path / "site" / page).exists()
            assert console_of(tmp_path / "site" / page, tmp_path, size) == ""
            assert measured(tmp_path / "site" / page, tmp_path, size) == {"page": 0, "broken": 0}
    architecture = (tmp_path / "site" / "architecture.html").read_text()
    assert '<div class="diagram"><svg' in architecture
