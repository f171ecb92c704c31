"""Maps of memory that Python's mmap cannot make, since it asks for no address: huge pages, files side by side.

Reading the ring in pages of 4 KiB costs the trainer a fifth to a third of its copy: it misses the address translation
cache all the time. A memory file gets no huge pages by itself if the system says `shmem_enabled: never`, the usual
setting, but MADV_COLLAPSE (Linux 6.1) makes one of all that lies in its range, on request, whatever the setting. Other
processes profit if they have mapped it at a multiple of the huge page's size, which mmap does not choose by itself.

Small pages put together later had to be copied, in the first second of the loaders: of 80 MB they took 18 ms to
allocate, 20 to map, and 25 to 170 to put together, where huge ones from the start take 4 in all.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import time
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from .linux import last_error, libc

HUGE_PAGE = 2 << 20
"""Bytes, on x86-64 and on 64-bit Arm with 4 KiB pages."""

_GRACE_S = 0.02
_SMALL_S = 0.0005
"""The time for as many small pages. Where the kernel has to move others' memory first, a huge one may take longer."""

_MADV_POPULATE_WRITE = 23
_MADV_COLLAPSE = 25
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_PROT_NONE = 0

libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_FAILED = ctypes.c_void_p(-1).value


class _Map:
    """`size` mapped bytes; unmapped when the last array on them is gone: one that somebody still holds stays valid."""

    def __init__(self, address: int, size: int, *, read_only: bool) -> None:
        self._address, self._size = address, size
        # NumPy keeps a reference to the object whose memory this describes, and so do all views.
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, read_only), "version": 3}

    def __getstate__(self) -> NoReturn:
        raise TypeError("a map of memory cannot be copied or pickled: the end of its copy would unmap it")

    def __del__(self) -> None:
        # A constructor that raised has left nothing to unmap.
        if address := getattr(self, "_address", None):
            libc.munmap(address, self._size)

    def array(self) -> NDArray[np.uint8]:
        """All of it, shape (size,)."""
        return np.asarray(self)


class SharedMap(_Map):
    """`size` bytes of the memory file `descriptor` from `offset` on, shared and writable; raises OSError."""

    def __init__(self, descriptor: int, size: int, offset: int = 0) -> None:
        super().__init__(_map_aligned(descriptor, size, offset), size, read_only=False)

    def populate(self) -> None:
        """Map all pages at once, if the kernel can (Linux 5.14); else they are mapped as they are touched."""
        libc.madvise(self._address, self._size, _MADV_POPULATE_WRITE)

    def allocate_huge(self) -> None:
        """Allocate it in huge pages, from the beginning on, while the kernel makes some and takes no longer than usual.

        What is left, all of it where the kernel cannot do this, takes small pages, which are as right.
        """
        begun = time.monotonic()
        for made, offset in enumerate(range(0, self._size - HUGE_PAGE + 1, HUGE_PAGE)):
            address = self._address + offset
            if time.monotonic() - begun > _GRACE_S + made * _SMALL_S:
                return
            # The kernel fills the rest of a range with zeros, but leaves one alone in which there is nothing.
            if libc.madvise(address, mmap.PAGESIZE, _MADV_POPULATE_WRITE):
                return
            if libc.madvise(address, HUGE_PAGE, _MADV_COLLAPSE) and ctypes.get_errno() != errno.EAGAIN:
                return  # but for a page that is just being looked at, they all fail


class AddressRange(_Map):
    """`size` bytes of address space into which parts of files are mapped, for reading; raises OSError.

    They lie as one array, and any of them can be reached by one number; what no file was mapped to must not be touched.
    It takes no memory, and no descriptor: a map outlives the descriptor that it was made by.
    """

    def __init__(self, size: int) -> None:
        super().__init__(_reserved(size), size, read_only=True)

    def map_file(self, at: int, descriptor: int, offset: int, size: int) -> None:
        """Map `size` bytes of the file, from `offset` on, at byte `at` of the range; both are multiples of a page."""
        _checked(libc.mmap(self._address + at, size, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, descriptor, offset))

    def advise(self, at: int, size: int, advice: int) -> None:
        """Say to the kernel what to expect of a part that begins with a page: mmap.MADV_RANDOM, mmap.MADV_NORMAL."""
        libc.madvise(self._address + at, size, advice)


def _map_aligned(descriptor: int, size: int, offset: int) -> int:
    address, protection = _reserved(size), mmap.PROT_READ | mmap.PROT_WRITE
    try:
        return _checked(libc.mmap(address, size, protection, mmap.MAP_SHARED | _MAP_FIXED, descriptor, offset))
    except OSError:
        libc.munmap(address, size)
        raise


def round_up(value: int, multiple: int) -> int:
    """Return the least multiple of `multiple` that is not below `value`."""
    return -(-value // multiple) * multiple


def _reserved(size: int) -> int:
    """Reserve address space from a multiple of a huge page on: reserve more than needed, and give the rest back."""
    how, most = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, size + HUGE_PAGE
    found = _checked(libc.mmap(None, most, _PROT_NONE, how, -1, 0))
    address = round_up(found, HUGE_PAGE)
    if address > found:
        libc.munmap(found, address - found)
    end = address + round_up(size, mmap.PAGESIZE)
    libc.munmap(end, found + most - end)
    return address


def _checked(address: int | None) -> int:
    if address is None or address == _MAP_FAILED:
        raise last_error("mmap")
    return address
