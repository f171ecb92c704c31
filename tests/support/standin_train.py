"""Compiles caffe_train.c against the Python that runs the tests, and says in which environment it runs."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from functools import cache
from pathlib import Path

import pytest

import blobfeed

_SOURCE = Path(__file__).with_name("caffe_train.c")


@cache
def compile_caffe_train(*flags: str) -> Path:
    """The program, made once in a process; skips the test if there is nothing to build it with."""
    compiler = shutil.which(os.environ.get("CC", "")) or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler: none of $CC, cc, gcc is there")
    include = sysconfig.get_path("include")
    if not Path(include, "Python.h").exists():
        pytest.skip(f"needs Python's headers: no Python.h in {include}")
    program = Path(tempfile.mkdtemp(dir=os.environ["XDG_CACHE_HOME"])) / "caffe_train"  # removed at the end of the run
    command = [compiler, "-O1", "-Wall", "-I", include, str(_SOURCE), "-o", str(program), *_link_flags(), *flags]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stderr}"
    return program


def _link_flags() -> list[str]:
    variables = sysconfig.get_config_vars()
    folders = (variables["LIBDIR"], variables["LIBPL"])
    name = f"python{variables['LDVERSION']}"
    shared = [folder for folder in folders if Path(folder, f"lib{name}.so").exists()]
    static = [Path(folder, f"lib{name}.a") for folder in folders if Path(folder, f"lib{name}.a").exists()]
    if not shared and not static:
        pytest.skip(f"needs a library of Python to embed: no lib{name}.so or lib{name}.a in {' or '.join(folders)}")
    library = [f"-L{shared[0]}", f"-Wl,-rpath,{shared[0]}", f"-l{name}"] if shared else [str(static[0])]
    needed = [variables[key] or "" for key in ("LINKFORSHARED", "LIBS", "SYSLIBS", "LIBM")]
    return [*library, *shlex.split(" ".join(needed)), "-lpthread"]


def environment(modules: Path, **changes: str) -> dict[str, str]:
    """What the program runs in: PYTHONPATH leads to `modules` and to the packages that these tests run with.

    The embedded interpreter finds its library by PYTHONHOME, since the `python3` of PATH may be anything.
    """
    package = str(Path(blobfeed.__file__).parent.parent)
    path = [str(modules), package, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return {
        **os.environ,
        "PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        **changes,
    }
