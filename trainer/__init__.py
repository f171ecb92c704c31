"""The embedded trainer, for use without Caffe: prototxt → a net of torch modules → solver → snapshots.

Only `trainer.prototxt` works without torch.
"""

if __name__ != "blobfeed.trainer":
    raise ImportError(f"import blobfeed.trainer: as {__name__!r} its classes would exist a second time")
