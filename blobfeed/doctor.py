"""`blobfeed doctor`: relevant facts about this machine and this Python, to be pasted into a bug report."""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from . import __version__
from .workers.base import EXTRAS, is_installed
from .workers.plan import usable_cores
from .workers.processes import find_interpreter
from .workers.transport import available_memory

_LIMITS = {
    "open files": (resource.RLIMIT_NOFILE, 1, ""),
    "processes": (resource.RLIMIT_NPROC, 1, ""),
    "locked memory": (resource.RLIMIT_MEMLOCK, 2**20, " MiB"),
    "address space": (resource.RLIMIT_AS, 2**20, " MiB"),
}

_EXTENSIONS = {
    "blobfeed.workers.loading._convert": "conversion in one pass: install blobfeed again where there is a C compiler",
    "blobfeed.sources.images._crop": "decoding crops alone: install blobfeed again beside libjpeg-turbo's headers",
}


def report() -> str:
    """Return the whole report, a fact on each line."""
    parts = {"blobfeed": _versions, "system": _system, "limits": _limits, "GPU": _gpu, "what is missing": _missing}
    lines = (line for title, part in parts.items() for line in (f"{title}:", *(f"  {fact}" for fact in _known(part))))
    return "\n".join(lines)


def _known(part: Callable[[], Iterator[str]]) -> Iterator[str]:
    try:
        yield from part()
    except Exception as error:  # the report must show what is broken
        yield f"unknown: {type(error).__name__}: {error}"


def _versions() -> Iterator[str]:
    yield f"blobfeed {__version__}, in {Path(__file__).parent}"
    yield f"Python {platform.python_version()} ({platform.python_implementation()}), {sys.executable}"
    ours: list[str] = []
    with suppress(PackageNotFoundError):  # a checkout works without being installed
        ours = [each for each in requires("blobfeed") or () if not re.search(r"extra == .(test|docs)", each)]
    for name in sorted({re.split(r"[^\w-]", each)[0] for each in ours}):
        with suppress(PackageNotFoundError):
            yield f"{name} {version(name)}"
    yield f"children run in {find_interpreter()}"


def _system() -> Iterator[str]:
    about = platform.uname()
    yield f"{about.system} {about.release} {about.machine}, {' '.join(platform.libc_ver())}"
    yield f"{os.cpu_count()} cores, {usable_cores()} of them usable here"
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield f"memory: {memory / 2**30:,.1f} GiB, available: {available_memory() / 2**30:,.1f} GiB"
    group = f"/sys/fs/cgroup{_text('/proc/self/cgroup').rpartition(':')[2]}"
    for name in ("memory.max", "cpu.max", "pids.max"):
        yield f"cgroup {name}: {_text(f'{group}/{name}')}"
    yield f"huge pages of shared memory: {_text('/sys/kernel/mm/transparent_hugepage/shmem_enabled')}"


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "unknown"


def _limits() -> Iterator[str]:
    for what, (number, unit, name) in _LIMITS.items():
        soft, hard = (
            "no limit" if value == resource.RLIM_INFINITY else f"{value // unit:,}{name}"
            for value in resource.getrlimit(number)
        )
        yield f"{what}: {soft}, at most {hard}"


def _gpu() -> Iterator[str]:
    if not is_installed("torch"):
        yield "torch is not installed, so nothing is known"
        return
    import torch

    yield f"torch {torch.__version__}, built for CUDA {torch.version.cuda or '(none)'}"
    count = torch.cuda.device_count()
    for number in range(count):
        found = torch.cuda.get_device_properties(number)
        yield (
            f"device {number}: {found.name}, {found.total_memory / 2**30:.1f} GiB, "
            f"{found.multi_processor_count} multiprocessors, compute capability {found.major}.{found.minor}"
        )
    if not count:
        yield "torch finds no CUDA device"
    yield f"driver: {_text('/proc/driver/nvidia/version')}"


def _missing() -> Iterator[str]:
    missing = [library for library in EXTRAS if not is_installed(library)]
    for library in missing:
        extra, what = EXTRAS[library]
        yield f"{library}, for {what}: pip install 'blobfeed[{extra}]'"
    for module, what in _EXTENSIONS.items():
        try:
            import_module(module)
        except ImportError as error:
            missing.append(module)
            yield f"{what} ({error})"
    if not missing:
        yield "nothing: every extra and extension is installed"
