"""WebDataset shards by index: `{tar: {path: shards/train-*.tar, members: {data: jpg, label: cls}, …}}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...workers.api import IndexArray, Outlier, Paths, Positive, Tops, chosen
from ...workers.base import SampleError, SourceError
from ..files import PackedNames, examined_stamp, expand_paths, kept, locate_part, without_paths
from ..files.roles import in_order
from ..images import PICTURES, PictureOptions, picture_field, picture_options
from ..stored import FileStore
from ..table import Field, Records, Table, learnt_of, naming
from .fields import member_field
from .index import TarIndex, make_index

_WHAT = "source tar"


class TarOptions(PictureOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of `source: {tar: …}`, beside those of all pictures.

    path: a tar file, a list of them, or a glob; files or URLs.
    members: for each top the extension of its members, several that may stand for each other as in "jpg;png", or a key
        of a JSON object, "json:width"; without it each extension of the first sample is a top of that name.
    max_length: the most bytes of a text, of JSON, or of a member that is delivered as bytes; a larger one is an error,
        or replaced by `on_error: replace`. Without it there is room for the largest.
    limit: only the first so many samples.
    """

    path: Paths
    members: dict[str, str] = msgspec.field(default_factory=dict)
    max_length: Positive | None = None
    limit: Positive | None = None


def open_tar(options: Mapping[str, object], *, tops: Tops = None, base_dir: Path = Path()) -> Table:
    """The samples of tar files in their order: pictures uint8 (channels, height, width), .cls int64, .npy as they are,
    .txt and .json as strings, anything else uint8 (bytes,) of varying length.

    The places of the members are found once, and kept in the user's cache folder as long as the files stay as they are.
    Raises ParameterError, SourceError, SampleError for a first sample that cannot be read.
    """
    checked = picture_options(options, TarOptions, _WHAT)
    stamps = [examined_stamp(path, _WHAT) for path in expand_paths(checked.path, base_dir, _WHAT)]
    indices = [kept("tar", [each], (), TarIndex, partial(make_index, each)) for each in stamps]
    keys = [index.keys for index in indices]
    shards = _Shards([stamp.path for stamp in stamps], keys, np.cumsum([0, *map(len, keys)], dtype=np.int64))
    samples = min(checked.limit or len(shards), len(shards))
    if not samples:
        raise SourceError(f"{_WHAT}: no samples: {', '.join(shards.paths)} hold no members")
    files = FileStore(stamps)
    begins = files.starts[[files.number(stamp) for stamp in stamps]].repeat(np.diff(shards.starts))[:samples]
    wanted = _wanted(checked, indices, tops)
    held = sorted({extension for index in indices for extension in index.extensions})
    columns = []
    for extensions in dict.fromkeys(extensions for extensions, _ in wanted.values()):
        within = {top: key for top, (each, key) in wanted.items() if each == extensions}
        offsets, sizes, which = _found(extensions, indices, samples)
        addresses = np.where(offsets < 0, -1, begins + offsets)
        columns.append(_Members(files, shards, extensions, within, addresses, sizes, which, checked, held))

    def check() -> None:
        for column in columns:
            column.check_samples()

    return Table(
        "tar",
        columns,
        held_in=stamps[0].path,
        where=shards.where,
        tops=tuple(wanted),
        options=without_paths(checked),
        check=check,
    )


class _Shards(msgspec.Struct, frozen=True):
    """The names of the samples: the tar file and the key of each. `starts`: the first sample of each file."""

    paths: list[str]
    keys: list[PackedNames]
    starts: IndexArray

    def __len__(self) -> int:
        return int(self.starts[-1])

    def where(self, index: int) -> str:
        number, local = locate_part(self.starts, index)
        return f"{self.paths[number]}:{self.keys[number][local].decode(errors='backslashreplace')}"


