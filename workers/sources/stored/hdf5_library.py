"""h5py, kept apart from another HDF5 library in the same process; all modules import it from here.

A program that embeds Python may be linked to an HDF5 library of its own, as the `caffe train` binary is, and a wheel
of h5py brings another one. The dynamic linker would bind the wheel's symbols to the program's library, and the import
would end in "ValueError: Not a datatype". RTLD_DEEPBIND has each library look into its own dependencies first. It is
set only if there is such a library, since libraries loaded in this way do not see, for example, a replaced malloc.
"""

from __future__ import annotations

import ctypes
import os
import sys

import numpy as np  # noqa: F401 - h5py needs it too, and it is to be imported in the usual way

_before = sys.getdlopenflags()
if "h5py" not in sys.modules and hasattr(ctypes.CDLL(None), "H5open"):
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_DEEPBIND)
try:
    import h5py  # type: ignore[import-untyped]
finally:
    sys.setdlopenflags(_before)

__all__ = ["h5py"]
