"""`blobfeed inspect --sheet`: a contact sheet of what the net sees, the same samples over several epochs.

Needs OpenCV.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, cast

import cv2
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from ..layers.param_str import parse_param_str
from ..readers.delivery import Top, UnevenTop, make_tops
from ..readers.opening import made_batch, make_plan
from ..sources import color_of
from ..workers.api import AnyArray, Hooks, check_parameters
from ..workers.base import ParameterError, is_installed
from ..workers.plan import Plan
from .found import color_in
from .locating import plan_of_net
from .recognise import source_of
from .written import writing

_SAMPLES = 8
_EPOCHS = 6
_TILE = 128
"""Pixels of a tile's longer side: smaller pictures are magnified by a whole factor, larger ones reduced."""
_GAP = 6
_TEXT = 18
_INK, _PAPER = (235, 235, 235), (32, 32, 32)

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Seen:
    """The input of the net: `pictures[epoch][sample]`, shape (channels, height, width), and what is written on each."""

    pictures: list[list[AnyArray]]
    captions: list[str]
    is_bgr: bool


def draw_sheet(
    paths: Sequence[str],
    tops: Sequence[str] | None,
    parameters: str,
    target: Path,
    image_list: Path | None,
    console: Console,
) -> None:
    """Write the sheet to `target`, and show it in the terminal if that can show pictures.

    `paths`: data, or a net prototxt, whose own parameters and hooks count. Raises ParameterError, and what the plan
    and the hooks raise.
    """
    if not cv2.haveImageWriter(str(target)):
        raise ParameterError(f"--sheet {target}: expected the name of a picture, such as sheet.png")
    with ExitStack() as stack:
        if len(paths) == 1 and paths[0].endswith(".prototxt"):
            plan, base_dir = stack.enter_context(plan_of_net(Path(paths[0])))
            declared: Mapping[str, Any] | None = plan.parameters.source
            # As in Caffe where nothing says it, as for arrays.
            color = color_of(plan.parameters.mix) if declared is None else color_in(declared, base_dir)
            is_bgr = color != "rgb"
        else:
            found = source_of(paths, tops, image_list)
            source = stack.enter_context(closing(found.open()))
            more = parse_param_str(parameters, "--parameters")
            given = {"source": found.declared, "batch_size": _SAMPLES, **more}
            declared, base_dir, is_bgr = found.declared, Path.cwd(), found.color == "bgr"
            plan = make_plan(check_parameters(given), Hooks(), base_dir, True, source)
        seen = look(plan, base_dir, is_bgr, class_names(declared, base_dir))
    sheet = drawn(seen)
    with writing(target):
        target.write_bytes(cv2.imencode(target.suffix, sheet)[1].tobytes())
    console.print(f"{target}: {len(seen.captions)} samples (rows) in {len(seen.pictures)} epochs (columns)")
    if sys.stdin.isatty() and sys.stdout.isatty():
        _show(target, console)


def class_names(declared: object, base_dir: Path) -> Sequence[str]:
    """Return the names of the classes, by number: those that `files` declares, or in `classes.txt` beside a list."""
    if not isinstance(declared, Mapping):
        return ()
    files, listed = declared.get("files"), declared.get("image_list")
    if isinstance(files, Mapping):
        return tuple(map(str, files.get("classes", ())))
    name = listed.get("path") if isinstance(listed, Mapping) else listed
    if not isinstance(name, str):
        return ()
    path = (base_dir / name).with_name("classes.txt")
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ()


def look(plan: Plan, base_dir: Path, is_bgr: bool, classes: Sequence[str] = ()) -> Seen:
    """Some samples of `plan` as they arrive in the net: after decode, crop, mirror, postprocess, mean and scale."""
    decoded = plan.decoded.value
    count = decoded.source.known_samples or _SAMPLES
    indices = np.unique(np.linspace(0, count - 1, min(_SAMPLES, count)).astype(np.int64))
    made = make_tops(plan.specs, plan.parameters, base_dir)
    pictured = next((top for top in made if _is_picture(top.largest_shape(1)[1:])), None)
    if pictured is None:
        shapes = ", ".join(f"{top.name} {top.largest_shape(1)[1:]}" for top in made)
        raise ParameterError(f"none of the tops is a picture of one or three channels: {shapes}")
    written = [top for top in made if top.largest_shape(1)[1:] in ((), (1,))]
    epochs = [_delivered(plan, [pictured, *written], indices, epoch) for epoch in range(_EPOCHS)]
    labels = epochs[0][1:]
    captions = [
        f"#{index} "
        + ", ".join(
            f"{top.name} {_said(values[row], classes if top.name == 'label' else ())}"
            for top, values in zip(written, labels, strict=True)
        )
        for row, index in enumerate(indices.tolist())
    ]
    return Seen([list(arrays[0]) for arrays in epochs], captions, is_bgr)


