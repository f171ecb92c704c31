"""Choose the Python that runs the assembler: of the trainer's version, with blobfeed; `sys.executable` may lie.

Inside a program that embeds Python, such as the `caffe train` binary, `sys.executable` is the first `python3` on PATH
or an empty string; it can be another version than the one embedded. If a virtual environment is out of reach, as after
privileges were dropped, the Python below it runs, and has no packages.
"""

from __future__ import annotations

import os
import site
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ..base.errors import InterpreterError

_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_NEEDED = ("blobfeed", "cloudpickle", "msgspec", "numpy", "zmq")
_ASK = f"""
import sys
version = "%d.%d" % sys.version_info[:2]
if version == "{_VERSION}":
    from importlib.util import find_spec
    missing = [name for name in {_NEEDED} if find_spec(name) is None]
    version += missing and ", which does not find " + ", ".join(missing) or ""
print(version)
"""
_ANSWER_S = 10.0


def find_interpreter() -> str:
    """The path of a Python of this very major.minor version that finds what the assembler imports.

    Raises InterpreterError that names each candidate, and what is wrong with it.

    BLOBFEED_PYTHON, if set, is the only candidate.
    """
    if getattr(sys, "frozen", False) and os.environ.get("BLOBFEED_PYTHON", "") in ("", sys.executable):
        # Asked to run the loaders, it would begin anew and start itself again.
        raise InterpreterError(
            f"no Python to run the loaders: {sys.executable} is a frozen program (made by PyInstaller or the like), "
            "which can run nothing but itself; set num_loaders: 0, so that it reads in its own process, or the "
            f"environment variable BLOBFEED_PYTHON to the path of a Python {_VERSION} that has blobfeed's packages"
        )
    tried = []
    for candidate in _candidates():
        if _is_this_process(candidate) or (answer := _answer_of(candidate)) == _VERSION:
            return candidate
        tried.append(f"{candidate} ({answer})")
    raise InterpreterError(
        f"no Python {_VERSION} found to run the loaders: tried {', '.join(tried) or 'nothing, none is known'}; "
        f"set the environment variable BLOBFEED_PYTHON to the path of a Python {_VERSION} that has blobfeed's packages"
    )


def _candidates() -> Iterator[str]:
    if chosen := os.environ.get("BLOBFEED_PYTHON"):
        yield chosen
        return
    if sys.executable:
        yield sys.executable
    for prefix in dict.fromkeys((sys.exec_prefix, sys.base_exec_prefix)):
        candidate = str(Path(prefix, "bin", f"python{_VERSION}"))
        if os.access(candidate, os.F_OK):  # no error if the folder may not be looked into
            yield candidate


def _is_this_process(candidate: str) -> bool:
    """Recognise the trainer's own program, which need not be asked: that would start an interpreter.

    Under another path the same file may belong to another environment, with other packages.
    """
    try:
        return candidate == sys.executable and Path(candidate).samefile("/proc/self/exe")
    except OSError:
        return False


def _answer_of(candidate: str) -> str:
    """Its version, and what it lacks, in the environment in which it would run."""
    environment = {**child_environment(), "PYTHONSAFEPATH": "1"}
    try:
        answer = subprocess.run(
            [candidate, "-c", _ASK], capture_output=True, timeout=_ANSWER_S, check=True, text=True, env=environment
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not run: {error}"
    return answer.stdout.strip()


def child_environment() -> dict[str, str]:
    """The trainer's environment, and what lets a child of ours find this package wherever the trainer found it.

    Numeric libraries in loaders keep to one thread each: the loaders themselves are the parallelism.
    """
    environment = dict(os.environ)
    if sys.flags.ignore_environment:  # -E, -I: the trainer was to be spared what these name
        for name in ("PYTHONPATH", "PYTHONHOME"):
            environment.pop(name, None)
    if sys.flags.utf8_mode:  # by -X utf8, perhaps: names of files have to mean the same to both
        environment["PYTHONUTF8"] = "1"
    # What holds the top package, installed or as a checkout: from there `import blobfeed` works.
    package = str(Path(str(sys.modules[__name__.partition(".")[0]].__file__)).resolve().parents[1])
    if package not in (*site.getsitepackages(), site.getusersitepackages()):
        before = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([package, before] if before else [package])
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environment.setdefault(name, "1")
    environment["BLOBFEED_ROLE"] = "assembler"
    return environment
