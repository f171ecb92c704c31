"""torchdata's own tests of StatefulDataLoader, over blobfeed's: `python -m benchmarks.torchdata CHECKOUT [-k EXPR]`.

CHECKOUT is a clone of meta-pytorch/data. The tests are copied outside of both, the one import of the class is changed,
and pytest runs them (it needs `parameterized` and `expecttest`). Printed are the tests that pass, and the others by
their reason: the assertion or error that ended each. Tests of the module of torchdata's own internals
(`test_incremental_state`) do not use the class and are left out.

November 2026, busy cores, run in parts on several commits of one day: of 285 tests 13 are skipped, and 232 of 272 pass
(85 %; three of them when run again after a repair). Those that fail look at torch's own workers and states (`_workers`,
`_snapshot`, the worker that has a batch, when the data set is sent, errors and warnings in torch's words), expect a
worker's seed, locks of multiprocessing in the data set, `in_order=False`, an empty loop behind an epoch's last batch or
as many workers as before, or need more time than they allow.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict, deque
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

FILES = ("test_state_dict", "test_dataloader", "test_sampler", "test_hugging_face")

_IMPORT = re.compile(r"from torchdata\.stateful_dataloader import (.*\bStatefulDataLoader\b.*)")
_TEST_S = 300
_GROUP = 8
"""The tests of one run of pytest: they take long, and the sums so far are printed behind each."""

_SILENT: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
_KEPT = """
import pytest
from blobfeed import DataLoader

@pytest.fixture(scope="session", autouse=True)
def kept():
    loader = DataLoader([0], num_workers=1)
    yield
    loader.close()
"""
"""One more loader, while the tests run: those of a program are forked from one server, which imports torch once. It is
another one if standard error changes, so pytest captures nothing."""


def changed(text: str) -> str:
    """Return the text of a test with the import of the class changed, and nothing else."""

    def other(match: re.Match[str]) -> str:
        names = [name.strip() for name in match[1].split(",")]
        own = next(name for name in names if name.startswith("StatefulDataLoader"))
        mine = f"from blobfeed import DataLoader as {own.split(' as ')[-1]}"
        rest = [name for name in names if name != own]
        return f"{mine}; from torchdata.stateful_dataloader import {', '.join(rest)}" if rest else mine

    return _IMPORT.sub(other, text)


class Totals:
    """The results of the tests so far."""

    def __init__(self) -> None:
        self.passed = self.skipped = 0
        self.failed: dict[str, list[str]] = defaultdict(list)

    def add(self, report: Path) -> None:
        """Add what pytest has written."""
        for case in ET.parse(report).iter("testcase"):
            where = f"{case.get('classname')}::{case.get('name')}"
            trouble = case.find("failure") if case.find("failure") is not None else case.find("error")
            if case.find("skipped") is not None:
                self.skipped += 1
            elif trouble is None:
                self.passed += 1
            else:
                reason = " ".join(str(trouble.get("message")).partition("To execute this test")[0].split())[:160]
                self.failed[reason].append(where)
                print(f"{where}: {reason}", file=sys.stderr)

    def __str__(self) -> str:
        failed = sum(map(len, self.failed.values()))
        ran = self.passed + failed
        share = 100 * self.passed / max(1, ran)
        return f"{self.passed} of {ran} passed ({share:.1f} %), {failed} failed, {self.skipped} skipped by torchdata"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torchdata", description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("-k", default="", help="pytest's expression: run these alone")
    parser.add_argument("--files", nargs="*", default=FILES, help="test modules, of " + ", ".join(FILES))
    given = parser.parse_args()
    totals = Totals()
    with tempfile.TemporaryDirectory(prefix="torchdata-tests-") as folder:
        shutil.copytree(given.checkout / "torchdata", Path(folder, "torchdata"))
        Path(folder, "conftest.py").write_text(_KEPT)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((folder, os.environ.get("PYTHONPATH", "")))}
        run = [sys.executable, "-P", "-m", "pytest", "-qs", "-p", "no:cacheprovider"]
        for name in given.files:
            text = changed((given.checkout / "test" / "stateful_dataloader" / f"{name}.py").read_text())
            Path(folder, f"{name}.py").write_text(text)
            listed = [*run, "--collect-only", f"{name}.py", *(["-k", given.k] if given.k else [])]
            output = subprocess.run(listed, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            tests = [line for line in output.stdout.splitlines() if line.startswith(f"{name}.py::")]
            groups = deque(tests[first : first + _GROUP] for first in range(0, len(tests), _GROUP))
            while groups:
                group, report = groups.popleft(), Path(folder, "report.xml")
                report.unlink(missing_ok=True)
                command = [*run, *group, f"--junitxml={report}", f"--timeout={_TEST_S}"]
                subprocess.run(command, cwd=folder, env=environment, check=False, **_SILENT)
                if report.exists():
                    totals.add(report)
                    print(f"{name}, {len(tests) - sum(map(len, groups))} of {len(tests)}: {totals}", file=sys.stderr)
                elif len(group) > 1:  # one of them has ended pytest's own process
                    groups.extendleft([test] for test in reversed(group))
                else:
                    totals.failed["has ended the process that ran it"] += group
    for reason, tests in sorted(totals.failed.items(), key=lambda each: -len(each[1])):
        print(f"{len(tests):4} {reason}")
        for test in tests:
            print(f"       {test}")
    print(totals)


if __name__ == "__main__":
    main()
