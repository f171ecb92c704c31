"""Errors that leave a hook inside a program that embeds Python.

Many builds of the `caffe train` binary abort on an exception and print nothing of it: the layer has to say it itself,
before. Newer ones catch it and call PyErr_Print, which leaves the printing to `sys.excepthook`. That is still to come
when the layer speaks, and cannot be foreseen. So the layer always speaks, and the hook passes over what was said.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

_said: BaseException | None = None
"""The error said last: hooks call one another through super(), and each lets the same error pass."""


def is_embedded() -> bool:
    """Whether another program runs this interpreter: then there is no command line that Python was started with."""
    return not sys.orig_argv


def says_its_errors(hook: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Wraps a hook: in an embedded interpreter its errors go to standard error, with their traceback, as they leave."""
    if not is_embedded():
        return hook

    @functools.wraps(hook)
    def call(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        try:
            return hook(*args, **kwargs)
        except BaseException as error:
            _say(error)
            raise

    return call


def _say(error: BaseException) -> None:
    global _said  # noqa: PLW0603 - hooks of all layers share one standard error
    if error is _said:
        return
    _said = error
    _pass_over_what_is_said()
    # What was printed before goes first: an abort throws away what Python still holds back.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    traceback.print_exception(error)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()


@functools.cache
def _pass_over_what_is_said() -> None:
    """Put a hook before `sys.excepthook`, once, that leaves out the error said last."""
    print_error = sys.excepthook

    def call(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if error is not _said:
            print_error(kind, error, trace)

    sys.excepthook = call
