"""The decoded cache: samples of any source, kept decoded in a database on disk."""

from __future__ import annotations

from .source import CachedSource
