"""Tracebacks of what users see: their own lines and the message, without the frames of this package between."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from .errors import BlobfeedError

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_Error = TypeVar("_Error", bound=BaseException)

_PACKAGE = __name__.partition(".")[0]


def shortened(error: _Error) -> _Error:
    """`error` without the frames of this package that led to it; to be raised again where the user has called.

    The text of a BlobfeedError says what happened, so it keeps no frame, and of other exceptions only a cause that was
    set on purpose. Another exception keeps its frames from the first one on that is not this package's, such as a
    hook's; if all are this package's, it is a fault here, and keeps them.
    """
    if isinstance(error, BlobfeedError):
        error.with_traceback(None)
        error.__suppress_context__ = True
        if error.__cause__ is not None:
            shortened(error.__cause__)
    else:
        # No plain assignment: an exception that is a frozen dataclass refuses that.
        error.with_traceback(_from_outside(error.__traceback__) or error.__traceback__)
    return error


def shortens_tracebacks(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Wraps a public function: what it raises is `shortened`."""

    @functools.wraps(function)
    def call(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        __tracebackhide__ = True
        try:
            return function(*args, **kwargs)
        except Exception as error:
            raise shortened(error)  # noqa: B904 - itself

    return call


def _from_outside(traceback: TracebackType | None) -> TracebackType | None:
    """The frames from the first one on that lies outside this package."""
    while traceback is not None and _is_ours(traceback):
        traceback = traceback.tb_next
    return traceback


def _is_ours(traceback: TracebackType) -> bool:
    return str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE
