"""The names in scripts written for pycaffe: nets and solvers with NumPy arrays, io, NetSpec; see blobfeed.caffe."""

from __future__ import annotations

from .classifier import Classifier
from .coord_map import CropError, UndefinedMapException, coord_map_from_to, crop
from .mode import set_device, set_mode_cpu, set_mode_gpu, set_random_seed, solver_count, solver_rank
from .net import Net
from .net_spec import NetSpec, layers, params, to_proto
from .solvers import (
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    NesterovSolver,
    RMSPropSolver,
    SGDSolver,
    Solver,
    get_solver,
)
