"""Prints the oldest version of each library that setup.py accepts, as a file of constraints for pip."""

from __future__ import annotations

import ast
import re
from pathlib import Path

SETUP = Path(__file__).resolve().parent.parent.parent / "setup.py"


def lowest(setup: str) -> list[str]:
    """Return `name==version` with the marker, for each `name>=version` of RUNTIME and EXTRAS, once."""
    values = {
        target.id: ast.literal_eval(node.value)
        for node in ast.parse(setup).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in ("RUNTIME", "EXTRAS")
    }
    needed = [*values["RUNTIME"], *(each for extra in values["EXTRAS"].values() for each in extra)]
    found = {re.sub(r">=([\d.]+)(,[^;]*)?", r"==\1", each) for each in needed}
    # The tests use TensorFlow's edition for CPUs.
    return sorted(found | {each.replace("tensorflow==", "tensorflow-cpu==") for each in found})


if __name__ == "__main__":
    print(*lowest(SETUP.read_text(encoding="utf-8")), sep="\n")
