"""Errors that leave a hook inside a program that embeds Python.

The `caffe train` binary aborts on an exception and prints nothing of it: the layer has to say it itself, before.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import traceback
from collections.abc import Callable
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
    # What was printed before goes first: an abort throws away what Python still holds back.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    traceback.print_exception(error)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
