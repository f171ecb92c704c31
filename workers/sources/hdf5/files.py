"""Which HDF5 files an option `path` means: one file, several, a glob, or Caffe's text file that lists them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...base.errors import SourceError
from ..stored.paths import expand_paths

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_TEXT_PROBE_BYTES = 1 << 16


def list_hdf5_files(path: str | Sequence[str], base_dir: Path, what: str) -> tuple[str, ...]:
    """The HDF5 files that `path` means, in order; none is opened beyond its signature.

    A file counts as HDF5 by its signature and not by its name; any other text file is taken as a list of files, one a
    line. Relative paths are taken from `base_dir`; those inside a list also from the list's own folder, or, as Caffe
    does, from the working directory. `what` begins the messages of the SourceErrors raised: "source hdf5".
    """
    files = expand_paths(path, base_dir, what)
    if not files:
        raise SourceError(f"{what}: parameter 'path' is an empty list; name at least one HDF5 file")
    return tuple(listed for file in files for listed in _resolve(file, base_dir, what))


def _resolve(file: Path, base_dir: Path, what: str) -> list[str]:
    _require_file(file, what)
    if has_signature(file):
        return [str(file)]
    return [str(listed) for listed in _read_list(file, base_dir, what)]


def _require_file(file: Path, what: str) -> None:
    if not file.exists():
        raise SourceError(f"{what}: there is no file {str(file)!r}; check 'path'")
    if not file.is_file():
        raise SourceError(f"{what}: {str(file)!r} is no regular file; name an HDF5 file, or use a glob such as '*.h5'")


def has_signature(file: Path) -> bool:
    """Whether the HDF5 signature stands at 0, 512, 1024, 2048, …: a user block may precede it."""
    with file.open("rb") as stream:
        size, position = file.stat().st_size, 0
        while position + len(_SIGNATURE) <= size:
            stream.seek(position)
            if stream.read(len(_SIGNATURE)) == _SIGNATURE:
                return True
            position = max(512, 2 * position)
    return False


def _read_list(file: Path, base_dir: Path, what: str) -> list[Path]:
    with file.open("rb") as stream:
        probe = stream.read(_TEXT_PROBE_BYTES)
    if not probe.strip() or b"\0" in probe:
        kind = "is empty" if not probe.strip() else "is not an HDF5 file (no signature) and not text"
        raise SourceError(f"{what}: {str(file)!r} {kind}; expected an HDF5 file or a text file that lists HDF5 files")
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{what}: {str(file)!r} is neither an HDF5 file nor a list of files in UTF-8: {error}"
        ) from None
    return [_listed(line.strip(), number, file, base_dir, what) for number, line in enumerate(lines, 1) if line.strip()]


def _listed(line: str, number: int, file: Path, base_dir: Path, what: str) -> Path:
    tried = list(dict.fromkeys(folder / line for folder in (base_dir, file.parent, Path())))
    for candidate in tried:
        if candidate.is_file():
            if not has_signature(candidate):
                raise SourceError(f"{what}: {str(file)!r} line {number}: {str(candidate)!r} is not an HDF5 file")
            return candidate
    raise SourceError(
        f"{what}: {str(file)!r} is not an HDF5 file, so it was read as a list of HDF5 files, and its line {number} "
        f"names a file that does not exist: {line!r}; looked for {', '.join(repr(str(path)) for path in tried)}"
    )
