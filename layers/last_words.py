"""Prints errors that leave a hook inside a program that embeds Python.

Many builds of the `caffe train` binary abort on an exception without printing it, so the layer must print it before.
Newer builds catch it and call PyErr_Print, which calls `sys.excepthook`. The layer cannot know in advance which build
it runs in. So the layer always prints, and the excepthook skips an error that was already printed.
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
"""The error printed last: hooks call one another through super(), and the same error leaves each of them."""


def is_embedded() -> bool:
    """Return true if another program embeds this interpreter: then Python has no command line of its own."""
    return not sys.orig_argv


def says_its_errors(hook: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Wraps a hook: in an embedded interpreter it prints its errors to standard error, with their traceback."""
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
    # Earlier output is flushed first, since an abort would discard Python's buffers.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    traceback.print_exception(error)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()


@functools.cache
def _pass_over_what_is_said() -> None:
    """Put a hook before `sys.excepthook`, once, that skips the error printed last."""
    print_error = sys.excepthook

    def call(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if error is not _said:
            print_error(kind, error, trace)

    sys.excepthook = call
