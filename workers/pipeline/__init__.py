"""The part of a run that the trainer's process holds: the pipeline and its feed."""

from __future__ import annotations

from .failures import Failed, what_loaders_do
from .feed import Held
from .pipeline import Pipeline
from .process_feed import ProcessFeed
