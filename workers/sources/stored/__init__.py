"""Arrays at known places in files: contiguous, chunked, npy. Read without a library where the layout allows it."""
