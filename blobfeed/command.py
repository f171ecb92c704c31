"""The common parts of commands: their declaration, shared options, and messages of errors."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from .workers.base import BlobfeedError, ParameterError, need

_FAILED = 1
_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
_PIPE_CLOSED = 141  # 128 + SIGPIPE

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Common:
    """The options of every command that computes."""

    level: Annotated[int, typer.Option(help="The level for include and exclude rules of layers.")] = 0
    stage: Annotated[str, typer.Option(help="Stages for these rules, such as deploy,fast.", metavar="STAGES")] = ""
    gpu: Annotated[str | None, typer.Option(help="The CUDA device to compute on, such as 0, or all.")] = None
    device: Annotated[Device | None, typer.Option(help="Where to compute; by default CUDA if there is a device.")] = (
        None
    )
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, help="Threads of the CPU to compute with; by default OMP_NUM_THREADS, else all cores but one."
        ),
    ] = None

    def prepare(self, what: str) -> None:
        """Prepare torch, which `what` needs."""
        need("torch", what)
        from . import caffe  # noqa: F401  Python layers may import it
        from .trainer.solving import fix_threads

        fix_threads(self.threads)

    @property
    def stages(self) -> frozenset[str]:
        return frozenset(stage.strip() for stage in self.stage.split(",") if stage.strip())

    @property
    def where(self) -> str | None:
        """The requested device: "cuda:0" for `--gpu 0`, and for `--gpu all` if there is one."""
        if self.gpu is None:
            return self.device
        import torch

        if self.device is not None:
            raise typer.BadParameter("give --gpu or --device, not both")
        numbers = list(map(str, range(torch.cuda.device_count()))) if self.gpu == "all" else self.gpu.split(",")
        if len(numbers) > 1:
            raise ParameterError(
                f"--gpu {self.gpu}: training on several GPUs ({', '.join(numbers)}; NCCL in Caffe) is not supported; "
                "name one"
            )
        if self.gpu != "all" and not self.gpu.isdecimal():
            raise ParameterError(f"--gpu {self.gpu}: expected the number of a CUDA device, or all")
        return f"cuda:{int(numbers[0])}" if numbers else "cuda"


Group = Literal["Start here", "Data", "Nets and weights", "Runs"]
"""The headings of `blobfeed --help`, in this order."""


def command(group: Group, name: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a function as a command that prints an error as one message.

    Its options are the function's parameters, those of Common for a parameter `common`, and --debug.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = dict(inspect.signature(function, eval_str=True).parameters)
        common = inspect.signature(Common, eval_str=True).parameters if own.pop("common", None) else {}

        @functools.wraps(function)
        def run(*, debug: bool, **values: Any) -> None:
            with _one_message(debug):
                shared = {each: values.pop(each) for each in common}
                function(*([Common(**shared)] if common else ()), **values)

        debug = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_Debug)
        every = [*(each.replace(kind=debug.kind) for each in (*own.values(), *common.values())), debug]
        vars(run).update(__signature__=inspect.Signature(every))
        run.__annotations__ = {each.name: each.annotation for each in every}
        return app.command(name, rich_help_panel=group)(run)

    return register


_Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")]


def file_option(what: str) -> Any:
    """Return an option that names a file."""
    return typer.Option(help=what, metavar="FILE")


@contextlib.contextmanager
def _one_message(debug: bool) -> Iterator[None]:
    """Print an error that the user can fix as one message, and Ctrl-C as one word."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("blobfeed: interrupted", err=True)
        raise typer.Exit(_INTERRUPTED) from None
    except Exception as error:
        # An exception with a note comes from a user's layer, which the note names.
        if debug or not (isinstance(error, (BlobfeedError, OSError)) or hasattr(error, "__notes__")):
            raise
        if isinstance(error, BrokenPipeError) and not hasattr(error, "__notes__"):  # `| head` has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # otherwise Python complains at exit about unwritten output
            raise typer.Exit(_PIPE_CLOSED) from None
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
