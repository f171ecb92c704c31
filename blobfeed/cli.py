"""The command `blobfeed`: what the command `caffe` does, and more."""

from __future__ import annotations

import contextlib
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from . import __version__, data_commands
from .one_message import Debug as _Debug
from .one_message import one_message as _one_message
from .workers.base.extras import need

app = typer.Typer(
    help="Train Caffe-style nets on data that other processes make ready.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_commands.add_to(app)


class Device(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


_Device = Annotated[Device | None, typer.Option(help="Where to compute; by default CUDA if there is a device.")]
_Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads of the CPU to compute with; by default all cores but one.")
]
_Level = Annotated[int, typer.Option(help="The level that include and exclude rules of layers are checked against.")]
_Stage = Annotated[str, typer.Option(help="Stages for these rules, such as deploy,fast.", metavar="STAGES")]


class Effect(StrEnum):
    STOP = "stop"
    SNAPSHOT = "snapshot"
    NONE = "none"


class Phase(StrEnum):
    TRAIN = "TRAIN"
    TEST = "TEST"


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
    level: _Level = 0,
    stage: _Stage = "",
    sigint_effect: Annotated[
        Effect, typer.Option("--sigint_effect", "--sigint-effect", help="What Ctrl-C does.")
    ] = Effect.STOP,
    sighup_effect: Annotated[
        Effect, typer.Option("--sighup_effect", "--sighup-effect", help="What SIGHUP does.")
    ] = Effect.SNAPSHOT,
    trace: Annotated[
        Path | None, typer.Option(help="Write what every process does into this file, for Perfetto.", metavar="FILE")
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Write loss, rate, speed and stall for TensorBoard.", metavar="FOLDER")
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(help="Write the same into a .csv or .jsonl file; may be given twice.", metavar="FILE"),
    ] = None,
    ideal: Annotated[
        bool, typer.Option("--ideal", help="Print what loaders that take no time would give, and train nothing.")
    ] = False,
    iterations: Annotated[int, typer.Option(min=1, help="Iterations of each run of --ideal.")] = 100,
    device: _Device = None,
    threads: _Threads = None,
    debug: _Debug = False,
) -> None:
    """Train the net that a solver names. Ctrl-C stops after the iteration and saves a snapshot; twice, at once."""
    with _one_message(debug):
        need("torch", "training")
        from . import caffe  # noqa: F401  Python layers may import it
        from .trainer.solving import training
        from .trainer.solving.ideal import compare
        from .trainer.solving.progress import make_reporter
        from .trainer.solving.scalar_logs import open_logs
        from .trainer.solving.solver import Solver, traced_to
        from .trainer.solving.solver_file import read_solver

        training.fix_threads(threads)
        document = read_solver(solver)
        rules: Any = document.message.train_state
        if level:
            rules.level = level
        rules.stage.extend(_stages(stage))
        if ideal:
            compare(document, device, iterations, typer.echo)
            return
        with Solver(document, device, traced_to(trace)) as made:
            if snapshot is not None and weights is not None:
                raise typer.BadParameter("give --snapshot to resume or --weights to fine-tune, not both")
            if snapshot is not None:
                made.restore(snapshot)
            for name in weights.split(",") if weights else ():
                made.load_weights(name)
            effects = training.Effect(sigint_effect), training.Effect(sighup_effect)
            logs = open_logs(log or (), tensorboard, made)
            with training.StopRequest(*effects) as stop, contextlib.closing(make_reporter(made, logs)) as reporter:
                training.train(made, reporter, stop)


@app.command("test")
def score(
    model: Annotated[Path, typer.Option(help="Net prototxt; its layers for the phase TEST are used.", metavar="FILE")],
    weights: Annotated[Path, typer.Option(help="A snapshot, .caffemodel or .caffemodel.h5.", metavar="FILE")],
    iterations: Annotated[int, typer.Option(min=1, help="Batches to test on.")] = 50,
    level: _Level = 0,
    stage: _Stage = "",
    device: _Device = None,
    threads: _Threads = None,
    debug: _Debug = False,
) -> None:
    """Print the means of a net's outputs over some batches."""
    with _one_message(debug):
        need("torch", "testing a net")
        from . import caffe  # noqa: F401
        from .trainer.solving.progress import scores_text
        from .trainer.solving.training import fix_threads, score_net

        fix_threads(threads)
        typer.echo(scores_text(score_net(model, weights, iterations, device, level, _stages(stage))))


