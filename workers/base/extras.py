"""Optional libraries, and the extra of blobfeed that installs each."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec

from .errors import ExtraMissing

EXTRAS = {
    "cv2": ("images", "pictures in lists, folders and LMDB"),
    "deflate": ("compression", "fast reading of gzip chunks"),
    "fsspec": ("cloud", "sources at hdfs:// and the like"),
    "hdf5plugin": ("compression", "HDF5 files that are compressed by blosc, lz4"),
    "jax": ("jax", "JaxDataset"),
    "keras": ("keras", "KerasDataset"),
    "lmdb": ("lmdb", "Caffe's LMDB, the decoded cache"),
    "numcodecs": ("compression", "fast reading of HDF5 chunks with byte shuffle, Fletcher's checksum or zstd"),
    "obstore": ("cloud", "sources at s3://, gs://, az://, https://"),
    "plotly": ("report", "blobfeed report"),
    "pyarrow": ("parquet", "Parquet and Arrow files, Hugging Face's data sets"),
    "ray": ("ray", "loaders on other machines"),
    "simplejpeg": ("images", "the fastest decoding of JPEG"),
    "tensorboard": ("tensorboard", "blobfeed train --tensorboard"),
    "tensorflow": ("tensorflow", "TensorFlowDataset"),
    "textual_image": ("report", "contact sheets in the terminal"),
    "torch": ("torch", "training Caffe nets, readers for torch, delivery to CUDA"),
    "zarr": ("zarr", "zarr arrays"),
}
"""The extra that installs each library, and the use of the library."""


def is_in_program(symbol: str) -> bool:
    """Return true if the program, or a library that it is linked to, has the C function `symbol`."""
    return hasattr(ctypes.CDLL(None), symbol)


def is_installed(library: str) -> bool:
    """Return true if `library` can be found; does not import it."""
    return find_spec(library) is not None


def need(library: str, what: str) -> None:
    """Raises ExtraMissing if `library`, which `what` needs, is not installed."""
    if not is_installed(library):
        raise ExtraMissing(
            f"{what} needs {library}, which is not installed: pip install 'blobfeed[{EXTRAS[library][0]}]'"
        )
