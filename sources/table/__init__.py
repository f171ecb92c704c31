"""A table of samples: columns over stores. A new kind of source is a function that returns a Table."""

from ..files import Store
from .columns import Column, Field, NeedsOfRow, OutRows, RecordError, Records, Resident, put_bytes, put_text
from .memory import Memory
from .naming import learnt_of, naming
from .table import Table
from .windows import Sequences, WindowOptions
