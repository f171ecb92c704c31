"""What the commands do with data before training: look into it, measure it, pack it, show what the net will see.

A net prototxt needs torch. Nothing here is imported by a training run.
"""

if __name__ != "blobfeed.tools":
    raise ImportError(f"import blobfeed.tools: as {__name__!r} its classes would exist a second time")
