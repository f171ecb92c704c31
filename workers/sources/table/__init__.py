"""A table of samples: columns over stores. A new kind of source is a function that returns a Table."""

from ..files.store import Store
from .columns import Column, Field, Lent, RecordError, Records, Resident, put_sample
from .memory import Memory
from .table import Table

__all__ = ["Column", "Field", "Lent", "Memory", "RecordError", "Records", "Resident", "Store", "Table", "put_sample"]
