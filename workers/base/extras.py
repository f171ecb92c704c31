"""Libraries that not everybody needs: which of blobfeed's extras brings each."""

from __future__ import annotations

from importlib.util import find_spec

from .errors import ExtraMissing

EXTRAS = {
    "cv2": ("images", "pictures in lists, folders and LMDB"),
    "deflate": ("compression", "fast reading of gzip chunks"),
    "fsspec": ("cloud", "sources at hdfs:// and the like"),
    "hdf5plugin": ("compression", "HDF5 files that are compressed by blosc, lz4"),
    "keras": ("keras", "KerasDataset"),
    "lmdb": ("lmdb", "Caffe's LMDB"),
    "numba": ("fast", "compiled conversion at delivery"),
    "numcodecs": ("compression", "fast reading of HDF5 chunks with byte shuffle, Fletcher's checksum or zstd"),
    "obstore": ("cloud", "sources at s3://, gs://, az://, https://"),
    "plotly": ("report", "blobfeed report"),
    "ray": ("ray", "loaders on other machines"),
    "simplejpeg": ("images", "the fastest decoding of JPEG"),
    "tensorboard": ("tensorboard", "blobfeed train --tensorboard"),
    "tensorflow": ("tensorflow", "TensorFlowDataset"),
    "textual_image": ("report", "contact sheets in the terminal"),
    "torch": ("torch", "training Caffe nets, readers for torch, delivery to CUDA"),
    "zarr": ("zarr", "zarr arrays"),
}
"""By library, the extra that brings it, and what it is for."""


def is_installed(library: str) -> bool:
    """Whether `library` can be found; it is not imported."""
    return find_spec(library) is not None


def need(library: str, what: str) -> None:
    """Raises ExtraMissing unless `library` is installed, which `what` cannot do without."""
    if not is_installed(library):
        raise ExtraMissing(
            f"{what} needs {library}, which is not installed: pip install 'blobfeed[{EXTRAS[library][0]}]'"
        )
