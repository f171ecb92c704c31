"""What the commands share: options, and what is said of an error."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from .workers.base.errors import BlobfeedError

_FAILED = 1
_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
_NOBODY_READS = 141  # 128 + SIGPIPE

Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")]


def file_option(what: str) -> Any:
    """An option that names a file."""
    return typer.Option(help=what, metavar="FILE")


@contextlib.contextmanager
def one_message(debug: bool) -> Iterator[None]:
    """Turn an error that the user can do something about into its message, and Ctrl-C into silence."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("blobfeed: interrupted", err=True)
        raise typer.Exit(_INTERRUPTED) from None
    except Exception as error:
        # An exception with a note was raised by somebody's layer, and the note says by which.
        if debug or not (isinstance(error, (BlobfeedError, OSError)) or hasattr(error, "__notes__")):
            raise
        if isinstance(error, BrokenPipeError) and not hasattr(error, "__notes__"):  # `| head` has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python complains at its end of what it could not print
            raise typer.Exit(_NOBODY_READS) from None
        typer.echo(f"blobfeed: error: {_message(error)}", err=True)
        raise typer.Exit(_FAILED) from None


def _message(error: Exception) -> str:
    ours = isinstance(error, BlobfeedError)
    lines = [str(error) if ours else _named(error), *getattr(error, "__notes__", [])]
    because = error.__cause__
    if because is not None and str(because) not in str(error):
        lines.append(f"because of {_named(because)}")
    if not ours or because is not None:
        lines[-1] += " (--debug shows where)"
    return "\n  ".join(lines)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
