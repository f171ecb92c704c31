"""The pipeline read without Caffe: plain loops, torch, Keras, TensorFlow, JAX; and delivery of a batch into blobs."""

from __future__ import annotations

if __name__ != "blobfeed.readers":
    raise ImportError(f"import blobfeed.readers: as {__name__!r} its classes would exist a second time")
