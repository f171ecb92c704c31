"""The things that cross between processes: the ring, shared memory, the status board, messages, errors.

`links` is imported by its own name: it brings ZeroMQ, which pure code does without.
"""

from __future__ import annotations

from .control_groups import TasksLeft, processors_granted, tasks_left
from .error_channel import (
    ErrorInbox,
    Levels,
    RemoteError,
    SendError,
    describe,
    levels_of_trainer,
    log_to_trainer,
    pass_on,
    send_exception,
    sendable,
    summary_of,
    waiting,
)
from .linux import memfd_create, pidfd_open, pidfd_send_signal
from .memory import available_memory, give_back_freed_memory, keep_freed_memory, shortage
from .messages import (
    Announce,
    BadRow,
    ClusterCapacity,
    Done,
    Draw,
    Drawn,
    End,
    Failure,
    Fill,
    FromLoader,
    Give,
    LoaderEnded,
    LoaderStarted,
    Message,
    Ready,
    Release,
    Replaced,
    Run,
    StartFailed,
    Stop,
    ToAssembler,
    ToLoader,
    ToTrainer,
    WorkDone,
)
from .packed import Packed, content_digest, hook_name, pack, trial_copy, unsendable
from .ring import Ring, RowsLayout
from .shared_file import SharedFile, punch_hole
from .shared_map import HUGE_PAGE, AddressRange, SharedMap, round_up
from .status_board import (
    BUSY,
    MAGIC,
    NAME,
    SHORTEST_BITS,
    About,
    Activity,
    Count,
    Header,
    Line,
    LoaderState,
    LoaderStatus,
    StatusBoard,
    Unwatched,
)
