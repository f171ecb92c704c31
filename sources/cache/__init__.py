"""The decoded cache: samples of any source or data set, kept decoded in a database on disk."""

from __future__ import annotations

from .database import Database
from .form import checked, sealed
from .source import CachedSource
