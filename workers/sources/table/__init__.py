"""A table of samples: columns over stores. A new kind of source is a function that returns a Table."""

from ..files import Store
from .columns import Column, Field, OutRows, RecordError, Records, Resident, Views, put_text
from .memory import Memory
from .naming import naming_first
from .table import Table
from .windows import WindowOptions
