"""torchdata's own tests of StatefulDataLoader, over blobfeed's: `python -m benchmarks.torchdata CHECKOUT [-k EXPR]`.

CHECKOUT is a clone of meta-pytorch/data. The tests are copied outside of both, the one import of the class is changed,
and pytest runs them (it needs `parameterized` and `expecttest`). Printed are the tests that pass, and the others by
their reason: the assertion or error that ended each. Tests of the module of torchdata's own internals
(`test_incremental_state`) do not use the class and are left out.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

FILES = ("test_state_dict", "test_dataloader", "test_sampler", "test_hugging_face")

_IMPORT = re.compile(r"from torchdata\.stateful_dataloader import (.*\bStatefulDataLoader\b.*)")
_TEST_S = 300


def changed(text: str) -> str:
    """Return the text of a test with the import of the class changed, and nothing else."""

    def other(match: re.Match[str]) -> str:
        names = [name.strip() for name in match[1].split(",")]
        own = next(name for name in names if name.startswith("StatefulDataLoader"))
        mine = f"from blobfeed import DataLoader as {own.split(' as ')[-1]}"
        rest = [name for name in names if name != own]
        return f"{mine}; from torchdata.stateful_dataloader import {', '.join(rest)}" if rest else mine

    return _IMPORT.sub(other, text)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torchdata", description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("-k", default="", help="pytest's expression: run these alone")
    parser.add_argument("--files", nargs="*", default=FILES, help="test modules, of " + ", ".join(FILES))
    given = parser.parse_args()
    passed, failed, skipped = 0, defaultdict(list), 0
    with tempfile.TemporaryDirectory(prefix="torchdata-tests-") as folder:
        for name in given.files:
            source = given.checkout / "test" / "stateful_dataloader" / f"{name}.py"
            Path(folder, source.name).write_text(changed(source.read_text()))
        shutil.copytree(given.checkout / "torchdata", Path(folder, "torchdata"))
        for name in given.files:
            report = Path(folder, f"{name}.xml")
            command = [sys.executable, "-P", "-m", "pytest", f"{name}.py", "-q", f"--junitxml={report}"]
            command += [f"--timeout={_TEST_S}", "-p", "no:cacheprovider", *(["-k", given.k] if given.k else [])]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join((folder, os.environ.get("PYTHONPATH", "")))}
            subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=False)
            for case in ET.parse(report).iter("testcase"):
                where = f"{name}::{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
                trouble = case.find("failure") if case.find("failure") is not None else case.find("error")
                if case.find("skipped") is not None:
                    skipped += 1
                elif trouble is None:
                    passed += 1
                else:
                    failed[" ".join(str(trouble.get("message")).split())[:160]].append(where)
    count = sum(map(len, failed.values()))
    for reason, tests in sorted(failed.items(), key=lambda each: -len(each[1])):
        print(f"{len(tests):4} {reason}")
        for test in tests:
            print(f"       {test}")
    ran = passed + count
    print(
        f"{passed} of {ran} passed ({100 * passed / max(1, ran):.1f} %), {count} failed, {skipped} skipped by torchdata"
    )


if __name__ == "__main__":
    main()
