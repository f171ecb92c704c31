"""The plan of a run: one frozen object, made in the trainer and sent whole to the assembler and the loaders."""

from __future__ import annotations

from .batch import Batch, SlotTops
from .plan import Plan, Position, batches_per_task, max_loaders, raise_unordered, usable_cores
from .state import State
from .trial import decoded_sample, make_one_sample, on_trial