def _said(value: AnyArray, classes: Sequence[str]) -> str:
    """A label in a caption: a number, or the first words of a text."""
    item = value.item()
    if isinstance(item, bytes):
        item = item.decode(errors="replace")
    if isinstance(item, str):
        return shorten(item, 20, placeholder=" …")
    name = classes[item] if isinstance(item, int) and 0 <= item < len(classes) else ""
    return f"{item:g} {shorten(name, 30, placeholder=' …')}".rstrip()


def _is_picture(shape: tuple[int, ...]) -> bool:
    return (len(shape) == 3 and shape[0] in (1, 3)) or (len(shape) == 2 and min(shape) > 1)


def _delivered(plan: Plan, tops: Sequence[Top], indices: NDArray[np.int64], epoch: int) -> list[list[AnyArray]]:
    """For each top its arrays, one for each of `indices`: of one batch, or each alone if pictures differ in size."""
    alone = any(isinstance(top, UnevenTop) for top in tops)
    parts = [indices[row : row + 1] for row in range(len(indices))] if alone else [indices]
    found: list[list[AnyArray]] = [[] for _ in tops]
    for part in parts:
        batch = made_batch(plan, part, epoch)
        for arrays, top in zip(found, tops, strict=True):
            out = np.empty(top.shape(batch), top.dtype)
            top.put(batch, out)
            arrays.extend(out)
    return found


def drawn(seen: Seen) -> Pixels:
    """The sheet, shape (height, width, 3), BGR. Values other than uint8 are stretched, all pictures alike."""
    tiles = [[_tile(picture, seen.is_bgr, _TILE) for picture in row] for row in _stretched(seen.pictures)]
    width, height = max(t.shape[1] for row in tiles for t in row), max(t.shape[0] for row in tiles for t in row)
    step_x, step_y = max(width, 72) + _GAP, height + _TEXT + _GAP
    sheet = np.full((_TEXT + step_y * len(seen.captions), _GAP + step_x * len(tiles), 3), _PAPER, np.uint8)
    font = (cv2.FONT_HERSHEY_SIMPLEX, 0.4, _INK, 1, cv2.LINE_AA)
    for epoch, row in enumerate(tiles):
        x = _GAP + epoch * step_x
        cv2.putText(sheet, f"epoch {epoch}", (x, _TEXT - 5), *font)
        for number, tile in enumerate(row):
            y = _TEXT + number * step_y + _TEXT
            sheet[y : y + tile.shape[0], x : x + tile.shape[1]] = tile
    for number, caption in enumerate(seen.captions):
        cv2.putText(sheet, caption, (_GAP, _TEXT + number * step_y + _TEXT - 5), *font)
    return sheet


def _stretched(pictures: list[list[AnyArray]]) -> Iterator[list[Pixels]]:
    if all(picture.dtype == np.uint8 for row in pictures for picture in row):
        yield from pictures
        return
    finite = np.concatenate([picture[np.isfinite(picture)] for row in pictures for picture in row])
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    factor = 255 / max(high - low, 1e-12)
    for row in pictures:
        scaled = [(picture.astype(np.float64) - low) * factor for picture in row]
        yield [np.nan_to_num(each, posinf=255, neginf=0).astype(np.uint8) for each in scaled]


def thumbnail(picture: AnyArray, is_bgr: bool, side: int) -> bytes:
    """`picture`, shape (channels, height, width), as a small PNG."""
    ((pixels,),) = _stretched([[picture]])
    return bytes(cv2.imencode(".png", _tile(pixels, is_bgr, side))[1])


def _tile(picture: Pixels, is_bgr: bool, longest: int) -> Pixels:
    image = np.broadcast_to(picture, (3, *picture.shape[-2:])).transpose(1, 2, 0)[:, :, :: 1 if is_bgr else -1]
    side = max(image.shape[:2])
    factor = longest // side if side <= longest else longest / side
    size = (max(1, round(image.shape[1] * factor)), max(1, round(image.shape[0] * factor)))
    how = cv2.INTER_NEAREST if side <= longest else cv2.INTER_AREA
    return cast(Pixels, cv2.resize(np.ascontiguousarray(image), size, interpolation=how))


def _show(path: Path, console: Console) -> None:
    """In the terminal: as a picture if it has a protocol for that (kitty, sixel), else in half cells."""
    if not os.get_terminal_size().columns:
        return  # it does not say how large it is, and the library divides by that
    if not is_installed("textual_image"):
        console.print("pip install 'blobfeed[report]' shows it here, in the terminal")
        return
    from textual_image.renderable import Image

    console.print(Image(path))
