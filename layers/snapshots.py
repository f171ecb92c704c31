"""The iteration of a snapshot of Caffe's, which says where the data stood: so many batches from the run's start.

A `.solverstate` holds no position in the data, and Caffe tells a layer neither of snapshots nor of iterations. Watching
the folder of the snapshots was tried: it took a file beside them, and that went wrong when another run wrote there. The
name of the snapshot has the iteration, and the command `caffe train` has the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..workers.base import ParameterError
from .last_words import is_embedded

_NAME = re.compile(r"_iter_(\d+)\.solverstate(\.h5)?$")


def iteration_of(snapshot: Path | str) -> int:
    """Return the iteration in the name of a snapshot of Caffe's; raises ParameterError."""
    if (found := _NAME.search(str(snapshot))) is None:
        raise ParameterError(
            f"the snapshot {str(snapshot)!r} has no iteration in its name: expected a name as Caffe gives it, such as "
            "net_iter_1200.solverstate; give it that name, or say the number with resume: 1200"
        )
    return int(found[1])


def iteration_of_command(*, in_caffe: bool) -> int:
    """Return the iteration at which the command `caffe train` resumes, for `resume: snapshot`; 0 without a snapshot.

    `in_caffe`: Caffe has made the layer, so that only its command can know. Raises ParameterError.
    """
    if not is_embedded():
        if not in_caffe:  # blobfeed's own trainer restores the layer itself
            return 0
        raise ParameterError(
            "parameter 'resume' is 'snapshot': only the command `caffe train` names a snapshot, and this is another "
            "program: leave it out, and call the layer's restore(snapshot) beside solver.restore(snapshot)"
        )
    words = Path("/proc/self/cmdline").read_bytes().decode(errors="surrogateescape").split("\0")
    given = list(_values_of("snapshot", words[1:]))
    return iteration_of(given[-1]) if given and given[-1] else 0


def _values_of(flag: str, words: Sequence[str]) -> Iterator[str]:
    """Yield the values that a command gives to `flag`, by the rules of gflags, by which the last one counts."""
    following = iter(words)
    for word in following:
        if word == "--":
            return
        name, equals, value = word.partition("=")
        if name in (f"-{flag}", f"--{flag}"):
            yield value if equals else next(following, "")
        elif name in ("-flagfile", "--flagfile"):
            for path in (value if equals else next(following, "")).split(","):
                yield from _values_of(flag, _flags_in(Path(path)))


def _flags_in(path: Path) -> list[str]:
    """Return the lines of a file of flags, one for each; raises ParameterError."""
    try:
        return [line for line in map(str.strip, path.read_text().splitlines()) if line.startswith("-")]
    except OSError as error:
        raise ParameterError(
            f"parameter 'resume' is 'snapshot': the command's --flagfile {str(path)!r} cannot be read: {error.strerror}"
        ) from None
