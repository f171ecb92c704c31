"""The plan of a run: one frozen object, made in the trainer and sent whole to the assembler and the loaders."""

from __future__ import annotations

from .batch import Batch
from .locating import Place, locate
from .plan import Plan, Position, max_loaders, usable_cores
from .planning import make_plan, open_declared
from .state import State
from .trial import decoded_sample, drawn_epoch, made_batch, make_one_sample, postprocessed_batch
