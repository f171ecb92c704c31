"""Pictures in folders, lists, tar files and databases."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from ...workers.base.errors import SourceError
from ...workers.base.files import writing
from ...workers.base.source import Source
from ...workers.sources import open_source
from ...workers.sources.images.options import LONGEST_SIDE_RATIO
from ...workers.sources.tar.fields import PICTURES
from .found import Found, one_or_all, samples_of

_LOOKED_AT = 32
_LARGEST_SIDE = 1 << 15
_USUAL_SIDE = 256


def folder_of_images(path: Path, images: Sequence[Path], image_list: Path | None) -> Found:
    """Images in a folder for each class, as torchvision's ImageFolder and Keras take them."""
    if image_list is None:
        raise SourceError(
            f"{path} holds {len(images):,} images; a list of them says their order and classes: `blobfeed inspect "
            f"{path} --list train.txt` writes it and goes on"
        )
    folders = [image.relative_to(path).parts[0] if image.parent != path else "" for image in images]
    classes = sorted(set(folders) - {""})  # 10 before 2, as torchvision and Keras number them
    if classes and "" in folders:
        raise SourceError(
            f"{path} holds images beside the folders of classes ({shorten(', '.join(classes), 200, placeholder=' …')})"
        )
    names = [_listed(image) for image in images]
    numbering = image_list.with_name("classes.txt")
    if image_list == numbering:
        raise SourceError(f"{image_list} is where the names of the classes go: name another file for the list")
    classes = _numbered(classes, numbering)
    numbers = {each: f" {number}" for number, each in enumerate(classes)}
    lines = [f"{name}{numbers.get(folder, '')}" for name, folder in zip(names, folders, strict=True)]
    text = os.fsencode("\n".join(lines) + "\n")
    if image_list.is_file() and image_list.read_bytes() != text:
        raise SourceError(f"{image_list} is there already, with other content: name another file, or remove it")
    if classes and not numbering.exists():
        with writing(numbering):
            numbering.write_bytes(os.fsencode("\n".join(classes) + "\n"))
    with writing(image_list):
        image_list.write_bytes(text)
    named = shorten(", ".join(f"{number} {name}" for number, name in enumerate(classes)), 200, placeholder=" …")
    said = f"wrote {image_list}: {len(images):,} images" + (f", classes {named}" if classes else "")
    found = sized("image_list", {"path": str(image_list)})
    return replace(found, remarks=(said, *found.remarks))


def _numbered(classes: list[str], file: Path) -> list[str]:
    """The classes in the order of their numbers: those of `file`, a name on each line, if an earlier list wrote it.

    A folder of validation may lack a class, and must not number the others anew.
    """
    if not classes or not file.exists():
        return classes
    known = os.fsdecode(file.read_bytes()).splitlines()
    if unknown := [name for name in classes if name not in known]:
        raise SourceError(
            f"{file}, which an earlier list has written, has no class {unknown[0]!r}: write this list into another "
            f"folder, or remove {file.name} to number the classes anew"
        )
    return known


def _listed(image: Path) -> str:
    """As a line of a list has it, where `#` begins a comment, and white space in front does not count."""
    name = str(image)
    if len(name.splitlines()) > 1:
        raise SourceError(f"{name!r} has a line break in its name, and a list has a line for each image: rename it")
    return f"./{name}" if name[0] == "#" or name[0].isspace() else name


def tar(paths: Sequence[Path]) -> Found:
    """WebDataset's shards; the first picture of a sample is `data`, its class `label`."""
    options: dict[str, Any] = {"path": one_or_all(paths)}
    with closing(_opened_at_any_size("tar", options)) as source:
        members = list(source.specs)
    picture = next((member for member in members if member in PICTURES), None)
    if picture is None:
        return Found({"tar": options})
    tops = {picture: "data", "cls": "label"}
    return sized("tar", {**options, "members": {tops.get(member, member): member for member in members}})


def sized(kind: str, options: dict[str, Any]) -> Found:
    """With what the source must be told of the pictures' sizes; some of them are looked at."""
    with closing(_opened_at_any_size(kind, options)) as source:
        sizes, samples = _sizes_of(source), len(source)
    smallest, largest = sizes.min(axis=0), sizes.max(axis=0)
    resizes, seen = kind in ("image_list", "tar"), f"{smallest[0]}×{smallest[1]} to {largest[0]}×{largest[1]}"
    if (smallest == largest).all():
        return Found({kind: options | ({"equal_sizes": True} if resizes else {})})
    how = "shorter_side resizes them, take the same one for training and for validation; " if resizes else ""
    remark = f"{len(sizes)} of {samples:,} pictures looked at: {seen}; {how}crop_size in transform gives one size"
    side, bounds, crop = 0, dict[str, int](), int(sizes.min())
    if resizes:
        side = _round(min(_USUAL_SIDE, int(np.median(sizes.min(axis=1)))))
        crop = max(1, side * 7 // 8)  # 224 of 256, as is usual
        largest = np.ceil(sizes * side / sizes.min(axis=1, keepdims=True)).astype(np.int64).max(axis=0)
        bounds = {"shorter_side": side}
    if not resizes or largest.max() > LONGEST_SIDE_RATIO * side:
        least = LONGEST_SIDE_RATIO * side  # of the others some may be long the other way
        height, width = (max(least, 1 << int(length - 1).bit_length()) for length in largest)
        bounds |= {"max_height": height, "max_width": width}
    return Found({kind: {**options, **bounds}}, None, (remark,), transform={"crop_size": crop})


def _round(side: int) -> int:
    """The largest usual side up to `side`: pictures of training and of validation are to get the same one."""
    step = next((step for step in (32, 8) if side >= step), 1)
    return side // step * step


def _opened_at_any_size(kind: str, options: Mapping[str, Any]) -> Source:
    limits = {"max_height": _LARGEST_SIDE, "max_width": _LARGEST_SIDE}
    return open_source({kind: {**options, **limits}}, tops=None, base_dir=Path.cwd())


def _sizes_of(source: Source) -> Any:
    """Height and width of some samples over the whole of `source`, shape (samples, 2); leaves out bad ones.

    Raises SourceError, which says what the first one does, if all are bad.
    """
    bad: dict[int, str] = {}
    indices = np.unique(np.linspace(0, len(source) - 1, _LOOKED_AT).astype(np.int64))
    sizes = [sample["data"].shape[-2:] for sample in samples_of(source, indices, bad)]
    if not sizes:
        raise SourceError(bad[0])
    return np.array(sizes)
