"""The command `blobfeed`: what the command `caffe` does, and more."""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import io
import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from . import __version__, data_commands
from .one_message import Debug, file_option, one_message
from .workers.base.errors import ParameterError
from .workers.base.extras import need
from .workers.base.files import writing
from .workers.processes.process import fill_standard_streams

app = typer.Typer(
    help="Train Caffe-style nets on data that other processes make ready.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_commands.add_to(app)


Device = Literal["cpu", "cuda"]
Effect = Literal["stop", "snapshot", "none"]
Phase = Literal["TRAIN", "TEST"]
_PhaseOption = Annotated[Phase, typer.Option(help="Which layers of the net are used.")]


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
        int | None, typer.Option(min=1, help="Threads of the CPU to compute with; by default all cores but one.")
    ] = None
    debug: Debug = False

    @property
    def stages(self) -> frozenset[str]:
        return frozenset(stage.strip() for stage in self.stage.split(",") if stage.strip())

    @property
    def where(self) -> str | None:
        """The device that was asked for."""
        from .devices import device_of_gpus

        if self.gpu is not None and self.device is not None:
            raise typer.BadParameter("give --gpu or --device, not both")
        return self.device if self.gpu is None else device_of_gpus(self.gpu)


def _computing(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator of a command that gets a Common as its first argument: the options of Common are added to its own.

    `what`: what torch is needed for.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True) | get_type_hints(Common, include_extras=True)
        common = inspect.signature(Common).parameters
        own = [each for name, each in inspect.signature(command).parameters.items() if name != "common"]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            shared = Common(**{name: values.pop(name) for name in common})
            with one_message(shared.debug):
                need("torch", what)
                from . import caffe  # noqa: F401  Python layers may import it
                from .trainer.solving.solver_file import fix_threads

                fix_threads(shared.threads)
                command(shared, **values)

        every = [each.replace(kind=each.KEYWORD_ONLY, annotation=hints[each.name]) for each in (*own, *common.values())]
        vars(run).update(__signature__=inspect.Signature(every))
        run.__annotations__ = {each.name: each.annotation for each in every}
        return run

    return decorate


@app.command()
@_computing("training")
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
    ideal: Annotated[
        bool, typer.Option("--ideal", help="Print what loaders that take no time would give, and train nothing.")
    ] = False,
    iterations: Annotated[int | None, typer.Option(min=1, help="Of each run of --ideal; by default 100.")] = None,
    phase: Annotated[Phase | None, typer.Option(help="As in Caffe, for time only.", hidden=True)] = None,
) -> None:
    """Train the net that a solver names. Ctrl-C stops after the iteration and saves a snapshot; twice, at once."""
    from .signals import SignalRequest
    from .trainer.solving import training
    from .trainer.solving.solver import Solver
    from .trainer.solving.solver_file import read_solver
    from .training_display import ScalarLogs, make_reporter, traced_to

    if snapshot is not None and weights is not None:
        raise typer.BadParameter("give --snapshot to resume or --weights to fine-tune, not both")
    files = [] if weights is None else [name.strip() for name in weights.split(",")]
    if not all(files):
        raise typer.BadParameter(f"--weights {weights!r}: expected names of files, such as a.caffemodel,b.pt")
    if ideal and (snapshot or weights or trace or tensorboard or log):
        raise typer.BadParameter(
            "--ideal begins anew and keeps nothing: give it no --snapshot, --weights, --trace, --tensorboard or --log"
        )
    document = read_solver(solver)
    rules: Any = document.message.train_state
    if common.level:
        rules.level = common.level
    rules.stage.extend(common.stages)
    if ideal:
        from .tools.ideal import compare

        compare(document, common.where, iterations or 100, typer.echo)
        return
    with Solver(document, common.where, traced_to(trace)) as made:
        if snapshot is not None:
            made.restore(snapshot)
        for name in files:
            made.load_weights(name)
        logs = ScalarLogs(log or (), tensorboard, made)
        with (
            SignalRequest(sigint_effect, sighup_effect) as stop,
            contextlib.closing(make_reporter(made, logs)) as reporter,
        ):
            if iterations is not None or phase is not None:
                reporter.say("--iterations and --phase change nothing in training: max_iter says how long it takes")
            training.train(made, reporter, stop)


@app.command("test")
@_computing("testing a net")
def score(
    common: Common,
    model: Annotated[Path, file_option("Net prototxt; its layers for the phase TEST are used.")],
    weights: Annotated[Path, file_option("A snapshot, .caffemodel or .caffemodel.h5.")],
    iterations: Annotated[int, typer.Option(min=1, help="Batches to test on.")] = 50,
) -> None:
    """Print the means of a net's outputs over some batches."""
    from .trainer.solving.progress import scores_text
    from .trainer.solving.training import score_net

    typer.echo(scores_text(score_net(model, weights, iterations, common.where, common.level, common.stages)))


