"""zarr's thread and its descriptors stay for as long as the process does: they are to be there before a test."""

from __future__ import annotations

import zarr

zarr.create_array({}, shape=(1,), dtype="u1")
