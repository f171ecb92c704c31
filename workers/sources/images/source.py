"""Images that a text file lists, as Caffe's ImageData layer takes them: `path label…` on each line."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from xxhash import xxh3_64_intdigest

from ...base.checks import check_options, chosen
from ...base.errors import SourceError
from ...base.files import another_host, in_folder, is_url, read_whole
from ...base.hooks import FLOAT32_WHOLE
from ...base.keys import blake2b
from ...base.source import Source, Tops
from ...base.specs import AnyArray, ArraySpec, IndexArray, NamedRows
from ...transport.memory import give_back_freed_memory
from ...transport.shared_arrays import SharedArrays
from ..files.identity import digest, of_looks, spread
from ..files.naming import Naming
from ..files.object_stores import objects_below
from ..files.remote import CONNECTIONS, WholeObjects
from .decode import REDUCES, ImageDecoder
from .file import announce_files, is_url_path, look_at, under_root
from .list_file import Labels, ListedImages, parse_image_list
from .options import ImageListOptions, check_sizes

_DATA = "data"
_LABEL = "label"
_CHECKED_AT_ONCE = 100
_FLOAT64_WHOLE = 2**53


class ImageListSource(Source):
    """Decoded images, `data` uint8 (channels, height, width), and their labels, `label` () or (labels,).

    `data` varies in size unless new_height and new_width, or equal_sizes, are given. `label` is int64 if all labels are
    written as integers, else float32; one label on each line has no axis of its own, as in Caffe.
    """

    kind: str = "image_list"
    modules = (f"{__package__}.decode",)

    def __init__(self, options: Mapping[str, object], *, tops: Tops = None, base_dir: Path = Path()) -> None:
        self._options = checked = check_options(options, ImageListOptions, f"source {self.kind}")
        self._is_url = is_url(checked.path)
        self._path = checked.path if self._is_url else str(in_folder(base_dir, checked.path))
        root = checked.root_folder
        self._root = os.fsencode(root if is_url(root) else in_folder(base_dir, root))
        self._objects = WholeObjects()
        self._memory, self._label_words, self._label_spec = self._parsed(checked)
        check_sizes(checked)  # behind it: to an empty list no size can be given
        self._any_remote = is_url(root) or b"://" in self._memory["text"].tobytes()
        if self._any_remote:
            self.rows_at_once = CONNECTIONS
        self.descriptors = (self._memory.descriptor,)
        self._sum = self._checksum()
        give_back_freed_memory()
        self._decoder = ImageDecoder(checked)
        if checked.check_files:
            self._check_files()
        self._specs = self._chosen(tops)

    def _parsed(self, options: ImageListOptions) -> tuple[SharedArrays, int, ArraySpec]:
        """The list in memory that all processes share: 1,000,000 lines of 30 bytes take 36 MB."""
        try:
            text = self._objects.content(self._path) if self._is_url else read_whole(os.fsencode(self._path))
        except OSError as error:
            said = error.strerror or error
            raise SourceError(f"image list {self._path} cannot be read: {said}; check path") from error
        listed, written = parse_image_list(text, str(self._path), options.labels)
        labels = _labels(written, listed, options.label_dtype)
        arrays = {"text": listed.text, "starts": listed.starts, "labels": _compact(labels)}
        return SharedArrays(self.kind, arrays), listed.label_words, ArraySpec(labels.shape[1:], labels.dtype)

    def __len__(self) -> int:
        return len(self._memory["starts"])

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self._specs

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        if _LABEL in out:
            cast("AnyArray", out[_LABEL])[...] = self._memory["labels"][indices]
        if _DATA in out:
            rows = out[_DATA]
            self._fetch(indices)
            for row, index in enumerate(indices.tolist()):
                with self.naming(index):
                    self._decoder.read(self._specs[_DATA], self.content(index), row, rows)

    def lend(self, indices: IndexArray) -> Iterator[Mapping[str, AnyArray]] | None:
        return self._lent(indices) if _DATA in self._specs else None

    def _lent(self, indices: IndexArray) -> Iterator[Mapping[str, AnyArray]]:
        self._fetch(indices)
        labels = self._memory["labels"][indices].astype(self._label_spec.dtype)
        for row, index in enumerate(indices.tolist()):
            with self.naming(index):
                sample = {
                    _DATA: self._decoder.planes(*self._decoder.decode_like(self._specs[_DATA], self.content(index)))
                }
            yield {**sample, _LABEL: labels[row]} if _LABEL in self._specs else sample

    def content(self, index: int) -> bytes:
        """The file of image `index` as it is; raises OSError."""
        path = self._image_path(index)
        return self._objects.content(os.fsdecode(path)) if is_url_path(path) else read_whole(path)

    def where(self, index: int) -> str:
        return f"{self._listed.line(index)}: {self._file(index)}"

    def will_need(self, indices: IndexArray) -> None:
        if _DATA in self._specs:
            self._fetch(indices)
            announce_files([path for path in map(self._image_path, indices.tolist()) if not is_url_path(path)])

    def _content(self) -> dict[str, str]:
        """Covers the list, and at most 1000 images, but with `check_files: false` or where they are objects."""
        text = blake2b(self._memory["text"].data, digest_size=16).hexdigest()
        options = {**msgspec.structs.asdict(self._options), "path": "", "root_folder": ""}
        content = {"list": text, "options": digest(sorted(options.items()))}
        if self._any_remote or not self._options.check_files:
            return content
        looks = [look_at(self._image_path(index)) for index in spread(len(self))]
        return {**content, **of_looks([size for size, *_ in looks], [time for _, time, _ in looks])}

    def fingerprint(self) -> str:
        """Covers each image's size and modification time, or an object's version, except with `check_files: false`.

        Looks at all of them; in object storage by lists of their folders.
        """
        digest = blake2b(self._memory["text"].data, digest_size=16)
        if self._options.check_files:
            looks = (look_at(self._image_path(index))[:2] for index in range(len(self)))
            digest.update(np.fromiter(itertools.chain.from_iterable(looks), np.int64, 2 * len(self)).tobytes())
            paths = map(self._image_path, range(len(self) if self._any_remote else 0))
            urls = {os.fsdecode(path) for path in paths if is_url_path(path)}
            for folder in sorted({url.rpartition("/")[0] for url in urls}):
                listed = objects_below(folder, f"source {self.kind}", ", or set check_files: false if none changes")
                digest.update(repr([found for found in listed if found[0] in urls]).encode())
        options = msgspec.structs.asdict(self._options) | {"path": str(self._path), "root_folder": str(self._root)}
        return f"{self.kind}:{digest.hexdigest()}:{list(self._specs)}:{REDUCES}:{sorted(options.items(), key=str)}"

    def close(self) -> None:
        self._decoder = ImageDecoder(self._options)
        self._objects.forget()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if host := another_host():
            self._root = os.fsencode(host.path(os.fsdecode(self._root)))
        if self._memory.is_lost:  # in a process that has not inherited it
            self._memory, self._label_words, self._label_spec = self._parsed(self._options)
            self.descriptors = (self._memory.descriptor,)
            if self._checksum() != state["_sum"]:
                raise SourceError(f"image list {self._path}: it was changed since training started; start it again")

    def _checksum(self) -> int:
        return int(xxh3_64_intdigest(self._memory["text"].data))

    def _chosen(self, tops: Tops) -> Mapping[str, ArraySpec]:
        with self.naming(0):
            known = {_DATA: self._options.spec(lambda: self._decoder.decode(self.content(0))[1])}
        if self._memory["labels"].size:
            known[_LABEL] = self._label_spec
        lacks = "" if _LABEL in known else " (its lines have no labels)"
        return chosen(known, tops, f"source {self.kind}: {self._path}{lacks}")

    def _check_files(self) -> None:
        """Raises SourceError if one of the first images cannot be one; the others are looked at when they are read."""
        looks = [look_at(self._image_path(index)) for index in range(min(_CHECKED_AT_ONCE, len(self)))]
        if wrong := [(index, reason) for index, (_, _, reason) in enumerate(looks) if reason]:
            index, reason = wrong[0]
            self._check_label(index)
            others = f" ({len(wrong) - 1} more of the first {_CHECKED_AT_ONCE}, too)" if len(wrong) > 1 else ""
            raise SourceError(
                f"image list {self.where(index)} is no image: {reason}{others}; check the list and root_folder "
                f"{self._options.root_folder!r}, or leave out this check by check_files: false"
            )

    def _check_label(self, index: int) -> None:
        """Raises SourceError if the line of image `index` is a path and the name of a class, taken for a path."""
        path, *word = self._listed.path(index).rsplit(None, 1)
        if not self._label_words and word and not look_at(self._located(path))[2]:
            given = "none, by labels: 0" if self._options.labels == 0 else "a number; give each class a number, from 0"
            raise SourceError(
                f"image list {self._listed.line(index)}: the label of {os.fsdecode(path)} is "
                f"{os.fsdecode(word[0])!r}: expected {given}"
            )

    @property
    def _listed(self) -> ListedImages:
        memory = self._memory
        return ListedImages(str(self._path), memory["text"], memory["starts"], self._label_words)

    def _fetch(self, indices: IndexArray) -> None:
        """Start fetching those of the images that are in object storage."""
        if self._any_remote:
            paths = map(self._image_path, indices.tolist())
            self._objects.fetch(os.fsdecode(path) for path in paths if is_url_path(path))

    def _image_path(self, index: int) -> bytes:
        return self._located(self._listed.path(index))

    def _file(self, index: int) -> str:
        return os.fsdecode(self._image_path(index))

    def _located(self, path: bytes) -> bytes:
        return under_root(self._root, path, always=bool(self._options.root_folder))

    def naming(self, index: int) -> Naming:
        return Naming(self, index, self._path, self._file)


def _labels(written: Labels, listed: ListedImages, dtype: str) -> AnyArray:
    """The labels in the type that `dtype` asks for, shape (images,) if each has one, else (images, labels)."""
    whole = np.issubdtype(written.dtype, np.integer)
    target: np.dtype[Any] = np.dtype(("int64" if whole else "float32") if dtype == "auto" else dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        cast = written.astype(target)
    kept = cast.astype(written.dtype) == written
    if not whole:
        # A fraction that is rounded is still the label; a whole number is not, and beyond 2**53 it was rounded before.
        size = np.abs(written)
        kept = (kept | ((target.kind == "f") & (size <= FLOAT32_WHOLE))) & (size < _FLOAT64_WHOLE)
    if not kept.all():
        index, label = np.argwhere(~kept)[0]
        raise SourceError(
            f"image list {listed.line(index)}: label {written[index, label].item()} cannot be held by {target.name}; "
            "choose another label_dtype: float64 holds whole numbers below 2**53, int64 those below 2**63"
        )
    return cast[:, 0] if cast.shape[1:] == (1,) else cast


def _compact(labels: AnyArray) -> AnyArray:
    """Whole numbers in the smallest type that holds all of them; others as they are."""
    if labels.dtype.kind != "i" or not labels.size:
        return labels
    low, high = int(labels.min()), int(labels.max())
    # A type that holds ~high, which is negative, holds high. NumPy's common type of uint64 and int64 is float64.
    return labels.astype(np.min_scalar_type(high if low >= 0 else min(low, ~high)))