@app.command("time")
@_computing("this command")
def time_net(
    common: Common,
    model: Annotated[Path, file_option("Net prototxt.")],
    iterations: Annotated[int, typer.Option(min=1, help="Batches to time.")] = 50,
    phase: _PhaseOption = "TRAIN",
) -> None:
    """Print how long each layer of a net takes, forward and backward."""
    from .tools.timing import table, time_layers
    from .trainer.prototxt import schema
    from .trainer.prototxt.phases import State
    from .trainer.solving.training import open_net

    state = State(schema.Phase[phase], common.level, common.stages)
    with contextlib.closing(open_net(model, state, common.where)) as net:
        typer.echo(table(time_layers(net, iterations)))


@app.command("device_query")
def device_query(debug: Debug = False) -> None:
    """Print the CUDA devices that nets can be computed on."""
    with one_message(debug):
        need("torch", "this command")
        from .devices import cuda_devices

        for line in cuda_devices():
            typer.echo(line)


@app.command("upgrade")
def upgrade(
    model: Annotated[Path, typer.Argument(help="Net or solver prototxt, in any format of Caffe's.", metavar="FILE")],
    debug: Debug = False,
) -> None:
    """Print a net or a solver prototxt in today's format."""
    with one_message(debug):
        from google.protobuf import text_format

        from .trainer.prototxt.prototxt import read_net_or_solver

        typer.echo(text_format.MessageToString(read_net_or_solver(model)), nl=False)


@app.command("draw")
def draw_net(
    model: Annotated[Path, typer.Argument(help="Net prototxt.", metavar="FILE")],
    target: Annotated[Path, typer.Argument(help="The SVG file to write.", metavar="SVG")],
    phase: _PhaseOption = "TRAIN",
    debug: Debug = False,
) -> None:
    """Draw a net as SVG."""
    with one_message(debug):
        from .draw import draw
        from .trainer.prototxt import schema
        from .trainer.prototxt.phases import State, included_layers
        from .trainer.prototxt.prototxt import read_prototxt

        document = read_prototxt(model, schema.NetParameter)
        state = State(schema.Phase[phase]).merged(document.message.state)
        picture = draw(document, state)
        if target.exists() and target.samefile(model):
            raise ParameterError(f"{target} is the net itself: name another file for the drawing")
        if target.suffix.lower() not in ("", ".svg"):  # no viewer would show an SVG called net.png
            raise ParameterError(f"{target}: the drawing is an SVG: name a file that ends in .svg")
        with writing(target):
            target.write_text(picture, encoding="utf-8")
        typer.echo(f"{target}: {len(included_layers(document, state))} layers")


@app.command("convert")
def convert_file(
    source: Annotated[Path, typer.Argument(help="Weights or a state.", metavar="SOURCE")],
    target: Annotated[Path, typer.Argument(help="The file to write; its name says the format.", metavar="TARGET")],
    debug: Debug = False,
) -> None:
    """Convert weights (.pt, .caffemodel, .caffemodel.h5) or states (.solverstate, .solverstate.h5)."""
    with one_message(debug):
        need("torch", "converting weights")
        from .tools.convert import convert

        typer.echo(convert(source, target))


@app.command("monitor")
def monitor(
    pid: Annotated[
        int | None, typer.Argument(help="A process of the pipeline; without it, all pipelines.", metavar="[PID]")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print what is seen in some seconds, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it once, as JSON.")] = False,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long --once and --json look.")] = 2.0,
    svg: Annotated[Path | None, file_option("Also write it as a picture.")] = None,
    debug: Debug = False,
) -> None:
    """Show what the pipelines on this machine are doing, and what limits them. They notice nothing of it."""
    with one_message(debug):
        from .monitor import watch

        if as_json and svg is not None:
            raise typer.BadParameter("give --json or --svg, not both")
        watch(pid, once=once, as_json=as_json, seconds=seconds, svg=svg)


@app.command("trace")
def trace_file(
    given: Annotated[Path, typer.Argument(help="FILE.ring that a crash has left, or a trace.", metavar="FILE")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The trace to write.", metavar="FILE")] = None,
    merge: Annotated[Path | None, file_option("Add the events of this trace, such as torch.profiler's.")] = None,
    debug: Debug = False,
) -> None:
    """Make a trace from what a run has left, or merge two traces."""
    with one_message(debug):
        from .workers.watching.trace_events import convert

        for path in (given, merge):
            if path is not None and not path.exists():
                raise ParameterError(f"there is no file {str(path)!r}; name FILE.ring or a trace")
        typer.echo(convert(given, output, merge))


@app.command("doctor")
def doctor(debug: Debug = False) -> None:
    """Print what this machine and this Python have that matters here, for a bug report."""
    with one_message(debug):
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


_CAFFES_DASH = re.compile(r"^-(?=(solver|model|weights|snapshot|iterations|gpu|phase|level|stage|sig\w+_effect)(=|$))")
"""The command `caffe` takes its options with one dash, too, as its documents write them."""


def main() -> None:
    fill_standard_streams()
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:  # as in `blobfeed … 2>&-`
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr does it: a terminal may know ASCII alone
    try:
        app([_CAFFES_DASH.sub("--", argument) for argument in sys.argv[1:]], prog_name="blobfeed")
    finally:
        # First of all at Python's end, of which Ctrl-C would make "Exception ignored in atexit callback". Not now: a
        # program that calls this function still wants its KeyboardInterrupt.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)
