"""zarr arrays: their metadata by the zarr library, their chunks by our own reading."""
