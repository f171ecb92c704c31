"""Chooses the Python that runs the assembler: of the trainer's version, with blobfeed; `sys.executable` may be wrong.

Inside a program that embeds Python, such as the `caffe train` binary, `sys.executable` is the first `python3` on PATH
or an empty string; its version can differ from the embedded one. If a virtual environment is not accessible, for
example after privileges were dropped, the Python below it runs and finds no packages.
"""

from __future__ import annotations

import os
import site
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ..base import InterpreterError

_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_NEEDED = ("blobfeed", "cloudpickle", "msgspec", "numpy", "xxhash", "zmq")
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
    """Return the path of a Python of this major.minor version that finds the assembler's imports.

    BLOBFEED_PYTHON, if set, is the only candidate. Raises InterpreterError with each candidate and its fault.
    """
    if getattr(sys, "frozen", False) and os.environ.get("BLOBFEED_PYTHON", "") in ("", sys.executable):
        # Started as an interpreter, it would run the program again, which would start itself again.
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
        if os.access(candidate, os.F_OK):  # false, not an error, in a folder without permission
            yield candidate


def _is_this_process(candidate: str) -> bool:
    """Return true for the trainer's own program, which needs no check: that would start an interpreter.

    Under another path the same file may belong to another environment, with other packages.
    """
    try:
        return candidate == sys.executable and Path(candidate).samefile("/proc/self/exe")
    except OSError:
        return False


def _answer_of(candidate: str) -> str:
    """Run the candidate in the assembler's environment; returns its version and missing packages, or its failure."""
    environment = {**child_environment(), "PYTHONSAFEPATH": "1"}
    try:
        answer = subprocess.run(
            [candidate, "-c", _ASK], capture_output=True, timeout=_ANSWER_S, check=True, text=True, env=environment
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not run: {error}"
    return answer.stdout.strip()


def child_environment() -> dict[str, str]:
    """Return the trainer's environment, extended so that a child finds this package where the trainer did.

    Numeric libraries in loaders use one thread each: the loaders themselves are the parallelism.
    """
    environment = dict(os.environ)
    if sys.flags.ignore_environment:  # -E, -I: the trainer ignores these, too
        for name in ("PYTHONPATH", "PYTHONHOME"):
            environment.pop(name, None)
    if sys.flags.utf8_mode:  # perhaps by -X utf8: both must decode file names alike
        environment["PYTHONUTF8"] = "1"
    # The folder of the top package, installed or a checkout: from there `import blobfeed` works.
    package = str(Path(str(sys.modules[__name__.partition(".")[0]].__file__)).resolve().parents[1])
    if package not in (*site.getsitepackages(), site.getusersitepackages()):
        before = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([package, before] if before else [package])
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environment.setdefault(name, "1")
    environment["BLOBFEED_ROLE"] = "assembler"
    return environment
