"""A file with the data's position at each of Caffe's snapshots, stored beside them.

Caffe's `.solverstate` holds no position in the data, and Caffe does not notify a layer of snapshots. But it calls the
layer before each batch: a snapshot that is new then was written after the previous batch. No batch follows the last
snapshot of a run, so the position after each batch is stored, too, with its iteration. Another run may have written
snapshots since, without a state file. So the newest position counts only for a snapshot of the same iteration that has
the other snapshots' prefix and is no older than the file's last write.

The first line is the newest position. Its fixed length allows overwriting it in place: 10 µs a batch. A line is added
for each snapshot.
"""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import msgspec

from ..workers.base import ParameterError, in_folder, write_whole
from ..workers.plan import State
from .last_words import is_embedded

_LINE = 4096
_SETTLED_NS = 10_000_000_000
_SNAPSHOT = re.compile(r"_iter_(\d+)\.solverstate(\.h5)?$")

_PREFIX = re.compile(r"""(?<!\w)snapshot_prefix\s*:\s*("[^"]*"|'[^']*')""")
_ITER_SIZE = re.compile(r"(?<!\w)iter_size\s*:\s*(\d+)")
_COMMENT_OR_STRING = re.compile(r"""("[^"]*"|'[^']*')|\#[^\n]*""")

_log = logging.getLogger("blobfeed")


_in_use: set[tuple[Path, int]] = set()


@dataclass(frozen=True)
class _Count:
    """The batches delivered since a snapshot, or since the start, which is iteration 0."""

    since: int
    """the snapshot's iteration"""
    iter_size: int
    """batches in an iteration"""
    batches: int = 0

    def is_at(self, iteration: int) -> bool:
        return self.batches == self.iter_size * (iteration - self.since)

    def may_be_new(self, iteration: int) -> bool:
        """Return false for the iteration of an earlier snapshot: a new file with that number is a copy."""
        return iteration > self.since or self.is_at(iteration)

    def at_snapshot(self, iteration: int) -> _Count:
        """Restart the count at a snapshot of this run, which also shows the number of batches in an iteration.

        So the next snapshot's position is right even if a script has called `net.forward()` before.
        """
        taken = iteration - self.since
        size = self.batches // taken if taken > 0 and self.batches % taken == 0 else self.iter_size
        return _Count(iteration, size)


