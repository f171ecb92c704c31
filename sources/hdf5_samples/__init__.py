"""HDF5 files with one data set for each sample, and its labels in attributes."""

from __future__ import annotations

from .headers import HeaderReader
from .progress import Progress
from .source import open_hdf5_samples