class _Members(Records[tuple[int, int], bytes]):
    """The tops that are made of the members of one extension, or of `extensions` that stand for each other.

    `keys`: for each top the key into the members' JSON, or "". `addresses`, `sizes`, `which`: of each sample's member,
    the last the number of its extension.
    """

    def __init__(
        self,
        files: FileStore,
        shards: _Shards,
        extensions: Sequence[str],
        keys: Mapping[str, str],
        addresses: IndexArray,
        sizes: IndexArray,
        which: NDArray[np.uint8],
        options: TarOptions,
        held: Sequence[str],
    ) -> None:
        self._files, self._addresses, self._sizes, self._which = files, addresses, sizes, which
        self._extensions, self._keys, self._shards = extensions, keys, shards
        self._held, self._lacking, there = held, np.flatnonzero(addresses < 0), np.flatnonzero(addresses >= 0)
        self.samples = len(sizes)
        if not len(there):
            self.check_samples()
        files.begin()
        longest = options.max_length or int(sizes.max())
        are_pictures = extensions[0].rpartition(".")[2] in PICTURES

        def learn(top: str, key: str, index: int) -> Field[bytes]:
            where = shards.where(index)
            with naming("tar", shards.paths[0], index, where + self._ending(index, top), where):
                member = files.read(self._place_of(index))
                if not key and are_pictures:
                    return picture_field(options, _WHAT, partial(bytes, member))
                return member_field(extensions[0], key, member, longest)

        self._bad: list[SampleError] = []
        fields: dict[str, Field[bytes]] = {}
        for top, key in keys.items():
            fields[top], bad = learnt_of(partial(learn, top, key), there.tolist())
            self._bad += bad
        if not (options.max_length or are_pictures):  # a picture's room does not depend on its bytes
            varying = [top for top, field in fields.items() if field.spec.varies or field.spec.dtype.kind == "S"]
            self.outliers = dict.fromkeys(varying, Outlier.of(sizes))
        super().__init__(files, len(sizes), fields, place=self._place_of, path=shards.where, member=self._ending)

    def _place_of(self, index: int) -> tuple[int, int]:
        if (address := int(self._addresses[index])) < 0:
            raise ValueError(f"the sample has no member .{';'.join(self._extensions)}")
        return address, int(self._sizes[index])

    def check_samples(self) -> None:
        """Raise SourceError for a bad sample, as Source.check_samples."""
        if len(self._lacking):
            first = int(self._lacking[0])
            number, local = locate_part(self._shards.starts, first)
            names = self._shards.keys[number]
            apart = sum(names[other] == names[local] for other in range(len(names))) > 1
            order = "; others of that name do not follow it: write the file with tar --sort=name" if apart else ""
            top = next(iter(self._keys))
            advice = "on_error: replace puts another sample in the place of each"
            if len(self._lacking) == len(self):
                advice = f"name one of them for {top!r}"
            raise SourceError(
                f"{_WHAT}: {len(self._lacking)} of {len(self)} samples have no member .{';'.join(self._extensions)} "
                f"for the top {top!r}, such as {self._shards.where(first)}; there are members "
                f"{', '.join(self._held)}{order}; {advice}"
            )
        if self._bad:
            raise self._bad[0]

    def _ending(self, index: int, top: str) -> str:
        key = self._keys.get(top)
        return f".{self._extensions[int(self._which[index])]}{f':{key}' if key else ''}"

    def will_need(self, indices: IndexArray, *, now: bool = False) -> bool:
        there = indices[self._addresses[indices] >= 0]
        return self._files.will_need_at(self._addresses[there], self._sizes[there], now=now)


def _wanted(options: TarOptions, indices: Sequence[TarIndex], tops: Tops) -> dict[str, tuple[tuple[str, ...], str]]:
    """Return for each top the extensions that its members may have, and the key into their JSON."""
    first = next(index for index in indices if len(index.keys))
    present = [ext for number, ext in enumerate(first.extensions) if first.offsets[0, number] >= 0]
    members = options.members or {extension: extension for extension in in_order(present)}
    wanted = chosen(members, tops, f"{_WHAT}: parameter 'members', such as {{data: jpg, label: cls}}")
    parted = {top: member.partition(":") for top, member in wanted.items()}
    return {
        top: (tuple(extension.strip().removeprefix(".") for extension in extensions.lower().split(";")), key)
        for top, (extensions, _, key) in parted.items()
    }


def _found(
    extensions: Sequence[str], indices: Sequence[TarIndex], samples: int
) -> tuple[IndexArray, IndexArray, NDArray[np.uint8]]:
    """Return of each sample's member the offset in its file, -1 if it has none, the size, and which extension."""
    found = np.full((3, samples), -1, np.int64)
    for nth, extension in enumerate(extensions):
        columns = [np.stack([*index.column(extension), np.full(len(index.keys), nth)]) for index in indices]
        found = np.where(found[0] < 0, np.concatenate(columns, axis=1)[:, :samples], found)
    return found[0], found[1], np.maximum(found[2], 0).astype(np.uint8)
