"""The command `blobfeed`: what the command `caffe` does, and more."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from . import __version__
from .workers.base.errors import BlobfeedError
from .workers.base.extras import need

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


class Effect(StrEnum):
    STOP = "stop"
    SNAPSHOT = "snapshot"
    NONE = "none"


class Phase(StrEnum):
    TRAIN = "TRAIN"
    TEST = "TEST"


_Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")]
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
    debug: _Debug = False

    @property
    def stages(self) -> frozenset[str]:
        return frozenset(stage.strip() for stage in self.stage.split(",") if stage.strip())

    @property
    def where(self) -> str | None:
        """The device that was asked for."""
        from .trainer.solving.solver_file import device_of_gpus

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
            with _one_message(shared.debug):
                need("torch", what)
                from . import caffe  # noqa: F401  Python layers may import it
                from .trainer.solving.training import fix_threads

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
    solver: Annotated[Path, typer.Option(help="Solver prototxt.", metavar="FILE")],
    snapshot: Annotated[
        Path | None, typer.Option(help="Resume from this snapshot or .solverstate.", metavar="FILE")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="Begin with the weights in these files, such as a.caffemodel,b.pt.", metavar="FILES"),
    ] = None,
    sigint_effect: Annotated[
        Effect, typer.Option("--sigint_effect", "--sigint-effect", help="What Ctrl-C does.")
    ] = Effect.STOP,
    sighup_effect: Annotated[
        Effect, typer.Option("--sighup_effect", "--sighup-effect", help="What SIGHUP does.")
    ] = Effect.SNAPSHOT,
    iterations: Annotated[int | None, typer.Option(help="As in Caffe, for test and time only.", hidden=True)] = None,
    phase: Annotated[Phase | None, typer.Option(help="As in Caffe, for time only.", hidden=True)] = None,
) -> None:
    """Train the net that a solver names. Ctrl-C stops after the iteration and saves a snapshot; twice, at once."""
    from .trainer.solving import training
    from .trainer.solving.progress import make_reporter
    from .trainer.solving.solver import Solver
    from .trainer.solving.solver_file import read_solver

    if snapshot is not None and weights is not None:
        raise typer.BadParameter("give --snapshot to resume or --weights to fine-tune, not both")
    document = read_solver(solver)
    rules: Any = document.message.train_state
    if common.level:
        rules.level = common.level
    rules.stage.extend(common.stages)
    with Solver(document, common.where) as made:
        if snapshot is not None:
            made.restore(snapshot)
        for name in weights.split(",") if weights else ():
            made.load_weights(name)
        effects = training.Effect(sigint_effect), training.Effect(sighup_effect)
        with training.StopRequest(*effects) as stop, contextlib.closing(make_reporter(made)) as reporter:
            if iterations is not None or phase is not None:
                reporter.say("--iterations and --phase change nothing in training: max_iter says how long it takes")
            training.train(made, reporter, stop)


@app.command("test")
@_computing("testing a net")
def score(
    common: Common,
    model: Annotated[Path, typer.Option(help="Net prototxt; its layers for the phase TEST are used.", metavar="FILE")],
    weights: Annotated[Path, typer.Option(help="A snapshot, .caffemodel or .caffemodel.h5.", metavar="FILE")],
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
    model: Annotated[Path, typer.Option(help="Net prototxt.", metavar="FILE")],
    iterations: Annotated[int, typer.Option(min=1, help="Batches to time.")] = 50,
    phase: _PhaseOption = Phase.TRAIN,
) -> None:
    """Print how long each layer of a net takes, forward and backward."""
    from .trainer.prototxt import schema
    from .trainer.prototxt.phases import State
    from .trainer.solving.timing import table, time_layers
    from .trainer.solving.training import open_net

    state = State(schema.Phase[phase], common.level, common.stages)
    with contextlib.closing(open_net(model, state, common.where)) as net:
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
    model: Annotated[Path, typer.Argument(help="Net or solver prototxt, in any format of Caffe's.", metavar="FILE")],
    debug: _Debug = False,
) -> None:
    """Print a net or a solver prototxt in today's format."""
    with _one_message(debug):
        from google.protobuf import text_format

        from .trainer.prototxt.prototxt import read_net_or_solver

        typer.echo(text_format.MessageToString(read_net_or_solver(model)), nl=False)


@app.command("draw")
def draw_net(
    model: Annotated[Path, typer.Argument(help="Net prototxt.", metavar="FILE")],
    target: Annotated[Path, typer.Argument(help="The SVG file to write.", metavar="SVG")],
    phase: _PhaseOption = Phase.TRAIN,
    debug: _Debug = False,
) -> None:
    """Draw a net as SVG."""
    with _one_message(debug):
        from .draw import draw
        from .trainer.prototxt import schema
        from .trainer.prototxt.phases import State
        from .trainer.prototxt.prototxt import read_prototxt

        document = read_prototxt(model, schema.NetParameter)
        state = State(schema.Phase[phase]).merged(document.message.state)
        target.write_text(draw(document, state), encoding="utf-8")
        typer.echo(f"{target}: {len(document.message.layer)} layers")


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


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"blobfeed {__version__}")


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
