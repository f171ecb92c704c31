"""The parts of every process of the pipeline: sources, orders, ring, messages, ledger, loaders, assembler, the handle.

Nothing in here imports torch: a loader starts in a fraction of a second and stays small.
"""

if __name__ != "blobfeed.workers":
    raise ImportError(f"import blobfeed.workers: as {__name__!r} its classes would exist a second time")