class StateFile:
    """Writes and reads the file `path`, in the folder of the snapshots. All methods raise ParameterError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: dict[str, State] = {}
        self._count = _Count(0, _iter_size_of_command() or 1)
        self._is_restored = False
        self._file: int | None = None
        self._first_line_bytes = _LINE
        self._folder_stamp: int | None = None
        try:
            self._known = self._names()
            self._found = {name: self._stamp(name) for name in self._known}
            """Snapshots of an earlier run."""
            self._old = dict(self._found)
            """The part of them that this run may overwrite; it writes its own only once."""
        except OSError as error:
            self._fail(f"its folder cannot be read: {error.strerror}; expected the folder of the solver's snapshots")

    def restore(self, snapshot: Path, load: Callable[[State], None]) -> None:
        """Call `load` with the data's position at `snapshot`; if it raises, nothing has changed."""
        states, newest, count = self._read()
        if snapshot.name not in states and not self._is_last(snapshot, states, count):
            known = ", ".join(states) or "none"
            self._fail(
                f"it does not say where the data stood at {snapshot.name}, only at {known}, and after {count.batches} "
                f"batches from iteration {count.since} on ({count.iter_size} in an iteration): it must lie in the "
                "folder of the snapshots, and the run that writes them must have it as its 'state_file'; to begin the "
                "data anew, leave out 'state_file'"
            )
        state = states.get(snapshot.name, newest)
        load(state)
        self._count = _Count(_number(snapshot.name), _iter_size_of_command() or count.iter_size)
        # Snapshots with higher numbers will be overwritten, with other positions.
        self._kept = {name: old for name, old in states.items() if _number(name) < _number(snapshot.name)}
        self._kept[snapshot.name] = state
        self._old = {name: stamp for name, stamp in self._found.items() if _number(name) > _number(snapshot.name)}
        self._is_restored = True

    def _is_last(self, snapshot: Path, states: Mapping[str, State], count: _Count) -> bool:
        """Return true if `snapshot` was written after the last batch in `count`."""
        found = _SNAPSHOT.search(snapshot.name)
        if found is None or not count.is_at(int(found[1])):
            return False
        if states and _prefix(snapshot.name) not in map(_prefix, states):
            return False
        try:
            return snapshot.stat().st_mtime_ns >= self._path.stat().st_mtime_ns
        except OSError as error:
            self._fail(f"{snapshot} cannot be looked at: {error.strerror}")

    def before_batch(self, state: State) -> None:
        """Store `state`, the position of the next batch, for snapshots written since the previous batch."""
        try:
            if self._file is None:
                self._file = self._begin(state)
            new = self._new_snapshots()
            if names := sorted((name for name in new if self._count.may_be_new(_number(name))), key=_number):
                _append(self._file, b"".join(_line(name, state) for name in names))
                self._count = self._count.at_snapshot(_number(names[-1]))
        except OSError as error:
            self._fail(f"it cannot be written: {error.strerror}")

    def after_batch(self, state: State) -> None:
        """Store `state`, the position of the next batch, as the newest."""
        if self._file is None:
            return
        self._count = replace(self._count, batches=self._count.batches + 1)
        line = self._first_line(state)
        try:
            if len(line) <= self._first_line_bytes:
                os.pwrite(self._file, line, 0)
            else:  # it has grown, for example by new weights: a file with a longer first line replaces this one
                self._kept, *_ = self._read()
                self._is_restored = True
                self._close_file()
                self._file = self._begin(state)
        except OSError as error:
            self._fail(f"it cannot be written: {error.strerror}")

    def close(self) -> None:
        _in_use.difference_update({(self._path, rank) for path, rank in _in_use if path == self._path})
        self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _begin(self, state: State) -> int:
        """Open a new file with those positions of the old one that are still valid."""
        if not self._is_restored and self._path.exists():
            _log.warning(
                "state_file %s: training begins anew, and the file forgets where the data stood at earlier snapshots; "
                "to go on from one, name it: `caffe train --snapshot=…`, or in pycaffe the layer's restore(snapshot)",
                self._path,
            )
        # A stream's position is longer the more shards it has, and grows a little during a run.
        self._first_line_bytes = max(_LINE, 2 * len(json.dumps(state)))
        kept = b"".join(_line(name, old) for name, old in self._kept.items())
        write_whole(self._path, self._first_line(state) + kept)
        return os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)

    def _first_line(self, state: State) -> bytes:
        line = json.dumps({"count": vars(self._count), "state": state})
        return line.encode().ljust(self._first_line_bytes - 1) + b"\n"

    def _new_snapshots(self) -> set[str]:
        """Return the snapshots written since the last call; this run's own are found by the folder's time alone."""
        new = {name for name, stamp in self._old.items() if self._stamp(name) != stamp}
        for name in new:
            del self._old[name]
        changed = self._path.parent.stat().st_mtime_ns
        if changed != self._folder_stamp:
            names = self._names()
            new |= names - self._known
            self._known = names
            # Another file may appear within the resolution of the file system's times.
            self._folder_stamp = changed if time.time_ns() - changed > _SETTLED_NS else None
        return new & self._known

    def _names(self) -> set[str]:
        with os.scandir(self._path.parent) as entries:
            return {entry.name for entry in entries if _SNAPSHOT.search(entry.name)}

    def _stamp(self, name: str) -> tuple[int, int, int] | None:
        """Return a stamp that differs after the snapshot is overwritten; None if the snapshot is gone."""
        try:
            found = self._path.with_name(name).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self) -> tuple[dict[str, State], State, _Count]:
        try:
            newest, *others = map(json.loads, self._path.read_text().splitlines())
            states = {line["snapshot"]: dict(line["state"]) for line in others}
            return states, dict(newest["state"]), msgspec.convert(newest["count"], _Count)
        except OSError as error:
            self._fail(f"it cannot be read: {error.strerror}; to begin the data anew, leave out 'state_file'")
        except (ValueError, KeyError, TypeError, msgspec.ValidationError) as error:  # no ValueError in msgspec 0.18
            self._fail(f"it is no file of positions, or damaged: {type(error).__name__}: {error}")

    def _fail(self, why: str) -> NoReturn:
        raise ParameterError(f"parameter 'state_file' is {str(self._path)!r}: {why}")


