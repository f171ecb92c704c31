"""A catalogue of errors: the wording of every message, in one text file for each room.

A scenario does something wrong; its line in the file says when the error comes, its class with the facts that a program
may need, and its message. Other tests assert classes and facts only, so a better wording changes this file and nothing
else. `pytest --update FILE` writes the lines anew, and the difference is what a reviewer reads.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blobfeed
from blobfeed import BlobfeedError

Scenario = Callable[[Path], Any]
"""Gets an empty folder, and raises; or returns what `Catalogue.use` raises for."""

_LONGEST = 1200
"""Characters of a message: one screen."""

_PACKAGE = Path(blobfeed.__file__).parent
"""The folder of the installed package. That of a checkout may have the same name, with the libraries below it."""


@dataclass(frozen=True)
class Catalogue:
    """`path`: the text file. `use`: what is done with the value that a scenario returns instead of raising.

    `errors`: the classes that count. User code raises others, and so do functions that know no sample yet.
    """

    path: Path
    scenarios: Mapping[str, Scenario]
    use: Callable[[Any], object] = lambda made: None
    errors: tuple[type[Exception], ...] = (BlobfeedError,)

    def check(self, name: str, folder: Path, *, update: bool) -> None:
        """The scenario `name` raises the error that the file says, or with `update`, the file says what it raises."""
        found = self._line(self.scenarios[name], folder)
        entries = self._entries()
        if update:
            entries[name] = found
            lines = [f"{each} | {entries[each]}\n" for each in self.scenarios if each in entries]
            self.path.write_text("".join(lines), encoding="utf-8")
        else:
            assert found == entries.get(name), f"{self.path.name} has another line than {found!r}: see pytest --update"

    def check_names(self) -> None:
        assert list(self._entries()) == list(self.scenarios), "run pytest --update over all scenarios"

    def _entries(self) -> dict[str, str]:
        if not self.path.exists():
            return {}
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return {name: rest for name, _, rest in (line.partition(" | ") for line in lines)}

    def _line(self, scenario: Scenario, folder: Path) -> str:
        stage = "setup"
        try:
            made = scenario(folder)
            stage = "use"
            self.use(made)
        except self.errors as error:
            return f"{stage}: {_class_and_facts(error, folder)} | {_words(error, folder)}"
        raise AssertionError("no error was raised")


def _class_and_facts(error: Exception, folder: Path) -> str:
    facts = {name: value for name, value in vars(error).items() if value not in ("", -1, ())}
    said = ", ".join(f"{name}={value}" for name, value in facts.items() if not name.startswith("_"))
    return f"{type(error).__name__}({said.replace(str(folder), '…')})"


def _words(error: Exception, folder: Path) -> str:
    """The message in one line. What a library says, in words of its version, stands as the class of its exception."""
    message = str(error)
    assert len(message) < _LONGEST, f"more than one screen: {message}"
    cause = error.__cause__ or error.__context__
    while cause is not None:
        if len(str(cause)) > 8 and not _is_ours(cause):
            message = message.replace(str(cause), f"<{type(cause).__name__}>")
        cause = cause.__cause__ or cause.__context__
    message = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:…", message)
    message = re.sub("0x[0-9a-f]{6,}", "0x…", message)
    message = re.sub(r"(loader|pid|the limit is|of this process's) \d+", r"\1 …", message)
    message = re.sub(r" (for|in) \d+\.\d s\b", r" \1 … s", message)
    message = re.sub(r"Python 3\.\d+", "Python 3.…", message)
    message = re.sub(r"\d[\d,]{6,}(?= bytes are available)", "…", message)
    message = re.sub(r"np\.\w+\(([-+.e\d]+)\)", r"\1", message)  # as NumPy 1 writes its numbers, too
    message = re.sub(r"RIFF[^']+", "RIFF…", message)  # and the size of a file that the library has written
    # Names of parameters and kinds: another one changes no line.
    message = re.sub(r"(nearest known ones are \w+)(?:, \w+)+", r"\1, …", message)
    message = re.sub(r"((?:\w+, ){3})(?:\w+, ){8,}\w+", r"\1…", message)
    return message.replace(str(folder), "…").replace("\n", "\\n")


def _is_ours(error: BaseException) -> bool:
    """Return true if blobfeed's own code raises the exception, and no library or built-in function that it calls."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:  # it came from a loader, or its frames, all of blobfeed, were cut off
        return isinstance(error, BlobfeedError) or str(error).startswith(("decode ", "postprocess "))
    return frames[-1].filename.startswith(f"{_PACKAGE}/") and (frames[-1].line or "").startswith("raise ")
