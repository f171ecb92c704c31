"""The names of pycaffe, for scripts and Python layers written for Caffe: `import blobfeed.caffe as caffe`.

If no Caffe is installed, importing this module also registers it as `caffe`, so that files with Python layers run
unchanged. A real Caffe is never hidden.
"""

# ruff: noqa: PLC0414 - an import as the same name is one for others
from __future__ import annotations

import sys

from .layers import standin
from .layers.caffe_base import caffe_exists
from .trainer import pycaffe as proto  # has caffe_pb2
from .trainer.layer_types import LAYER_TYPES
from .trainer.pycaffe import AdaDeltaSolver as AdaDeltaSolver
from .trainer.pycaffe import AdaGradSolver as AdaGradSolver
from .trainer.pycaffe import AdamSolver as AdamSolver
from .trainer.pycaffe import Classifier as Classifier
from .trainer.pycaffe import NesterovSolver as NesterovSolver
from .trainer.pycaffe import Net as Net
from .trainer.pycaffe import NetSpec as NetSpec
from .trainer.pycaffe import RMSPropSolver as RMSPropSolver
from .trainer.pycaffe import SGDSolver as SGDSolver
from .trainer.pycaffe import caffe_pb2
from .trainer.pycaffe import coord_map as coord_map
from .trainer.pycaffe import get_solver as get_solver
from .trainer.pycaffe import io as io
from .trainer.pycaffe import layers as layers
from .trainer.pycaffe import net_spec as net_spec
from .trainer.pycaffe import params as params
from .trainer.pycaffe import set_device as set_device
from .trainer.pycaffe import set_mode_cpu as set_mode_cpu
from .trainer.pycaffe import set_mode_gpu as set_mode_gpu
from .trainer.pycaffe import set_random_seed as set_random_seed
from .trainer.pycaffe import solver_count as solver_count
from .trainer.pycaffe import solver_rank as solver_rank
from .trainer.pycaffe import to_proto as to_proto

TRAIN, TEST = caffe_pb2.TRAIN, caffe_pb2.TEST


class Layer(standin.Layer):
    """The base class of Python layers written for Caffe: `data` and `diff` of their blobs are NumPy arrays."""

    takes_arrays = True


def layer_type_list() -> list[str]:
    """Return the layer types that a net may have."""
    return sorted(LAYER_TYPES)


__path__: list[str] = []  # a package, so that its modules can be imported by name
__version__ = "1.0.0"
"""The version of the Caffe that has these names."""

_MODULES = {
    "": sys.modules[__name__],
    ".coord_map": coord_map,
    ".io": io,
    ".net_spec": net_spec,
    ".proto": proto,
    ".proto.caffe_pb2": caffe_pb2,
}
for _name in (__name__, *(() if caffe_exists() else ("caffe",))):
    sys.modules |= {f"{_name}{end}": module for end, module in _MODULES.items()}
