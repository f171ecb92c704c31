"""The decoded cache: samples of any source, kept decoded in a file on disk."""

from __future__ import annotations

from .layout import PAGE_BYTES, STATES_AT, Layout, lay_out
from .source import CachedSource
