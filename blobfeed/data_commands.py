"""The commands for data and for files of a run: inspect, pack, which, params, report."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .command import command, file_option
from .workers.base import ParameterError, need

if TYPE_CHECKING:
    from rich.console import Console

_BATCH = 64
"""The batches of `inspect --bench`, without --batch-size."""
_WIDE = 10_000
"""More characters than a line of any table has."""

_Paths = Annotated[
    list[str],
    typer.Argument(help="Files or a folder, or a declaration such as '{npy: {data: x.npy}}'.", metavar="SOURCE…"),
]
_Tops = Annotated[str | None, typer.Option(help="Which arrays, such as data,label.", metavar="NAMES")]
_List = Annotated[
    Path | None, typer.Option("--list", help="Write the list of a folder of images here.", metavar="FILE")
]
Compression = Literal["none", "gzip", "lz4", "zstd"]
_Loaders = Annotated[int | None, typer.Option(min=1, help="Processes that read; by default one for each core.")]


@command("Start here")
def inspect(
    source: _Paths,
    tops: _Tops = None,
    seconds: Annotated[
        float,
        typer.Option(
            min=0, help="How long to read in each order; 0: not at all. For --bench: in each of three rounds."
        ),
    ] = 2.0,
    samples: Annotated[int, typer.Option(min=0, help="How many of the first samples to show.")] = 3,
    image_list: _List = None,
    sheet: Annotated[
        Path | None, file_option("Write a picture (PNG) of what the net sees; SOURCE may be a net prototxt.")
    ] = None,
    parameters: Annotated[
        str,
        typer.Option(help="For the sheet: more parameters, such as '{transform: {mirror: true}}'.", metavar="YAML"),
    ] = "{}",
    bench: Annotated[
        bool, typer.Option("--bench", help="Time training's reading, with torch's DataLoader beside it.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="For --bench: samples in a batch.")] = _BATCH,
    loaders: _Loaders = None,
) -> None:
    """Print what data files hold, how fast they are read here, advice, and the `source:` line to paste."""
    from .tools.inspecting import inspect as look
    from .tools.recognise import source_of

    console = _console()
    if sheet is None and parameters != "{}":
        raise typer.BadParameter("--parameters are for the sheet: give --sheet FILE, too")
    if not bench and (batch_size != _BATCH or loaders is not None):
        raise typer.BadParameter("--batch-size and --loaders are for timing: give --bench, too")
    if sheet is not None and bench:
        raise typer.BadParameter("--sheet draws and --bench times: give one of them")
    if sheet is not None:
        need("cv2", "a contact sheet")
        from .tools.sheet import draw_sheet

        if any(path.endswith(".prototxt") for path in source):
            need("torch", "a net definition")
            from . import caffe  # noqa: F401  Python layers may import it
        draw_sheet(source, _names(tops), parameters, sheet, image_list, console)
        return
    found = source_of(source, _names(tops), image_list)
    if bench:
        from .tools.benching import print_rates
        from .workers.plan import usable_cores

        print_rates(found, console, batch_size=batch_size, loaders=loaders or usable_cores(), seconds=seconds)
    else:
        look(found, console, seconds=seconds, shown=samples)


@command("Data")
def pack(
    source: _Paths,
    target: Annotated[Path, typer.Argument(help="FILE.h5; FILE.lmdb keeps pictures encoded.", metavar="TARGET")],
    tops: _Tops = None,
    chunk: Annotated[int, typer.Option(min=0, help="Samples in a chunk; 0: contiguous, which is read fastest.")] = 0,
    compression: Annotated[Compression, typer.Option(help="Lossless; in chunks of about 64 kB.")] = "none",
    uint8: Annotated[
        list[str] | None, typer.Option(help="Arrays of whole numbers, 0 to 255, to store so.", metavar="NAMES")
    ] = None,
    resize: Annotated[str, typer.Option(help="Size of the pictures, such as 256x256.", metavar="HEIGHTxWIDTH")] = "",
    image_list: _List = None,
    loaders: _Loaders = None,
) -> None:
    """Write data into the HDF5 layout that is read fastest. If interrupted, the same command goes on."""
    from rich.filesize import decimal

    from .tools.found import Found, sized
    from .tools.inspecting import print_lines
    from .tools.packing import Layout, pack_encoded
    from .tools.packing import pack as pack_arrays
    from .tools.recognise import source_of

    found = source_of(source, _names(tops), image_list)
    with _progress() as report_step:
        if target.name.lower().endswith("lmdb"):  # mnist_train_lmdb is how Caffe names them
            if chunk or compression != "none" or uint8 or resize or tops or loaders:
                raise ParameterError(f"{target}: an LMDB keeps files as they are; the options are for a .h5 file")
            packed = pack_encoded(found, target, report_step)
            listed = found.declared[found.kind]
            decoded = {name: listed[name] for name in ("color", "strict") if name in listed}
            made = sized("lmdb", {"path": str(target), "is_color": listed.get("is_color", True), **decoded})
        else:
            layout = Layout(chunk, compression, _names(",".join(uint8 or ())) or (), _size(resize))
            packed = pack_arrays(found, target, layout, loaders=loaders, progress=report_step)
            named = None if packed.tops == ("data", "label") else packed.tops
            made = Found({"hdf5": {"path": str(target)}}, named)
    again = f", {packed.resumed:,} of them there from before" if packed.resumed else ""
    typer.echo(
        f"{target}: {packed.samples:,} samples{again}, {decimal(packed.bytes)}, in {packed.seconds:.1f} s; "
        "read back and found equal"
    )
    if made.kind == "hdf5" and made.color:
        typer.echo(f"the channels are {made.color.upper()}: `color` in the source that is packed says which")
    print_lines(made, _console())


@command("Data")
def which(
    given: Annotated[
        str,
        typer.Argument(
            help="A net prototxt, or parameters such as '{source: {hdf5: train.h5}, batch_size: 64}'.",
            metavar="NET|PARAMETERS",
        ),
    ],
    state: Annotated[Path | None, file_option("A state_dict as JSON; without it the run's start.")] = None,
    batches: Annotated[
        str, typer.Option(help="By number, such as 10..12; by default the last one before the state.", metavar="A..B")
    ] = "",
) -> None:
    """Print epoch, index and place of each sample of any batch, past or coming, without reading one."""
    if given.endswith(".prototxt"):
        need("torch", "a net definition")
        from . import caffe  # noqa: F401  Python layers may import it
    from .tools.locating import batches_of

    for number, places in batches_of(given, state, batches).items():
        for row, place in enumerate(places):
            typer.echo(place.line(number, row))


@command("Data")
def params(
    name: Annotated[str, typer.Argument(help="A parameter, such as shuffle, or a kind of source, such as hdf5.")] = "",
) -> None:
    """Print the meaning of a parameter, its values and its default; without a name, those of all parameters."""
    from .tools.parameters import as_text

    typer.echo(as_text(name))


@command("Runs")
def report(
    files: Annotated[list[Path], typer.Argument(help="A trace, and logs of trainings.", metavar="TRACE|LOG…")],
    out: Annotated[Path, file_option("The page to write.")] = Path("report.html"),
    source: Annotated[
        str | None, typer.Option(help="The data, for pictures of the slowest samples.", metavar="SOURCE")
    ] = None,
) -> None:
    """Write a page about a run: throughput, stall, loaders, slow samples, faults; losses of one or several runs."""
    need("plotly", "a report")
    from .tools.recognise import source_of
    from .tools.report import write_report

    write_report(files, out, source_of([source]) if source else None)
    typer.echo(f"{out}: open it in a browser; it needs no network")


def _names(text: str | None) -> tuple[str, ...] | None:
    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    return names or None


def _size(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    found = re.fullmatch(r"([1-9]\d*)(?:[x×]([1-9]\d*))?", text)
    if found is None:
        raise ParameterError(f"--resize is {text!r}: expected HEIGHTxWIDTH, such as 256x256, or one number for both")
    return int(found[1]), int(found[2] or found[1])


def _console() -> Console:
    """Return a console on standard output; in a pipe or a file it cuts no line to the width of a terminal."""
    from rich.console import Console

    wide = None if sys.stdout.isatty() else _WIDE
    return Console(markup=False, emoji=False, width=wide)  # a user's names may look like markup or emoji


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar with the rate and the time left, on stderr; nothing if that is no terminal."""
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    console, rate = Console(stderr=True), TextColumn("{task.fields[rate]}")
    with Progress(*Progress.get_default_columns(), rate, console=console, disable=not console.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def report_step(step: str, done: int, samples: int) -> None:
            if step not in tasks:
                tasks[step] = bar.add_task(step, total=samples, completed=done, rate="")
            speed = bar.tasks[tasks[step]].speed
            bar.update(tasks[step], completed=done, rate=f"{speed:,.0f} samples/s" if speed else "")

        yield report_step
