"""WebDataset shards by index: `{tar: {path: shards/train-*.tar, members: {data: jpg, label: cls}, …}}`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...base.checks import check_options, chosen
from ...base.errors import SourceError
from ...base.extras import need
from ...base.keys import text_digest
from ...base.parameters import Positive
from ...base.source import Tops
from ...base.specs import ArraySpec, IndexArray, NamedRows
from ..files.file import locate_part, split_by_part
from ..files.identity import digest, of_stamps
from ..files.kept import kept
from ..files.naming import Naming
from ..files.paths import expand_paths
from ..files.remote import Stamp, stamp_of
from ..images.options import PictureOptions, check_sizes
from ..stored.source import FilesSource
from ..stored.store import FileStore
from .fields import Decode, decoder_of, put_array, spec_of
from .index import TarIndex, make_index

if TYPE_CHECKING:
    from ..images.decode import ImageDecoder

_WHAT = "source tar"


class TarOptions(PictureOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of `source: {tar: …}`, beside those of all pictures.

    path: a tar file, a list of them, or a glob; files or URLs.
    members: for each top the extension of its members, several that may stand for each other as in "jpg;png", or a key
        of a JSON object, "json:width"; without it each extension of the first sample is a top of that name.
    limit: only the first so many samples.
    """

    path: str | tuple[str, ...]
    members: dict[str, str] = msgspec.field(default_factory=dict)
    limit: Positive | None = None


@dataclass(frozen=True, eq=False)
class _Field:
    """One top: the `extensions` that its members may have, `which` of them each has, and `key` into their JSON."""

    extensions: Sequence[str]
    which: NDArray[np.uint8]
    key: str
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @property
    def decode(self) -> Decode | None:
        return decoder_of(self.extensions[0], self.key)

    def member(self, index: int) -> str:
        """The extension of this sample's member, and the key in there."""
        extension = self.extensions[int(self.which[index])]
        return f"{extension}:{self.key}" if self.key else extension


