"""Shortens the tracebacks that users see to their own lines and the message, without this package's frames."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from .errors import BlobfeedError

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

_PACKAGE = __name__.partition(".")[0]


def shorten(error: BaseException) -> None:
    """Remove this package's frames from `error`, which the public function then raises again by a bare `raise`.

    That alone adds no frame of the function itself, in which users would read our `raise` below their own line.

    A BlobfeedError keeps no frame, since its text says what happened, and only a cause that was set on purpose. Any
    other exception keeps its frames from the first one outside this package, such as a hook's. If all frames are this
    package's, the fault is here, and they stay; those of a cause go if the BlobfeedError has its text.
    """
    if isinstance(error, BlobfeedError):
        error.with_traceback(None)
        error.__suppress_context__ = True
        cause = error.__cause__
        if cause is not None:
            shorten(cause)
            if str(cause) and str(cause) in str(error) and _from_outside(cause.__traceback__) is None:
                cause.with_traceback(None)
    else:
        # No plain assignment: an exception that is a frozen dataclass refuses that.
        error.with_traceback(_from_outside(error.__traceback__) or error.__traceback__)


def shortens_tracebacks(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Wraps a public function and shortens the traceback of its exceptions."""

    @functools.wraps(function)
    def call(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        __tracebackhide__ = True
        try:
            return function(*args, **kwargs)
        except Exception as error:
            shorten(error)
            raise

    return call


def _from_outside(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame outside this package on."""
    while traceback is not None and _is_ours(traceback):
        traceback = traceback.tb_next
    return traceback


def _is_ours(traceback: TracebackType) -> bool:
    return str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE
