"""The configuration that the trainer sends to the assembler at start, through an inherited memory file.

A pipe would hold only 64 KiB: writing an index of megabytes would wait for the child to read. If the child died
meanwhile, the trainer would get SIGPIPE, which an embedding program may not ignore. Only descriptors that the trainer
itself made are read here, so unpickling runs no foreign code.
"""

from __future__ import annotations

import mmap
import os
import pickle
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import zmq

from ..api import without_source
from ..plan import Plan
from ..transport import Levels, LoaderStatus, StatusBoard, log_to_trainer, memfd_create
from .interpreter import child_environment
from .loader_pool import Home
from .watch import Trace, Watch

_ALIGNMENT = 64
"""The alignment of arrays in bytes: a cache line, which suffices for any instruction."""


class Descriptors(msgspec.Struct, frozen=True):
    """The descriptors that the assembler, the nursery and the loaders inherit; -1 for none."""

    trainer: int
    """pidfd of the trainer"""
    ring: int
    board: int
    errors: int
    drawn: int = -1
    """the memory file with the sampler's draws"""
    source: tuple[int, ...] = ()
    """those that the source needs"""
    sampler: tuple[int, ...] = ()
    """those that the sampler needs"""
    trace: int = -1
    """the file to which all processes append their spans"""

    @property
    def of_loaders(self) -> tuple[int, ...]:
        memory = (self.ring, self.board, self.drawn, self.trace)
        every = (self.trainer, self.errors, *memory, *self.source, *self.sampler)
        return tuple(descriptor for descriptor in every if descriptor >= 0)


RemoteHome = Callable[["Config", zmq.Poller], Home]


class Config(msgspec.Struct, frozen=True):
    """The plan, and the connections to the trainer."""

    plan: Plan
    descriptors: Descriptors
    sockets: str
    sys_path: tuple[str, ...]
    log_levels: Levels
    remote_home: RemoteHome | None = None
    """Makes the home of loaders on other machines, in a run that has some: this room knows no cluster."""
    watch: Watch = Watch()

    def status(self, line: int) -> LoaderStatus:
        """Return a line of the status board for the process that writes it."""
        return StatusBoard(self.descriptors.board).line(line)

    def trace(self) -> Trace | None:
        """Return the trace for a process that writes it; None if there is no trace."""
        return self.watch.trace(self.descriptors.trace) if self.descriptors.trace >= 0 else None

    def start(
        self, interpreter: str, module: str, *arguments: object, inherited: tuple[int, ...] = (), **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a child that runs `module`, with a descriptor for `adopt` and `arguments` on its command line.

        `inherited`: descriptors that it needs besides the loaders'. Raises any exception of pickling user code.
        """
        descriptor = self.pack()
        try:
            return subprocess.Popen(
                [interpreter, "-P", "-m", module, str(descriptor), *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                pass_fds=(descriptor, *inherited, *self.descriptors.of_loaders),
                env=child_environment(),
                **options,
            )
        finally:
            os.close(descriptor)

    def pack(self) -> int:
        """Return the descriptor of a new memory file with this, for `adopt`.

        Raises any exception of pickling user code.
        """
        sent = msgspec.structs.replace(self, plan=replace(self.plan, parameters=without_source(self.plan.parameters)))
        buffers: list[pickle.PickleBuffer] = []
        packed = pickle.dumps(sent, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
        descriptor = memfd_create("blobfeed-config")
        try:
            _write_parts(descriptor, [memoryview(packed), *(buffer.raw() for buffer in buffers)])
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    @staticmethod
    def adopt(descriptor: int) -> tuple[Config, socket.socket]:
        """Return the parent's Config and the error channel.

        From now on this process logs to the trainer and has its module search path. The caller keeps the channel: the
        log's handler holds it too, but user code may remove that.
        """
        packed, *buffers = _map_parts(descriptor)
        config: Config = pickle.loads(packed, buffers=buffers)
        errors = socket.socket(fileno=config.descriptors.errors)
        log_to_trainer(errors, config.log_levels)
        sys.path[:] = config.sys_path
        return config, errors


def _write_parts(descriptor: int, parts: list[memoryview]) -> None:
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(struct.pack(f"={1 + len(parts)}q", len(parts), *(part.nbytes for part in parts)))
        for part in parts:
            file.seek(-file.tell() % _ALIGNMENT, os.SEEK_CUR)
            file.write(part)


def _map_parts(descriptor: int) -> list[memoryview]:
    """Map the parts and close `descriptor`. Processes forked from this one share the memory until they write to it."""
    mapped = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    os.close(descriptor)
    (count,) = struct.unpack_from("=q", mapped)
    parts, end = [], 8 * (1 + count)
    for size in struct.unpack_from(f"={count}q", mapped, 8):
        begin = end + -end % _ALIGNMENT
        end = begin + size
        parts.append(mapped[begin:end])
    return parts
