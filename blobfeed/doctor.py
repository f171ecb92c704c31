"""`blobfeed doctor`: what this machine and this Python have that matters here, to be pasted into a bug report."""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from . import __version__
from .workers.base.extras import is_installed
from .workers.plan.plan import usable_cores
from .workers.processes.interpreter import find_interpreter
from .workers.transport.memory import available_memory

_LIMITS = {
    "RLIMIT_NOFILE": "open files",
    "RLIMIT_MEMLOCK": "locked memory",
    "RLIMIT_NPROC": "processes",
    "RLIMIT_AS": "address space",
}
_COUNTED = ("RLIMIT_NOFILE", "RLIMIT_NPROC")
_FEATURES = {
    "torch": ("torch", "training Caffe nets, readers for torch, delivery to CUDA"),
    "cv2": ("images", "pictures in lists, folders and LMDB"),
    "simplejpeg": ("images", "the fastest decoding of JPEG"),
    "lmdb": ("lmdb", "Caffe's LMDB"),
    "deflate": ("compression", "fast reading of gzip chunks"),
    "hdf5plugin": ("compression", "HDF5 files that are compressed by blosc, lz4, zstd"),
    "numba": ("fast", "compiled conversion at delivery"),
    "tensorboard": ("tensorboard", "blobfeed train --tensorboard"),
    "keras": ("keras", "KerasDataset"),
    "tensorflow": ("tensorflow", "TensorFlowDataset"),
}
_WHOLE_MEMORY = 1 << 62


def report() -> str:
    """All of it, a fact on each line."""
    parts = {"blobfeed": _versions, "system": _system, "limits": _limits, "GPU": _gpu, "what is missing": _missing}
    return "\n".join(line for title, part in parts.items() for line in (f"{title}:", *(f"  {fact}" for fact in part())))


def _versions() -> Iterator[str]:
    yield f"blobfeed {__version__}, in {Path(__file__).parent}"
    yield f"Python {platform.python_version()} ({platform.python_implementation()}), {sys.executable}"
    yield f"children run in {find_interpreter()}"
    for requirement in requires("blobfeed") or ():
        name = requirement.split(";")[0].split(" ")[0].split(">")[0].split("[")[0]
        if "extra ==" not in requirement:
            yield f"{name} {_version_of(name)}"


def _version_of(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "is not installed"


def _system() -> Iterator[str]:
    about = platform.uname()
    yield f"{about.system} {about.release} {about.machine}, {platform.libc_ver()[0]} {platform.libc_ver()[1]}"
    yield f"{os.cpu_count()} cores, {usable_cores()} of them usable here"
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield f"memory: {_size(memory)}, available: {_size(available_memory())}"
    for name in ("memory.max", "cpu.max", "pids.max"):
        if (limit := _of_cgroup(name)) is not None:
            yield f"cgroup {name}: {limit}"
    yield f"/dev/shm: {_free(Path('/dev/shm'))} free (blobfeed does not use it)"
    yield f"temporary folder: {os.environ.get('TMPDIR', '/tmp')}, {_free(Path(os.environ.get('TMPDIR', '/tmp')))} free"
    huge = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    yield f"huge pages of shared memory: {_chosen(huge)}"
    yield f"container: {_container()}"


def _of_cgroup(name: str) -> str | None:
    """What limits this process's own cgroup."""
    try:
        own = Path("/proc/self/cgroup").read_text().splitlines()[0].rpartition(":")[2]
        for folder in (Path("/sys/fs/cgroup") / own.lstrip("/"), Path("/sys/fs/cgroup")):
            if (folder / name).exists():
                return (folder / name).read_text().strip()
    except (OSError, IndexError):
        return None
    return None


def _free(folder: Path) -> str:
    try:
        about = os.statvfs(folder)
    except OSError as error:
        return f"nothing, {error.strerror},"
    return _size(about.f_bavail * about.f_frsize)


def _chosen(setting: Path) -> str:
    try:
        return setting.read_text().partition("[")[2].partition("]")[0] or "unknown"
    except OSError:
        return "unknown"


def _container() -> str:
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return "Docker or Podman"
    return "SLURM job" if "SLURM_JOB_ID" in os.environ else "none seen"


def _limits() -> Iterator[str]:
    for name, what in _LIMITS.items():
        soft, hard = resource.getrlimit(getattr(resource, name))
        yield f"{what}: {_limit(name, soft)}, at most {_limit(name, hard)}"
    yield f"tracing of other processes (ptrace_scope): {_setting('kernel/yama/ptrace_scope')}"
    yield f"pidfd: {'works' if _has_pidfd() else 'is missing: Linux 5.3 or later is needed'}"


def _setting(name: str) -> str:
    try:
        return Path(f"/proc/sys/{name}").read_text().strip()
    except OSError:
        return "no such setting"


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def _limit(name: str, value: int) -> str:
    if value == resource.RLIM_INFINITY:
        return "no limit"
    return f"{value:,}" if name in _COUNTED else _size(value)


def _gpu() -> Iterator[str]:
    if not is_installed("torch"):
        yield "torch is not installed, so nothing is known"
        return
    import torch

    yield f"torch {torch.__version__}, built for CUDA {torch.version.cuda or '(none)'}"
    if not torch.cuda.is_available():
        yield "torch finds no CUDA device"
    for number in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(number)
        yield f"device {number}: {found.name}, {_size(found.total_memory)}"
    driver = Path("/proc/driver/nvidia/version")
    if driver.exists():
        yield driver.read_text().splitlines()[0]


def _missing() -> Iterator[str]:
    missing = {library: told for library, told in _FEATURES.items() if not is_installed(library)}
    for library, (extra, what) in missing.items():
        yield f"{library}, for {what}: pip install 'blobfeed[{extra}]'"
    if not missing:
        yield "nothing: every extra is installed"


def _size(count: float) -> str:
    if count >= _WHOLE_MEMORY:
        return "no limit"
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"
