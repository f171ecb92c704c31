"""pycaffe's names, for scripts and Python layers written for Caffe: `import blobfeed.caffe as caffe`.

Where no Caffe is installed, importing this module makes `import caffe` give it too, so that files with Python layers
run as they are. A real Caffe is never hidden.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from .layers import standin
from .trainer import pycaffe as proto  # has caffe_pb2
from .trainer.layer_types.layer import LAYER_TYPES
from .trainer.pycaffe import caffe_pb2, io, net_spec
from .trainer.pycaffe.classifier import Classifier
from .trainer.pycaffe.mode import (
    has_nccl,
    set_device,
    set_mode_cpu,
    set_mode_gpu,
    set_multiprocess,
    set_random_seed,
    set_solver_count,
    set_solver_rank,
    solver_count,
    solver_rank,
)
from .trainer.pycaffe.net import Net
from .trainer.pycaffe.net_spec import NetSpec, layers, params, to_proto
from .trainer.pycaffe.solvers import (
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    NesterovSolver,
    RMSPropSolver,
    SGDSolver,
    get_solver,
)

__all__ = [
    "TEST",
    "TRAIN",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "Classifier",
    "Layer",
    "NesterovSolver",
    "Net",
    "NetSpec",
    "RMSPropSolver",
    "SGDSolver",
    "get_solver",
    "has_nccl",
    "io",
    "layer_type_list",
    "layers",
    "net_spec",
    "params",
    "proto",
    "set_device",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_multiprocess",
    "set_random_seed",
    "set_solver_count",
    "set_solver_rank",
    "solver_count",
    "solver_rank",
    "to_proto",
]

TRAIN, TEST = caffe_pb2.TRAIN, caffe_pb2.TEST


class Layer(standin.Layer):
    """The base class of Python layers written for Caffe: `data` and `diff` of their blobs are NumPy arrays."""

    takes_arrays = True


def layer_type_list() -> list[str]:
    """The layer types that a net may have."""
    return sorted(LAYER_TYPES)


def _is_installed() -> bool:
    # A folder of that name, such as one with Caffe's sources, can be imported too, but has no file.
    if "caffe" in sys.modules:
        return getattr(sys.modules["caffe"], "__file__", None) is not None
    found = find_spec("caffe")
    return found is not None and found.origin is not None


if not _is_installed():
    sys.modules |= {
        "caffe": sys.modules[__name__],
        "caffe.io": io,
        "caffe.net_spec": net_spec,
        "caffe.proto": proto,
        "caffe.proto.caffe_pb2": caffe_pb2,
    }
