"""The detector of leftovers finds them: a test suite that trusts it must know that it can fail."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from tests.support import leftovers
from tests.support.waiting import DEADLINE_S, wait_until_none

_ROOT = Path(__file__).resolve().parent.parent
_SLEEPER = [sys.executable, "-S", "-c", "import time; time.sleep(90)"]
_ORPHANER = f"import subprocess as s; print(s.Popen({_SLEEPER!r}, stdout=s.DEVNULL, stderr=s.DEVNULL).pid)"


def _added(before: leftovers.Belongings) -> list[str]:
    return leftovers.Belongings.now(Path(tempfile.gettempdir())).added_since(before)


@pytest.fixture
def before() -> leftovers.Belongings:
    return leftovers.Belongings.now(Path(tempfile.gettempdir()))


def test_a_living_child_is_found_and_named(before: leftovers.Belongings) -> None:
    with subprocess.Popen(_SLEEPER) as child:
        wait_until_none(lambda: [] if "sleep(90)" in leftovers.describe(child.pid) else ["no exec yet"], DEADLINE_S)
        (left,) = _added(before)
        child.kill()
    assert left.startswith(f"process {child.pid}: ")
    assert "time.sleep(90)" in left
    assert _added(before) == []


def test_a_child_that_nobody_waited_for_is_found(before: leftovers.Belongings) -> None:
    child = subprocess.Popen(_SLEEPER)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    (left,) = _added(before)
    child.wait()
    assert "zombie" in left


def test_a_file_that_another_program_has_in_shared_memory_is_not_the_tests(before: leftovers.Belongings) -> None:
    segment = shared_memory.SharedMemory(create=True, size=4096)
    try:
        assert _added(before) == []
    finally:
        segment.close()
        segment.unlink()


def test_a_directory_in_the_temporary_directory_is_found(before: leftovers.Belongings) -> None:
    with tempfile.TemporaryDirectory(prefix="blobfeed-") as directory:
        assert _added(before) == [f"temporary file {Path(directory).name}"]
    assert _added(before) == []


def test_an_open_descriptor_is_found(tmp_path: Path) -> None:
    before = leftovers.descriptors()
    with (tmp_path / "open").open("w"):
        (left,) = leftovers.opened_since(before)
    assert str(tmp_path / "open") in left
    assert leftovers.opened_since(before) == []


def test_an_orphan_is_found_though_it_is_no_child() -> None:
    pid = int(
        subprocess.run([sys.executable, "-S", "-c", _ORPHANER], capture_output=True, check=True, text=True).stdout
    )
    try:
        assert leftovers.orphans() == [pid]
    finally:
        leftovers.kill([pid])
    assert wait_until_none(lambda: [str(orphan) for orphan in leftovers.orphans()], DEADLINE_S) == []


def test_waiting_ends_at_the_deadline_with_what_is_left() -> None:
    start = time.monotonic()
    assert wait_until_none(lambda: ["something"], 0.05) == ["something"]
    assert time.monotonic() - start >= 0.05


def test_a_run_ends_though_a_test_has_ended_its_worker(tmp_path: Path) -> None:
    for name, body in {"a": "os._exit(1)", "b": "pass", "c": "pass"}.items():
        (tmp_path / f"test_{name}.py").write_text(f"import os\ndef test_one(): {body}\ndef test_two(): pass\n")
    options = ["-c", str(_ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "no:cacheprovider", "-n", "2"]
    command = [sys.executable, "-P", "-m", "pytest", *options, "--dist", "loadfile", "--no-loadscope-reorder"]
    run = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert "crashed while running 'test_a.py::test_one'" in run.stdout
