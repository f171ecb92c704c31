"""Images that a text file lists, as Caffe's ImageData layer takes them: `path label…` on each line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ...workers.api import GIVEN_PICTURES, Tops
from ...workers.base import SampleError, SourceError, in_folder, read_whole
from ...workers.transport import give_back_freed_memory
from ..files import WholeFiles, WholeObjects, look_at, without_paths
from ..files.urls import is_url
from ..table import Column, Field, Memory, Records, Resident, Table, learnt_of, naming
from .field import picture_field
from .list_file import ListedImages, label_values, parse_image_list
from .options import ImageListOptions, picture_options, require_sizes

_KIND = "image_list"
_CHECKED_AT_ONCE = 100


def open_image_list(options: Mapping[str, object], *, tops: Tops = None, base_dir: Path = Path()) -> Table:
    """Decoded images, `data` uint8 (channels, height, width), and their labels, `label` () or (labels,).

    `data` varies in size unless new_height and new_width, or equal_sizes, are given. `label` is int64 if all labels are
    written as integers, else float32; one label on each line has no axis of its own, as in Caffe.
    """
    checked = picture_options(options, ImageListOptions, f"source {_KIND}")
    require_sizes(checked, f"source {_KIND}")
    path = checked.path if is_url(checked.path) else str(in_folder(base_dir, checked.path))
    try:
        text = WholeObjects().content(path) if is_url(path) else read_whole(os.fsencode(path))
    except OSError as error:
        advice = GIVEN_PICTURES if not is_url(path) and Path(path).is_dir() else "check path"
        raise SourceError(f"image list {path} cannot be read: {error.strerror or error}; {advice}") from error
    parsed, written = parse_image_list(text, path, checked.labels)
    advice = "choose another label_dtype: float64 holds whole numbers below 2**53, int64 those below 2**63"
    labels = label_values(written, checked.label_dtype, lambda index: f"image list {parsed.line(index)}", advice)
    # 1,000,000 lines of 30 bytes take 44 MB, once for all processes.
    arrays = {name: parsed.arrays[name] for name in ("paths", "ends", "lines")}
    memory = Memory(_KIND, {**arrays, "labels": labels})
    listed = ListedImages(memory, path)
    root = checked.root_folder
    files = WholeFiles(
        listed,
        os.fsencode(root if is_url(root) else in_folder(base_dir, root)),
        f"source {_KIND}",
        prefixed=bool(root),
        any_remote=is_url(root) or b"://" in text or b"::/" in text,
        are_looked_at=checked.check_files,
        or_else=", or set check_files: false if none changes",
    )
    give_back_freed_memory()
    place = _Place(listed, files)

    def learn(index: int) -> Field[bytes]:
        with naming(_KIND, path, index, place.where(index), place.path(index)):
            return picture_field(checked, f"source {_KIND}", lambda: files.read(index))

    bad: list[SampleError] = []

    def check() -> None:
        if checked.check_files:
            _check_files(listed, files, checked)
        if bad:
            raise bad[0]

    try:
        pictures, bad = learnt_of(learn, range(len(listed)))
    except SampleError:
        check()  # which says more of a file that is not there
        raise

    columns: list[Column] = [Records(files, len(listed), {"data": pictures}, path=place.path, others=[memory])]
    if memory["labels"].size:
        columns.append(Resident("label", memory, "labels"))
    return Table(
        _KIND,
        columns,
        held_in=path,
        where=place.where,
        tops=tops,
        what=f"source {_KIND}: {path}{'' if len(columns) > 1 else ' (its lines have no labels)'}",
        options=without_paths(checked),
        check=check,
    )


class _Place(msgspec.Struct, frozen=True):
    """The place of a sample, for messages."""

    listed: ListedImages
    files: WholeFiles

    def where(self, index: int) -> str:
        return f"{self.listed.line(index)}: {self.path(index)}"

    def path(self, index: int) -> str:
        return os.fsdecode(self.files.path(index))


def _check_files(listed: ListedImages, files: WholeFiles, options: ImageListOptions) -> None:
    """Raises SourceError if one of the first images cannot be one; the others are looked at when they are read."""
    looks = [look_at(files.path(index)) for index in range(min(_CHECKED_AT_ONCE, len(listed)))]
    if wrong := [(index, reason) for index, (_, _, reason) in enumerate(looks) if reason]:
        index, reason = wrong[0]
        _check_label(listed, files, options, index)
        others = f" ({len(wrong) - 1} more of the first {_CHECKED_AT_ONCE}, too)" if len(wrong) > 1 else ""
        raise SourceError(
            f"image list {_Place(listed, files).where(index)} is no image: {reason}{others}; check the list, whose "
            f"lines are a path, a space and labels, and root_folder {options.root_folder!r}, or leave out this check "
            "by check_files: false"
        )


def _check_label(listed: ListedImages, files: WholeFiles, options: ImageListOptions, index: int) -> None:
    """Raises SourceError if the line of image `index` is a path and the name of a class, taken for a path."""
    path, *word = listed[index].rsplit(None, 1)
    if not listed.arrays["labels"].size and word and not look_at(files.located(path))[2]:
        given = "none, by labels: 0" if options.labels == 0 else "a number; give each class a number, from 0"
        raise SourceError(
            f"image list {listed.line(index)}: the label of {os.fsdecode(path)} is {os.fsdecode(word[0])!r}: "
            f"expected {given}"
        )
