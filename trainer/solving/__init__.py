"""The solver: updates, learning rates, snapshots, scores, progress."""

from __future__ import annotations

from .caffe_files import is_caffe_state, read_state, write_state
from .lr_policy import POLICIES, learning_rate
from .progress import Event, Interval, StopRequest, Watcher, asked_by_signals, printing, tell
from .snapshot import Snapshot
from .solver import Solver, numbers_of
from .solver_file import choose_device, fix_threads, read_solver
from .training import run, score_net, train
from .updates import SGD, SOLVER_TYPES
