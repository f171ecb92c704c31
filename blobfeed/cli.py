"""The command `blobfeed`: the functions of the command `caffe`, and more."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import re
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from . import __version__, data_commands  # noqa: F401  its commands
from .command import Common, command, file_option
from .command import app as app  # noqa: PLC0414  for others
from .tools.written import require_ending
from .workers.base import fill_standard_streams, need

Effect = Literal["stop", "snapshot", "none"]
Phase = Literal["TRAIN", "TEST"]
_PhaseOption = Annotated[Phase, typer.Option(help="Which layers of the net are used.")]


@command("Start here")
def train(
    common: Common,
    solver: Annotated[Path, file_option("Solver prototxt.")],
    snapshot: Annotated[Path | None, file_option("Resume from this snapshot or .solverstate.")] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="Begin with the weights in these files, such as a.caffemodel,b.pt.", metavar="FILES"),
    ] = None,
    sigint_effect: Annotated[
        Effect, typer.Option("--sigint_effect", "--sigint-effect", help="What Ctrl-C does.")
    ] = "stop",
    sighup_effect: Annotated[
        Effect, typer.Option("--sighup_effect", "--sighup-effect", help="What SIGHUP does.")
    ] = "snapshot",
    trace: Annotated[Path | None, file_option("Write what every process does into this file, for Perfetto.")] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Write loss, rate, speed and stall for TensorBoard.", metavar="FOLDER")
    ] = None,
    log: Annotated[
        list[Path] | None, file_option("Write the same into a .csv or .jsonl file; may be given twice.")
    ] = None,
    iterations: Annotated[int | None, typer.Option(help="As in Caffe, for test and time only.", hidden=True)] = None,
    phase: Annotated[Phase | None, typer.Option(help="As in Caffe, for time only.", hidden=True)] = None,
) -> None:
    """Train the net that a solver names. Ctrl-C stops after the iteration and saves a snapshot; twice, at once."""
    common.prepare("training")
    from .trainer.solving import Event, Solver, asked_by_signals, read_solver, tell, training
    from .training_display import traced_to, watching

    if snapshot is not None and weights is not None:
        raise typer.BadParameter("give --snapshot to resume or --weights to fine-tune, not both")
    files = [] if weights is None else [name.strip() for name in weights.split(",")]
    if not all(files):
        raise typer.BadParameter(f"--weights {weights!r}: expected names of files, such as a.caffemodel,b.pt")
    document = read_solver(solver)
    rules: Any = document.message.train_state
    if common.level:
        rules.level = common.level
    rules.stage.extend(common.stages)
    with Solver(document, common.where, traced_to(trace)) as made:
        if snapshot is not None:
            made.restore(snapshot)
        for name in files:
            made.load_weights(name)
        # Ctrl-C still ends it while the logs are opened: nothing is trained yet.
        with watching(made, log or (), tensorboard) as watchers, asked_by_signals(sigint_effect, sighup_effect) as stop:
            if iterations is not None or phase is not None:
                unread = "--iterations and --phase change nothing in training: max_iter says how long it takes"
                tell(watchers, Event(unread))
            training.train(made, watchers, stop)


@command("Nets and weights", "test")
def score(
    common: Common,
    model: Annotated[Path, file_option("Net prototxt; its layers for the phase TEST are used.")],
    weights: Annotated[Path, file_option("A snapshot, .caffemodel or .caffemodel.h5.")],
    iterations: Annotated[int, typer.Option(min=1, help="Batches to test on.")] = 50,
) -> None:
    """Print the means of a net's outputs over some batches."""
    common.prepare("testing a net")
    from .trainer.solving import score_net

    typer.echo(score_net(model, weights, iterations, common.where, common.level, common.stages))


@command("Nets and weights", "time")
def time_net(
    common: Common,
    model: Annotated[Path, file_option("Net prototxt.")],
    iterations: Annotated[int, typer.Option(min=1, help="Batches to time.")] = 50,
    phase: _PhaseOption = "TRAIN",
) -> None:
    """Print how long each layer of a net takes, forward and backward."""
    common.prepare("this command")
    from .tools.timing import layer_times
    from .trainer import Net
    from .trainer.solving import choose_device

    net = Net(model, phase, choose_device(common.where), level=common.level, stages=common.stages)
    with contextlib.closing(net):
        typer.echo(layer_times(net, iterations))


@command("Nets and weights", "upgrade")
def upgrade(
    model: Annotated[Path, typer.Argument(help="Net or solver prototxt, in any format of Caffe's.", metavar="FILE")],
) -> None:
    """Print a net or a solver prototxt in today's format."""
    from google.protobuf import text_format

    from .trainer.prototxt import read_net_or_solver

    typer.echo(text_format.MessageToString(read_net_or_solver(model)), nl=False)


@command("Nets and weights", "convert")
def convert_file(
    source: Annotated[Path, typer.Argument(help="Weights or a state.", metavar="SOURCE")],
    target: Annotated[Path, typer.Argument(help="What to write; a file's name says the format.", metavar="TARGET")],
) -> None:
    """Convert weights (.pt, .caffemodel or its .h5) or states (.solverstate or its .h5)."""
    need("torch", "converting weights")
    from .tools.convert import convert

    typer.echo(convert(source, target))


@command("Start here", "monitor")
def monitor(
    pid: Annotated[
        int | None, typer.Argument(help="A process of the pipeline; without it, all pipelines.", metavar="[PID]")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print what is seen in some seconds, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it once, as JSON.")] = False,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long --once and --json look.")] = 2.0,
    svg: Annotated[Path | None, file_option("Also write it as a picture.")] = None,
) -> None:
    """Show what the pipelines on this machine are doing, and what limits them. They notice nothing of it."""
    from .monitor import watch

    if as_json and svg is not None:
        raise typer.BadParameter("give --json or --svg, not both")
    if svg is not None:
        require_ending(svg, (".svg",), f"--svg {svg}: the picture is an SVG")
    watch(pid, once=once, as_json=as_json, seconds=seconds, svg=svg)


@command("Runs", "doctor")
def doctor() -> None:
    """Print what this machine and this Python have that matters here, for a bug report."""
    from .doctor import report

    typer.echo(report())


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"blobfeed {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train Caffe-style nets on data that other processes make ready."""


_CAFFES_DASH = re.compile(r"^-(?=(solver|model|weights|snapshot|iterations|gpu|phase|level|stage|sig\w+_effect)(=|$))")
"""Options of the command `caffe` with one dash, the form in Caffe's documents."""


def main() -> None:
    fill_standard_streams()
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:  # as in `blobfeed … 2>&-`
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr does: a terminal may support only ASCII
    try:
        app([_CAFFES_DASH.sub("--", argument) for argument in sys.argv[1:]], prog_name="blobfeed")
    finally:
        # The first step at Python's exit, where Ctrl-C would print "Exception ignored in atexit callback". Not now: a
        # program that calls this function still needs its KeyboardInterrupt.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)
