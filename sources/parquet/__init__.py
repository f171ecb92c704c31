"""Parquet files and Arrow's, as Hugging Face's data sets are stored: row groups and record batches are chunks."""

from __future__ import annotations

from .forms import form_of
from .values import Values
