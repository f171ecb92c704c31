"""The extensions' own tests once more, with memory and arithmetic watched by the compiler's sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

_ROOT = Path(__file__).resolve().parent.parent
_TESTS = ("tests/workers/loading/test_convert.py", "tests/sources/images/test_crop.py")
_SANITIZED = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g"

_PROGRAM = """
    import importlib.util, sys
    from pathlib import Path
    import pytest

    built = Path(sys.argv[1])
    for file in sorted(built.rglob("*.so")):
        name = ".".join(file.relative_to(built).parts).partition(".abi3")[0]
        spec = importlib.util.spec_from_file_location(name, file)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
        print("sanitized:", name)
    assert "libasan" in Path("/proc/self/maps").read_text()
    sys.exit(pytest.main(["-q", "-s", "-p", "no:cacheprovider", "-m", "slow or not slow", *sys.argv[2:]]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("gcc") or not (_ROOT / "setup.py").exists(), reason="needs gcc and the sources")
def test_the_extensions_touch_no_memory_but_theirs_and_overflow_nowhere(tmp_path: Path) -> None:
    built = tmp_path / "built"
    flags = {"CFLAGS": _SANITIZED, "LDFLAGS": _SANITIZED}
    folders = ["--build-lib", str(built), "--build-temp", str(tmp_path / "objects")]
    build = [sys.executable, "setup.py", "-q", "build_ext", *folders]
    subprocess.run(build, cwd=_ROOT, env=os.environ | flags, check=True)
    asan = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    watched = {"LD_PRELOAD": asan.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    watched["TMPDIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-P", "-c", dedent(_PROGRAM), built, *_TESTS],
        cwd=_ROOT,
        env=os.environ | watched,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[:5000] + done.stdout[-5000:]
    assert done.stdout.count("sanitized: ") == len(_TESTS)
