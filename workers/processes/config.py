"""What the trainer hands to the assembler at start, through an inherited memory file.

A memory file and not a pipe: a pipe holds 64 KiB, so writing an index of megabytes would wait for the child to read,
and a child that died meanwhile would mean SIGPIPE, which an embedding program need not have ignored.
Only descriptors that the trainer itself made are read here, so unpickling runs no stranger's code; `recipe`, which
holds user code, stays packed until a loader needs it: nothing of the user's can bring the assembler down.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass

from ..loading.worker import WorkerSettings
from ..transport.ring import SlotLayout
from .supply import IndexedSupply, StreamSupply


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Inherited by the assembler; the loaders keep ring, board and errors."""

    trainer: int
    """pidfd of the trainer"""
    ring: int
    board: int
    errors: int

    def all(self) -> tuple[int, ...]:
        return (self.trainer, self.ring, self.board, self.errors)


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that assembler and loaders need to know."""

    descriptors: Descriptors
    sockets: str
    key: bytes
    layout: SlotLayout
    slots: int
    supply: IndexedSupply | StreamSupply
    recipe: bytes
    modules: tuple[str, ...]
    sys_path: tuple[str, ...]
    num_loaders: int | None
    """None: to be found out, between one and `max_loaders`."""
    max_loaders: int
    in_order: bool
    postprocess: bool
    worker: WorkerSettings
    max_bad_samples: int
    task_timeout_s: float
    seconds_per_row: float
    """As measured in setup on the first sample; a first guess for how to cut tasks."""

    def write(self) -> int:
        """A descriptor to pass to the child."""
        descriptor = os.memfd_create("blobfeed-config", os.MFD_CLOEXEC)
        with os.fdopen(os.dup(descriptor), "wb") as file:
            pickle.dump(self, file, protocol=pickle.HIGHEST_PROTOCOL)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor

    @staticmethod
    def read(descriptor: int) -> Config:
        with os.fdopen(descriptor, "rb") as file:
            config = pickle.load(file)
        if not isinstance(config, Config):
            raise TypeError(f"expected the trainer's Config on descriptor {descriptor}, got {type(config).__name__}")
        return config
