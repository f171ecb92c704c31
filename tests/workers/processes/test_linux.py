"""The kernel's calls, with a Python that has them and with one that was built without them."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from blobfeed.workers.transport import linux

from blobfeed import BlobfeedError
from tests.support.trainers import trainer

LACKING = """
import fcntl, os, signal
for module in fcntl, os, signal:
    for name in dir(module):
        if name.startswith(("memfd_", "MFD_", "pidfd_", "RWF_", "F_SEAL", "F_ADD_SEALS", "F_GET_SEALS")):
            delattr(module, name)
"""
CALLS: list[tuple[ModuleType, str]] = [(os, "memfd_create"), (os, "pidfd_open"), (signal, "pidfd_send_signal")]


@pytest.fixture(params=["with them", "without them"])
def _python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without them":
        for module, name in CALLS:
            monkeypatch.delattr(module, name)


@pytest.mark.usefixtures("_python")
def test_the_calls_do_the_same_in_every_python() -> None:
    file = linux.memfd_create("test", linux.MFD_CLOEXEC | linux.MFD_ALLOW_SEALING)
    with os.fdopen(file):
        assert "/memfd:test" in str(Path(f"/proc/self/fd/{file}").readlink())
        assert not os.get_inheritable(file)
        fcntl.fcntl(file, linux.F_ADD_SEALS, linux.F_SEAL_GROW | linux.F_SEAL_SHRINK | linux.F_SEAL_SEAL)
        with pytest.raises(PermissionError):
            os.ftruncate(file, 1)
    process = subprocess.Popen(["sleep", "1000"])
    handle = linux.pidfd_open(process.pid)
    try:
        assert not os.get_inheritable(handle)
        linux.pidfd_send_signal(handle, signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM
        with pytest.raises(ProcessLookupError):
            linux.pidfd_send_signal(handle, signal.SIGTERM)
    finally:
        process.kill()
        process.wait()
        os.close(handle)


def test_the_numbers_are_those_of_the_headers() -> None:
    for name in ("F_ADD_SEALS", "F_SEAL_GROW", "F_SEAL_SHRINK", "F_SEAL_SEAL"):
        assert getattr(linux, name) == getattr(fcntl, name)
    for name in ("MFD_CLOEXEC", "MFD_ALLOW_SEALING"):
        assert getattr(linux, name) == getattr(os, name)


def test_a_machine_whose_number_is_not_known_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(linux, "_MEMFD_CREATE", {"vax": 1})
    with pytest.raises(BlobfeedError, match=rf"{os.uname().machine}.* vax .*os\.memfd_create"):
        linux.memfd_create("test")


REFUSED = """
import errno

def refuse(*_):
    raise OSError(errno.{number}, os.strerror(errno.{number}))

{module}.{name} = refuse
subprocess.Popen = None  # no process may be started
try:
    pipeline(num_loaders={loaders}).take()
except BlobfeedError as error:
    say(error)
"""


@pytest.mark.parametrize(
    ("module", "name", "number"),
    [(*call, number) for call, number in zip(CALLS, (errno.ENOSYS, errno.EPERM, errno.ENOSYS), strict=True)],
)
def test_a_call_that_the_kernel_refuses_is_named_before_a_process_starts(
    tmp_path: Path, module: ModuleType, name: str, number: int
) -> None:
    body = REFUSED.format(module=module.__name__, name=name, number=errno.errorcode[number], loaders=1)
    with trainer(tmp_path, body) as run:
        line = run.next_line()
    assert line.startswith(f"{name} is refused by Linux {os.uname().release}"), line
    assert f": {os.strerror(number)}; blobfeed needs Linux 5.3 or later" in line


WITHOUT_THEM = """
def decode(sample, rng):
    assert not hasattr(os, "pidfd_open") and not hasattr(os, "memfd_create")
    if sample.index == 7 and os.environ.get("BLOBFEED_ROLE") == "loader" and not (HERE / "hung").exists():
        (HERE / "hung").touch()
        time.sleep(1000)
    return sample["data"]

reader = BatchReader({{"arrays": {{"data": np.arange(8)}}}}, batch_size=4, num_loaders={loaders}, epochs=1)
say(sum(int(batch["data"].sum()) for batch in reader))
with pipeline(decode, num_loaders={loaders}, task_timeout_s=3.0) as feed:
    steps(feed, 5)
    while {loaders} and not feed.statistics().loader_deaths:  # the loader that hangs is killed
        time.sleep(0.01)
say("done")
"""


@pytest.mark.parametrize("loaders", [0, 2])
def test_batches_come_with_a_python_that_was_built_without_them(tmp_path: Path, loaders: int) -> None:
    (tmp_path / "sitecustomize.py").write_text(LACKING)
    body = WITHOUT_THEM.format(loaders=loaders)
    with trainer(tmp_path, body, env={"PYTHONPATH": str(tmp_path)}) as run:
        run.expect("28")
        run.expect("done")
        assert run.end() == 0
