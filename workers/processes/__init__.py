"""The child processes: assembler, nursery, loaders; starting them, and replacing dead ones."""

from __future__ import annotations

from .assembler import Assembler, run_assembler
from .config import Config, Descriptors, RemoteHome
from .fork_server import ForkServer, find_fork_server, run_fork_server
from .interpreter import child_environment, find_interpreter
from .loader import Tasks, exceptions_only, settle
from .loader_pool import Event, Home, LoaderPool
from .nursery import Nursery, NurseryDied
from .process import (
    WHERE_TO_LOOK,
    die_with,
    exit_in_words,
    is_stopped,
    leave_signals_to_trainer,
    loaders_that_fit,
    require_descriptors,
    require_threads,
    run_and_exit,
    send_signal,
    wait_for_exit,
)
from .spawn import AssemblerProcess, Shared, trainer_sys_path
from .watch import Watch
