"""The command `blobfeed`: train a net, test one, say the version."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from . import __version__
from .workers.base.errors import BlobfeedError

_FAILED = 1
_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it

app = typer.Typer(
    help="Train Caffe-style nets on data that other processes make ready.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Device(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


_Device = Annotated[Device | None, typer.Option(help="Where to compute; by default CUDA if there is a device.")]
_Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads of the CPU to compute with; by default all cores but one.")
]
_Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")]


class TorchMissing(BlobfeedError):
    """The trainer computes with PyTorch, which is not installed."""


@app.command()
def train(
    solver: Annotated[Path, typer.Option(help="Solver prototxt.", metavar="FILE")],
    snapshot: Annotated[
        Path | None, typer.Option(help="Resume from this snapshot or .solverstate.", metavar="FILE")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="Begin with the weights in these files, such as a.caffemodel,b.pt.", metavar="FILES"),
    ] = None,
    device: _Device = None,
    threads: _Threads = None,
    debug: _Debug = False,
) -> None:
    """Train the net that a solver names. Ctrl-C stops after the iteration and saves a snapshot; twice, at once."""
    with _one_message(debug):
        _need_torch()
        from . import caffe  # noqa: F401  Python layers may import it
        from .trainer.solving.progress import make_reporter
        from .trainer.solving.solver import Solver
        from .trainer.solving.training import StopRequest, fix_threads
        from .trainer.solving.training import train as run

        fix_threads(threads)
        with Solver.from_file(solver, device) as made:
            if snapshot is not None and weights is not None:
                raise typer.BadParameter("give --snapshot to resume or --weights to fine-tune, not both")
            if snapshot is not None:
                made.restore(snapshot)
            for name in weights.split(",") if weights else ():
                made.load_weights(name)
            with StopRequest() as stop, contextlib.closing(make_reporter(made)) as reporter:
                run(made, reporter, stop)


@app.command("test")
def score(
    model: Annotated[Path, typer.Option(help="Net prototxt; its layers for the phase TEST are used.", metavar="FILE")],
    weights: Annotated[Path, typer.Option(help="A snapshot, .caffemodel or .caffemodel.h5.", metavar="FILE")],
    iterations: Annotated[int, typer.Option(min=1, help="Batches to test on.")] = 50,
    device: _Device = None,
    threads: _Threads = None,
    debug: _Debug = False,
) -> None:
    """Print the means of a net's outputs over some batches."""
    with _one_message(debug):
        _need_torch()
        from . import caffe  # noqa: F401
        from .trainer.solving.progress import scores_text
        from .trainer.solving.training import fix_threads, score_net

        fix_threads(threads)
        typer.echo(scores_text(score_net(model, weights, iterations, device)))


@app.command("convert")
def convert_file(
    source: Annotated[Path, typer.Argument(help="Weights or a state.", metavar="SOURCE")],
    target: Annotated[Path, typer.Argument(help="The file to write; its name says the format.", metavar="TARGET")],
    debug: _Debug = False,
) -> None:
    """Convert weights (.pt, .caffemodel, .caffemodel.h5) or states (.solverstate, .solverstate.h5)."""
    with _one_message(debug):
        _need_torch()
        from .trainer.solving.convert import convert

        typer.echo(convert(source, target))


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"blobfeed {__version__}")


def _need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise TorchMissing("training needs PyTorch, which is not installed: pip install 'blobfeed[torch]'")


@contextlib.contextmanager
def _one_message(debug: bool) -> Iterator[None]:
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


def main() -> None:
    app(prog_name="blobfeed")
