"""Calls of the kernel that not every Python has.

CPython leaves out what the C library it was built with did not know. The Pythons of uv and conda are built with an old
one, so that they run everywhere; the kernel that they run on knows the calls.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
from types import ModuleType

from ..base import BlobfeedError

# linux/memfd.h and linux/fcntl.h, the same on all machines.
MFD_CLOEXEC, MFD_ALLOW_SEALING = 1, 2
F_ADD_SEALS = 1033
F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW = 1, 2, 4

_MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}
_PIDFD_SEND_SIGNAL, _PIDFD_OPEN = 424, 434

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.argtypes = [ctypes.c_long]
libc.syscall.restype = ctypes.c_long


def last_error(call: str) -> OSError:
    """Why `call` of the C library, the last one of this thread, has failed."""
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")


def memfd_create(name: str, flags: int = MFD_CLOEXEC) -> int:
    return _call(os, "memfd_create", _MEMFD_CREATE.get(os.uname().machine, -1), name.encode(), flags)


def seal(descriptor: int) -> None:
    """Let nobody change the memory file's size any more; raises OSError."""
    fcntl.fcntl(descriptor, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)


def pidfd_open(pid: int) -> int:
    return _call(os, "pidfd_open", _PIDFD_OPEN, pid, 0)


def pidfd_send_signal(handle: int, number: int) -> None:
    _call(signal, "pidfd_send_signal", _PIDFD_SEND_SIGNAL, handle, number, None, 0)


def _call(module: ModuleType, name: str, number: int, *arguments: object) -> int:
    """Raises BlobfeedError if the call itself is refused, else OSError."""
    try:
        if python := getattr(module, name, None):
            result: int = python(*arguments)
        elif (result := libc.syscall(number, *arguments)) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        here = os.uname()
        raise BlobfeedError(
            f"{name} is refused by Linux {here.release} on {here.machine}: {error.strerror}; blobfeed needs Linux 5.3 "
            "or later, a container whose seccomp profile allows the call, and on machines other than "
            f"{' and '.join(_MEMFD_CREATE)} a Python that has {module.__name__}.{name}"
        ) from error
