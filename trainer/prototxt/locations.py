"""Lines and columns of the fields of a prototxt: the protobuf library parses the text, but forgets them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""
      (?P<skip> \#[^\n]* | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' )
    | (?P<field> [A-Za-z_]\w* (?= (?:\s|\#[^\n]*\n)* [:{<] ) )
    | (?P<open> [{<] )
    | (?P<close> [}>] )
    | [A-Za-z_]\w*
    """,
    re.VERBOSE,
)


@dataclass
class Location:
    """A field in the text: its name, the line and column (from 1) of its first letter, and the fields inside it."""

    name: str
    line: int
    column: int
    inside: list[Location] = field(default_factory=list)
    opened: bool = False

    def follow(self, *path: str | int) -> Location:
        """The deepest location along `path`, such as ("layer", 3, "pooling_param"); numbers count repetitions.

        `stage: ["a", "b"]` is two values at one location: if there are fewer repetitions, the last counts.
        """
        here, steps = self, list(path)
        while steps:
            name = steps.pop(0)
            nth = int(steps.pop(0)) if steps and isinstance(steps[0], int) else 0
            found = [location for location in here.inside if location.name == name]
            if not found:
                break
            here = found[min(nth, len(found) - 1)]
        return here


def read_locations(text: str) -> Location:
    """The fields of `text`, which must be well formed, inside a root without a name."""
    root = latest = Location("", 0, 0)
    around = [root]
    for kind, token, line, column in _tokens(text):
        if kind == "field":
            latest = Location(token, line, column)
            around[-1].inside.append(latest)
        elif kind == "open":
            if latest.opened:  # the second element of `layer: [{...}, {...}]` has no name of its own
                latest = Location(latest.name, line, column)
                around[-1].inside.append(latest)
            latest.opened = True
            around.append(latest)
        elif kind == "close":
            latest = around.pop()
    return root


def _tokens(text: str) -> Iterator[tuple[str, str, int, int]]:
    line, line_start, seen = 1, 0, 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", seen, match.start())
        line_start = text.rfind("\n", 0, match.start()) + 1
        seen = match.start()
        yield match.lastgroup or "", match.group(), line, match.start() - line_start + 1
