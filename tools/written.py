"""Files that commands write: their names, and what keeps them from being written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..workers.base import ParameterError


def require_ending(path: Path, endings: Sequence[str], what: str) -> None:
    """Raises ParameterError, beginning with `what`, if `path` has an ending that is not in `endings`.

    No viewer would show an SVG called net.png, and a file meant for another argument would be overwritten.
    """
    if path.suffix.lower() not in ("", *endings):
        raise ParameterError(f"{what}: name a file that ends in {endings[0]}")


@contextmanager
def writing(what: object) -> Iterator[None]:
    """Turns an OSError of the block, such as of a full disk, into a ParameterError that names the file `what`."""
    try:
        yield
    except OSError as error:
        raise ParameterError(
            f"{what} cannot be written: {error.strerror or error}: remove the cause, or name another file"
        ) from None