def path_of(state_file: str, base_dir: Path, rank: int, *, in_caffe: bool = False) -> Path | None:
    """Return the path for the parameter `state_file`; raises ParameterError.

    `auto`: a file beside the snapshots of the solver in the command `caffe train`, one for each layer of the net with
    `auto`, in order; None in blobfeed's own trainer, whose snapshots include the data's position.
    """
    if state_file != "auto":
        return in_folder(base_dir, state_file)
    if (solver := of_command("solver")) is None:
        if not in_caffe:
            return None
        raise ParameterError(
            "parameter 'state_file' is 'auto': only the command `caffe train` says where the snapshots will lie, and "
            "this is another program; name a file in their folder, such as state_file: runs/data.json"
        )
    prefix = _prefix_of(Path(solver))
    endings = itertools.chain([""], map("_{}".format, itertools.count(2)))
    names = (prefix.with_name(f"{prefix.name}_data{ending}.json") for ending in endings)
    path = next(name for name in names if (name, rank) not in _in_use)
    _in_use.add((path, rank))
    return path


def _prefix_of(solver: Path) -> Path:
    found = _PREFIX.search(_text_of(solver))
    return snapshot_prefix(found[1][1:-1] if found else "", solver)


def _iter_size_of_command() -> int | None:
    """Return the iter_size of the solver in the command `caffe train`; None in pycaffe."""
    if (solver := of_command("solver")) is None:
        return None
    found = _ITER_SIZE.search(_text_of(Path(solver)))
    return int(found[1]) if found else 1


def _text_of(solver: Path) -> str:
    """Read the solver's text without its comments; raises ParameterError."""
    try:
        text = solver.read_text()
    except OSError as error:
        raise ParameterError(
            f"parameter 'state_file': the solver {str(solver)!r} of the command cannot be read: {error.strerror}"
        ) from None
    return _COMMENT_OR_STRING.sub(lambda part: part[1] or "", text)


def snapshot_prefix(given: str, solver: Path) -> Path:
    """Return the prefix of the names of `solver`'s snapshots, by the rule of Caffe's UpgradeSnapshotPrefixProperty.

    `given`: its snapshot_prefix. One that ends in a slash names a folder, which need not exist yet.
    """
    if not given:
        return solver.with_suffix("")
    return Path(given, solver.stem) if given.endswith("/") or Path(given).is_dir() else Path(given)


def of_command(option: str) -> str | None:
    """Return an option of the command `caffe train`, by the rules of gflags; None in pycaffe, which has no command."""
    if not is_embedded():
        return None
    words = Path("/proc/self/cmdline").read_bytes().decode(errors="surrogateescape").split("\0")
    for word, following in itertools.pairwise(words):
        name, equals, value = word.partition("=")
        if name in (f"-{option}", f"--{option}"):
            return value if equals else following
    return None


def _number(snapshot: str) -> int:
    found = _SNAPSHOT.search(snapshot)
    return int(found[1]) if found else 0


def _prefix(snapshot: str) -> str:
    return _SNAPSHOT.sub("", snapshot)


def _append(file: int, lines: bytes) -> None:
    """Write `lines` at the end, or nothing: a part of a line would make the whole file unreadable."""
    end = os.lseek(file, 0, os.SEEK_END)
    if os.write(file, lines) < len(lines):
        os.ftruncate(file, end)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _line(snapshot: str, state: Mapping[str, object]) -> bytes:
    return json.dumps({"snapshot": snapshot, "state": state}).encode() + b"\n"
