"""Names of files and samples: which files an option `path` means, natural order, many names in little memory."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from ...workers.api import GIVEN_PICTURES, shown
from ...workers.base import SourceError, in_folder
from .object_stores import locate
from .remote import RangeStream, RemoteStamp
from .urls import is_url

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_TEXT_PROBE_BYTES = 1 << 16
_NAMES_SHOWN = 8
_PICTURE = re.compile(r"\.(jpe?g|png|bmp|gif|tiff?|webp|pgm|ppm)(\s+-?\d+)*$", re.IGNORECASE)
_BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{},]+(?:,[^{},]+)+))\}")


@dataclass(frozen=True, slots=True, eq=False)
class PackedNames:
    """Many names in one bytes object: a million str or bytes objects would take 80 MB in each loader.

    Their reference counts would also unshare the pages that forked loaders have in common. `ends`: where each ends.
    """

    joined: bytes
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, names: Iterable[bytes]) -> PackedNames:
        listed = list(names)
        return cls(b"".join(listed), np.cumsum(np.fromiter(map(len, listed), np.int64, len(listed))))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: int) -> bytes:
        return self.joined[int(self.ends[number - 1]) if number else 0 : int(self.ends[number])]


def natural_key(text: str) -> tuple[tuple[tuple[int, str], ...], str]:
    """Sorts `trajectory_2` before `trajectory_10`: runs of digits compare as numbers, and of equal ones the text."""
    parts = re.split(r"(\d+)", text)
    return tuple((int(part), "") if position % 2 else (-1, part) for position, part in enumerate(parts)), text


def expand_paths(paths: str | Sequence[str], base_dir: Path, what: str) -> list[str]:
    """The files and URLs that `paths` names, relative ones from `base_dir`, those of a glob in natural order.

    `{000..146}` stands for each of these numbers, `{train,extra}` for each of these words, as WebDataset and the shell
    have it, also in URLs of stores that give no lists.
    A path that exists is taken as it is, whatever characters it has; so is an existing folder with which a glob begins.
    Raises SourceError, its message begun by `what`, if a glob matches nothing; it does not check whether the other
    files exist.
    """
    return [
        file
        for given in ([paths] if isinstance(paths, str) else paths)
        for path in _written_out(given, base_dir)
        for file in (_expand_url(path, what) if is_url(path) else _expand(in_folder(base_dir, path), what))
    ]


def _written_out(path: str, base_dir: Path) -> list[str]:
    """A path for each number or word that the braces in `path` stand for."""
    found = _BRACES.search(path)
    nested = found and path.count("{", 0, found.start()) > path.count("}", 0, found.start())  # not as the shell has it
    if not found or nested or (not is_url(path) and os.access(in_folder(base_dir, path), os.F_OK)):
        return [path]
    first, last, words = found.groups()
    if words is not None:
        parts = words.split(",")
    else:
        step = 1 if int(first) <= int(last) else -1
        parts = [f"{number:0{len(first)}}" for number in range(int(first), int(last) + step, step)]
    before, after = path[: found.start()], path[found.end() :]
    return [one for part in parts for one in _written_out(f"{before}{part}{after}", base_dir)]


def _expand_url(url: str, what: str) -> list[str]:
    if "*" not in url:
        return [url]
    store, pattern = locate(url)
    if url.startswith("http"):
        raise SourceError(
            f"{what}: {url!r} has a *, and HTTP has no lists: name each object, or a range of numbers, {{000..146}}"
        )
    found = sorted(store.matching(pattern), key=natural_key)
    if not found:
        raise SourceError(f"{what}: no object matches {url!r}")
    return [store.url(key) for key in found]


def _expand(path: Path, what: str) -> list[str]:
    try:
        there = path.exists()
    except OSError as error:  # longer than a name may be
        raise SourceError(f"{what}: the path {shown(str(path))} cannot be looked up: {error.strerror}") from error
    if there or not glob.has_magic(str(path)):
        return [str(path)]
    folder = next((parent for parent in path.parents if os.access(parent, os.F_OK)), path.parents[-1])
    pattern = Path(glob.escape(str(folder)), path.relative_to(folder))
    found = sorted(glob.glob(str(pattern), recursive=True), key=natural_key)
    if not found:
        raise SourceError(f"{what}: no file matches {str(path)!r}; {_held_by(folder)}")
    return found


def _held_by(folder: Path) -> str:
    """The folder and the first names in it, for a message."""
    try:
        names = sorted((entry.name for entry in folder.iterdir()), key=natural_key)
    except OSError as error:
        return f"the folder {str(folder)!r} cannot be listed: {error.strerror}"
    if not names:
        return f"the folder {str(folder)!r} is empty"
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"the folder {str(folder)!r} holds {', '.join(names[:_NAMES_SHOWN])}{more}"


def list_hdf5_files(paths: str | Sequence[str], base_dir: Path, what: str) -> tuple[str, ...]:
    """The HDF5 files that `paths` means, in order; only their signatures are read.

    A file counts as HDF5 by its signature and not by its name. Any other text file is taken as a list of files, one a
    line, as Caffe's HDF5Data has it. Relative paths are taken from `base_dir`; those inside a list also from the list's
    own folder, or, as in Caffe, from the working directory. `what` begins the messages of the SourceErrors raised.
    """
    files = expand_paths(paths, base_dir, what)
    if not files:
        raise SourceError(f"{what}: no paths: name at least one HDF5 file")
    found: list[Path | str] = []
    for file in files:
        try:
            found += [_signed(file, what)] if is_url(file) else _resolve(Path(file), base_dir, what)
        except OSError as error:  # a failed read does not say of which file
            raise SourceError(
                f"{what}: {error.filename or file!r} cannot be read: {error.strerror or error}"
            ) from error
    return tuple(map(str, found))


def _signed(url: str, what: str) -> str:
    if not _has_signature(RangeStream(RemoteStamp.of(url))):
        raise SourceError(f"{what}: {url!r} is not an HDF5 file (no signature); a list of files must be a local one")
    return url


def _resolve(file: Path, base_dir: Path, what: str) -> list[Path | str]:
    """`file` itself if it is HDF5, else the HDF5 files that it lists."""
    if not file.exists():
        raise SourceError(f"{what}: there is no file {str(file)!r}; check 'path'")
    if not file.is_file():
        hint = f"; {GIVEN_PICTURES}" if file.is_dir() else ""
        raise SourceError(
            f"{what}: {str(file)!r} is no regular file; name an HDF5 file, or use a glob such as '*.h5'{hint}"
        )
    with file.open("rb") as stream:
        if _has_signature(stream):
            return [file]
        stream.seek(0)
        probe = stream.read(_TEXT_PROBE_BYTES)
    if not probe.strip() or b"\0" in probe:
        kind = "is empty" if not probe.strip() else "is not an HDF5 file (no signature) and not text"
        expected = (
            "expected an HDF5 file or a text file that lists HDF5 files; `blobfeed inspect` with this path says which "
            "source reads it"
        )
        raise SourceError(f"{what}: {str(file)!r} {kind}; {GIVEN_PICTURES if _PICTURE.search(file.name) else expected}")
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{what}: {str(file)!r} is neither an HDF5 file nor a list of files in UTF-8: {error}"
        ) from None
    return [_listed(line.strip(), number, file, base_dir, what) for number, line in enumerate(lines, 1) if line.strip()]


def is_table(file: Path) -> bool:
    """Return true for a table of text, by the end of its name."""
    return file.suffix.lower() in (".csv", ".tsv")


def table_advice(file: Path) -> str:
    """Return what to do with a table of text."""
    separator = ", sep='\\t'" if file.suffix.lower() == ".tsv" else ""
    return (
        f"{str(file)!r} is a table of text, which would be parsed anew in each epoch: convert it once, in Python by "
        f"pandas.read_csv({str(file)!r}{separator}).to_parquet({str(file.with_suffix('.parquet'))!r}), and name that "
        "file, as {parquet: {path: FILE}}"
    )


def _has_signature(stream: IO[bytes] | RangeStream) -> bool:
    """Return true if the HDF5 signature stands at 0, 512, 1024, 2048, …: a user block may precede it."""
    size, position = stream.seek(0, os.SEEK_END), 0
    while position + len(_HDF5_SIGNATURE) <= size:
        stream.seek(position)
        if stream.read(len(_HDF5_SIGNATURE)) == _HDF5_SIGNATURE:
            return True
        position = max(512, 2 * position)
    return False


def _listed(line: str, number: int, file: Path, base_dir: Path, what: str) -> Path | str:
    if is_url(line):
        return _signed(line, what)
    tried = list(dict.fromkeys(in_folder(folder, line) for folder in (base_dir, file.parent, Path())))
    found = next((path for path in tried if path.is_file()), None)
    if _PICTURE.search(line):
        raise SourceError(
            f"{what}: {str(file)!r} is not an HDF5 file, and its line {number} names a picture, {line!r}: "
            f"{GIVEN_PICTURES}"
        )
    if found is None and is_table(file):
        raise SourceError(f"{what}: {table_advice(file)}")
    if found is None:
        raise SourceError(
            f"{what}: {str(file)!r} is not an HDF5 file, so it was read as a list of HDF5 files, and its line {number} "
            f"names a file that does not exist: {line!r}; looked for {', '.join(repr(str(path)) for path in tried)}"
        )
    with found.open("rb") as stream:
        if not _has_signature(stream):
            raise SourceError(f"{what}: {str(file)!r} line {number}: {str(found)!r} is not an HDF5 file")
    return found
