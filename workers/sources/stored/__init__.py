"""Arrays at known offsets in files: contiguous, chunked, npy. Read without a library if the layout allows it."""
