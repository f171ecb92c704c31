"""The net: layers wired to blobs, run forward and backward."""

from __future__ import annotations

from .graph import Net, go_back
from .model_files import (
    SNAPSHOT_FORMAT,
    array_of,
    is_hdf5,
    no_snapshot,
    read_torch,
    read_weights,
    tensor_of,
    tensors_of,
    torch_save,
    write_blobs,
    write_weights,
    write_whole,
)
from .stepwise import Stepwise
from .weights import WeightEntry
