"""The error of a sample that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...base import ParameterError, SampleError, SampleTooLargeError, SourceError


def sample_error(cause: BaseException, kind: str, held_in: str, index: int, where: str, path: str) -> BaseException:
    """Return the error that names sample `index`, SampleError or SampleTooLargeError; for other errors `cause`.

    `held_in`: the file that the source is; `where`: the place of the sample; `path`: the file that the sample is.
    The error made has `cause` as its `__cause__`, and any other keeps its own: raise it `from` that.
    """
    named = cause
    if isinstance(cause, SampleTooLargeError):
        named = SampleTooLargeError(f"{where}: {cause}")
    elif isinstance(cause, OSError | ValueError | EOFError | MemoryError | SourceError) and not isinstance(
        cause, ParameterError
    ):
        named = SampleError(f"source {kind}: {where} cannot be read: {cause}", source=held_in, index=index, path=path)
    if named is not cause:
        named.__cause__ = cause
    return named


@contextmanager
def naming_first(kind: str, held_in: str, where: str, path: str = "") -> Iterator[None]:
    """Turns errors of the block, which looks at sample 0 before there is a table, into errors that name it."""
    try:
        yield
    except Exception as error:
        named = sample_error(error, kind, held_in, 0, where, path or where)
        raise named from named.__cause__
