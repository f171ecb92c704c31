"""HDF5 files with one data set for each top: which files, which data sets, where their bytes lie."""

from __future__ import annotations

from .source import open_hdf5