class TarSource(FilesSource):
    """The samples of tar files in their order: pictures uint8 (channels, height, width), .cls int64, .npy as they are,
    .txt and .json as strings, anything else uint8 (bytes,) of varying length.

    Where the members lie is found once, and kept in the user's cache folder as long as the files stay as they are.
    """

    kind = "tar"

    def __init__(self, options: Mapping[str, object], *, tops: Tops = None, base_dir: Path = Path()) -> None:
        self._options = checked = check_options(options, TarOptions, _WHAT)
        self._stamps = tuple(_stamp(path) for path in expand_paths(checked.path, base_dir, _WHAT))
        if not self._stamps:
            raise SourceError(f"{_WHAT}: parameter 'path' is an empty list; name at least one tar file")
        indices = [kept("tar", each, TarIndex, partial(make_index, each)) for each in self._stamps]
        self._keys = [index.keys for index in indices]
        self._starts = np.cumsum([0, *map(len, self._keys)], dtype=np.int64)
        self._samples = min(checked.limit or int(self._starts[-1]), int(self._starts[-1]))
        if not self._samples:
            raise SourceError(f"{_WHAT}: no samples: {', '.join(stamp.path for stamp in self._stamps)} hold no members")
        self._fields = {top: self._field(top, *wanted, indices) for top, wanted in self._wanted(indices, tops).items()}
        super().__init__(FileStore(self._stamps))
        if any(field.decode is None for field in self._fields.values()):
            need("cv2", f"{_WHAT}, for its pictures,")
            check_sizes(self._options, _WHAT)
            self.modules = (f"{__package__.rpartition('.')[0]}.images.decode",)
        self._specs = {top: self._spec(field) for top, field in self._fields.items()}

    def _places(self, indices: IndexArray) -> Iterator[tuple[IndexArray, IndexArray]]:
        parts = np.searchsorted(self._starts, indices, side="right") - 1
        files = np.array([self._files.number(stamp) for stamp in self._stamps])
        for field in self._fields.values():
            yield self._files.starts[files[parts]] + field.offsets[indices], field.sizes[indices]

    def _read(self, indices: IndexArray, out: NamedRows) -> None:
        for number, _, positions in split_by_part(self._starts, indices):
            file = self._files.number(self._stamps[number])
            self._files.use([file])
            raw = self._files.open(file).raw
            for position in positions.tolist():
                index = int(indices[position])
                members: dict[tuple[int, int], bytes] = {}  # of several tops that are keys of one JSON, read once
                for top, field in self._fields.items():
                    place = int(field.offsets[index]), int(field.sizes[index])
                    data = members[place] = members.get(place) or raw.read(*place).tobytes()
                    with self._naming(index, field.member(index)):
                        if field.decode is None:
                            self._decoder.read(self._specs[top], data, position, out[top])
                        else:
                            put_array(field.decode(data), position, out[top])

    def where(self, index: int) -> str:
        number, local = locate_part(self._starts, index)
        return f"{self._stamps[number].path}:{self._keys[number][local].decode(errors='backslashreplace')}"

    def _content(self) -> dict[str, str]:
        options = {**msgspec.structs.asdict(self._options), "path": ""}
        return {**of_stamps(self._stamps), "options": digest(sorted(options.items()))}

    def fingerprint(self) -> str:
        options = sorted((msgspec.structs.asdict(self._options) | {"path": ""}).items(), key=str)
        text = repr((self._stamps, [(top, str(spec)) for top, spec in self._specs.items()], options))
        if self.modules:  # there are pictures
            from ..images.decode import REDUCES

            text += f":{REDUCES}"
        return f"{self.kind}:{text_digest(text)}"

    def close(self) -> None:
        super().close()
        self.__dict__.pop("_decoder", None)

    # ---- setup

    def _wanted(self, indices: Sequence[TarIndex], tops: Tops) -> dict[str, tuple[list[str], str]]:
        first = next(index for index in indices if len(index.keys))
        present = [ext for number, ext in enumerate(first.extensions) if first.offsets[0, number] >= 0]
        members = self._options.members or {extension: extension for extension in present}
        wanted = chosen(members, tops, f"{_WHAT}: parameter 'members', such as {{data: jpg, label: cls}}")
        parted = {top: member.partition(":") for top, member in wanted.items()}
        return {
            top: ([extension.strip().removeprefix(".") for extension in extensions.lower().split(";")], key)
            for top, (extensions, _, key) in parted.items()
        }

    def _field(self, top: str, extensions: Sequence[str], key: str, indices: Sequence[TarIndex]) -> _Field:
        offsets = np.full(int(self._starts[-1]), -1, np.int64)
        sizes, which = np.zeros_like(offsets), np.zeros(len(offsets), np.uint8)
        for nth, extension in enumerate(extensions):
            columns = [index.column(extension) for index in indices]
            missing = offsets < 0
            offsets[missing] = np.concatenate([column[0] for column in columns])[missing]
            sizes[missing] = np.concatenate([column[1] for column in columns])[missing]
            which[missing] = nth
        lacking = np.flatnonzero(offsets[: self._samples] < 0)
        if len(lacking):
            held = sorted({extension for index in indices for extension in index.extensions})
            number, local = locate_part(self._starts, int(lacking[0]))
            keys = self._keys[number]
            apart = sum(keys[other] == keys[local] for other in range(len(keys))) > 1
            order = "; others of that name do not follow it: write the file with tar --sort=name" if apart else ""
            raise SourceError(
                f"{_WHAT}: {len(lacking)} of {self._samples} samples have no member .{';'.join(extensions)} for the "
                f"top {top!r}, such as {self.where(int(lacking[0]))}; there are members {', '.join(held)}{order}"
            )
        return _Field(extensions, which, key, offsets, sizes)

    def _spec(self, field: _Field) -> ArraySpec:
        stamp = self._stamps[locate_part(self._starts, 0)[0]]
        raw = self._files.open(self._files.number(stamp)).raw
        data = raw.read(int(field.offsets[0]), int(field.sizes[0])).tobytes()
        with self._naming(0, field.member(0)):
            if field.decode is None:
                return self._options.spec(lambda: self._decoder.decode(data)[1])
            longest = int(field.sizes[: self._samples].max())
            return spec_of(field.extensions[0], field.key, field.decode(data), longest)

    @cached_property
    def _decoder(self) -> ImageDecoder:
        from ..images.decode import ImageDecoder

        return ImageDecoder(self._options)

    def _naming(self, index: int, member: str) -> Naming:
        return Naming(self, index, self._stamps[0].path, self.where, f".{member}")


def _stamp(path: str) -> Stamp:
    try:
        return stamp_of(path)
    except OSError as error:
        raise SourceError(f"{_WHAT}: {path!r} cannot be opened: {error.strerror}; check 'path'") from error
