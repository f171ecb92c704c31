"""A catalogue of errors: for each mistake a line with the class of the error and two key words of its message.

A scenario makes the mistake. Its line in the text file of its room reads `name | when: Class(facts) | word | word`: a
program may need the facts, a reader the words. `pytest --update FILE` writes a line with the whole message where a
scenario has none, or another error; cut the message to the two words that no other error of the room has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from blobfeed import BlobfeedError

Scenario = Callable[[Path], Any]
"""Gets an empty folder, and raises; or returns what `Catalogue.use` raises for."""

_Given = ParamSpec("_Given")


def scenario(mistake: Callable[Concatenate[Path, _Given], Any]) -> Callable[_Given, Scenario]:
    """Make a function of a folder and more one of the rest, which returns the scenario: `read(batch_size=0)`."""
    return lambda *given, **named: lambda folder: mistake(folder, *given, **named)


_LONGEST = 1200
"""Characters of a message: one screen."""


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
        error, message = self._raised(self.scenarios[name], folder)
        assert len(message) < _LONGEST, f"more than one screen: {message}"
        entries = self._entries()
        expected, *words = entries.get(name, "no line").split(" | ")
        if error == expected and all(word in message for word in words):
            return
        assert update, f"{self.path.name} says {expected} | {' | '.join(words)}, and this is {error} | {message}"
        entries[name] = f"{error} | {message}"
        lines = [f"{each} | {entries[each]}\n" for each in self.scenarios if each in entries]
        self.path.write_text("".join(lines), encoding="utf-8")

    def check_names(self) -> None:
        assert list(self._entries()) == list(self.scenarios), "run pytest --update over all scenarios"

    def _entries(self) -> dict[str, str]:
        if not self.path.exists():
            return {}
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return {name: rest for name, _, rest in (line.partition(" | ") for line in lines)}

    def _raised(self, scenario: Scenario, folder: Path) -> tuple[str, str]:
        """Return when the error comes and its class with its facts, and its message in one line."""
        stage = "setup"
        try:
            made = scenario(folder)
            stage = "use"
            self.use(made)
        except self.errors as error:
            message = str(error).replace(str(folder), "…").replace("\n", "\\n")
            return f"{stage}: {_class_and_facts(error, folder)}", message
        raise AssertionError("no error was raised")


def _class_and_facts(error: Exception, folder: Path) -> str:
    facts = {name: value for name, value in vars(error).items() if value not in ("", -1, ())}
    said = ", ".join(f"{name}={value}" for name, value in facts.items() if not name.startswith("_"))
    return f"{type(error).__name__}({said.replace(str(folder), '…')})"