@app.command("time")
def time_net(
    model: Annotated[Path, typer.Option(help="Net prototxt.", metavar="FILE")],
    iterations: Annotated[int, typer.Option(min=1, help="Batches to time.")] = 50,
    phase: Annotated[Phase, typer.Option(help="Which layers of the net are used.")] = Phase.TRAIN,
    level: _Level = 0,
    stage: _Stage = "",
    device: _Device = None,
    threads: _Threads = None,
    debug: _Debug = False,
) -> None:
    """Print how long each layer of a net takes, forward and backward."""
    with _one_message(debug):
        need("torch", "this command")
        from . import caffe  # noqa: F401
        from .trainer.prototxt import schema
        from .trainer.prototxt.phases import State
        from .trainer.solving.timing import table, time_layers
        from .trainer.solving.training import fix_threads, open_net

        fix_threads(threads)
        with contextlib.closing(open_net(model, State(schema.Phase[phase], level, _stages(stage)), device)) as net:
            typer.echo(table(time_layers(net, iterations)))


@app.command("device_query")
def device_query() -> None:
    """Print the CUDA devices that nets can be computed on."""
    with _one_message(False):
        need("torch", "this command")
        import torch

        count = torch.cuda.device_count()
        for number in range(count):
            found = torch.cuda.get_device_properties(number)
            typer.echo(
                f"device {number}: {found.name}, {found.total_memory / 2**30:.1f} GiB, "
                f"{found.multi_processor_count} multiprocessors, compute capability {found.major}.{found.minor}"
            )
        if not count:
            typer.echo("torch finds no CUDA device")


@app.command("upgrade")
def upgrade(
    model: Annotated[Path, typer.Argument(help="Net prototxt, in any format that Caffe had.", metavar="FILE")],
    debug: _Debug = False,
) -> None:
    """Print a net prototxt in today's format."""
    with _one_message(debug):
        from google.protobuf import text_format

        from .trainer.prototxt.prototxt import read_prototxt
        from .trainer.prototxt.schema import NetParameter

        message: Any = read_prototxt(model, NetParameter).message
        typer.echo(text_format.MessageToString(message), nl=False)


@app.command("convert")
def convert_file(
    source: Annotated[Path, typer.Argument(help="Weights or a state.", metavar="SOURCE")],
    target: Annotated[Path, typer.Argument(help="The file to write; its name says the format.", metavar="TARGET")],
    debug: _Debug = False,
) -> None:
    """Convert weights (.pt, .caffemodel, .caffemodel.h5) or states (.solverstate, .solverstate.h5)."""
    with _one_message(debug):
        need("torch", "converting weights")
        from .trainer.solving.convert import convert

        typer.echo(convert(source, target))


@app.command("monitor")
def monitor(
    pid: Annotated[
        int | None, typer.Argument(help="A process of the pipeline; without it, all pipelines.", metavar="[PID]")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print what is seen in some seconds, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it once, as JSON.")] = False,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long --once and --json look.")] = 2.0,
    svg: Annotated[Path | None, typer.Option(help="Also write it as a picture.", metavar="FILE")] = None,
    debug: _Debug = False,
) -> None:
    """Show what the pipelines on this machine are doing, and what limits them. They notice nothing of it."""
    with _one_message(debug):
        from .monitor import watch

        watch(pid, once=once, as_json=as_json, seconds=seconds, svg=svg)


@app.command("trace")
def trace_file(
    given: Annotated[Path, typer.Argument(help="FILE.ring that a crash has left, or a trace.", metavar="FILE")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The trace to write.", metavar="FILE")] = None,
    merge: Annotated[
        Path | None, typer.Option(help="Add the events of this trace, such as torch.profiler's.", metavar="FILE")
    ] = None,
    debug: _Debug = False,
) -> None:
    """Make a trace from what a run has left, or merge two traces."""
    with _one_message(debug):
        from .workers.watching.trace_events import convert

        typer.echo(convert(given, output, merge))


@app.command("doctor")
def doctor() -> None:
    """Print what this machine and this Python have that matters here, for a bug report."""
    from .doctor import report

    typer.echo(report())


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"blobfeed {__version__}")


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train Caffe-style nets on data that other processes make ready."""


def _stages(text: str) -> frozenset[str]:
    return frozenset(stage.strip() for stage in text.split(",") if stage.strip())


def main() -> None:
    app(prog_name="blobfeed")
