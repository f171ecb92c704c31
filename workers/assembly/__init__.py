"""The ledger, which assigns rows to loaders, and the assembler's other decisions. Pure."""

from __future__ import annotations

from .assembly import KILLED, OUT_OF_MEMORY, Assembly, Death, TaskSize
from .autoscale import AutoScale, Work, first_loaders
from .bad_samples import BadSamples
from .ledger import ENOUGH_TO_CONVICT, MAX_ASSIGNED, Evidence, Ledger, Task
from .slots import Slots
