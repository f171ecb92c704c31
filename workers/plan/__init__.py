"""The plan of a run: one frozen object, made in the trainer and sent whole to the assembler and the loaders."""

from __future__ import annotations

from .batch import Batch, SlotTops
from .locating import Place, locate
from .plan import Plan, Position, max_loaders, raise_unordered, usable_cores
from .state import State
from .trial import decoded_sample, drawn_epoch, made_batch, make_one_sample, on_trial, postprocessed_batch
