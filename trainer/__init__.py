"""The embedded trainer, for where no Caffe is installed: prototxt → a net of torch modules → solver → snapshots.

Reading a prototxt needs no torch; `trainer.graph`, `trainer.solver` and what they import do.
"""

if __name__ != "blobfeed.trainer":
    raise ImportError(f"import blobfeed.trainer: as {__name__!r} its classes would exist a second time")
