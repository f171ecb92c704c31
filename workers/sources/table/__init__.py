"""A table of samples: columns over stores. A new kind of source is a function that returns a Table."""

from ..files.store import Store
from .columns import Column, Field, Lent, RecordError, Records, Resident
from .memory import Memory
from .naming import naming_first
from .table import Table
from .windows import WindowOptions

__all__ = [
    "Column",
    "Field",
    "Lent",
    "Memory",
    "RecordError",
    "Records",
    "Resident",
    "Store",
    "Table",
    "WindowOptions",
    "naming_first",
]
