"""The commands beside training: they look into data and files, measure them, convert them and show batches.

A net prototxt needs torch. Nothing here is imported by a training run.
"""

if __name__ != "blobfeed.tools":
    raise ImportError(f"import blobfeed.tools: as {__name__!r} its classes would exist a second time")
