"""The error of a sample that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from ...workers.base import ParameterError, SampleError, SampleTooLargeError, SourceError

_Learnt = TypeVar("_Learnt")


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
def naming(kind: str, held_in: str, index: int, where: str, path: str = "") -> Iterator[None]:
    """Turns errors of the block, which looks at a sample before there is a table, into errors that name it."""
    try:
        yield
    except Exception as error:
        named = sample_error(error, kind, held_in, index, where, path or where)
        raise named from named.__cause__


def learnt_of(look: Callable[[int], _Learnt], samples: Sequence[int] | range) -> tuple[_Learnt, list[SampleError]]:
    """Return what `look` learns of the first of `samples`, and no errors.

    If that one is bad, what it learns of one in the middle or the last one, and the error of the first: one bad sample
    must not keep a source from being opened. Raises that error if all three are bad.
    """
    errors: list[SampleError] = []
    for index in dict.fromkeys((samples[0], samples[len(samples) // 2], samples[-1])):
        try:
            return look(index), errors[:1]
        except SampleError as error:
            errors.append(error)
    raise errors[0]
