"""Libraries that not everybody needs: which of blobfeed's extras brings each."""

from __future__ import annotations

from importlib.util import find_spec

from .errors import ExtraMissing

_EXTRA_OF = {
    "cv2": "images",
    "keras": "keras",
    "lmdb": "lmdb",
    "plyvel": "leveldb",
    "tensorflow": "tensorflow",
    "torch": "torch",
}


def is_installed(library: str) -> bool:
    """Whether `library` can be found; it is not imported."""
    return find_spec(library) is not None


def need(library: str, what: str) -> None:
    """Raises ExtraMissing unless `library` is installed, which `what` cannot do without."""
    if not is_installed(library):
        raise ExtraMissing(
            f"{what} needs {library}, which is not installed: pip install 'blobfeed[{_EXTRA_OF[library]}]'"
        )
