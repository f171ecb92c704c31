"""From parameters to a pipeline: opens the source, makes the plan, and gives the heart its plug-ins.

It is the one place that knows all of them. The heart gets a plan, and what else it needs by `Watch` and `Home`.
"""

from __future__ import annotations

from .locating import Place, locate
from .open_pipeline import open_pipeline
from .planning import make_plan, open_declared
from .trial import drawn_epoch, made_batch, postprocessed_batch
