"""The embedded trainer, for use without Caffe: prototxt → a torch module → solver → snapshots.

`Net` is the module. Only `trainer.prototxt` works without torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .net import Net as Net

if __name__ != "blobfeed.trainer":
    raise ImportError(f"import blobfeed.trainer: as {__name__!r} its classes would exist a second time")

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name != "Net":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .net import Net  # brings torch

        return Net
