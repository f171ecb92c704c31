"""The views of a running pipeline: intervals between two readings of its status board, the diagnosis, metrics, traces.

All of it is pure but for the files that it writes.
"""

from __future__ import annotations

if __name__ != "blobfeed.watching":
    raise ImportError(f"import blobfeed.watching: as {__name__!r} its classes would exist a second time")

from .diagnosis import STALL_SHARE, Blame, diagnose
from .intervals import Interval, PresentSample, SlowSample, interval, median_s
from .metrics import MetricsFile
from .trace import TraceFile, TrainerTrace, is_written, load
from .watch import Watching, with_files
