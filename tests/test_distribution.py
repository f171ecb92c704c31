"""Wheel and sdist: built as for a release, installed into an environment of their own, and run there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib.metadata import requires
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import yaml
from packaging.requirements import Requirement

import blobfeed

from .support.imports import FOLDERS

ROOT = Path(__file__).resolve().parent.parent
FILES_AT_THE_TOP = (
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "LICENSE",
    "MANIFEST.in",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "constraints.txt",
    "mkdocs.yml",
    "pyproject.toml",
    "setup.py",
)
FOLDERS_OF_THE_SDIST = ("benchmarks", "blobfeed", "docs", "prototxt_examples", "tests", *FOLDERS)
NOT_SHIPPED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.solverstate", "*.caffemodel")


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    # Neither may the checkout come in by way of the path.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def files_below(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what belongs to the project, without what may lie beside it in a tree that is worked in."""
    copy = tmp_path_factory.mktemp("source")
    for folder in FOLDERS_OF_THE_SDIST:
        shutil.copytree(ROOT / folder, copy / folder, ignore=NOT_SHIPPED)
    for name in FILES_AT_THE_TOP:
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the sdist and, built from nothing but this sdist, the wheel."""
    out = tmp_path_factory.mktemp("dist")
    tree = shutil.copytree(source, out / "tree")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, cwd=tree)
    return out


@pytest.fixture(scope="module")
def environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel; what the wheel depends on is looked up, behind it, where the tests find it."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel, cwd=home)
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip()
    (Path(packages) / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return home


def test_the_wheel_puts_one_name_into_site_packages(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()} == {
        "blobfeed",
        f"blobfeed-{blobfeed.__version__}.dist-info",
    }


def held_by(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if not name.partition("/")[0].endswith(".dist-info")}


def modules_of(source: Path) -> set[str]:
    modules = {f"blobfeed/{name}" for name in files_below(source / "blobfeed")}
    modules |= {f"blobfeed/{folder}/{name}" for folder in FOLDERS for name in files_below(source / folder)}
    return {name for name in modules if not name.endswith(".c")}


def test_the_wheel_holds_every_module_compiled_for_every_python_and_the_marker_of_types(
    built: Path, source: Path
) -> None:
    (wheel,) = built.glob("*.whl")
    compiled = held_by(wheel) - modules_of(source)
    assert modules_of(source) - held_by(wheel) == set()
    assert compiled <= {"blobfeed/workers/loading/_convert.abi3.so", "blobfeed/sources/images/_crop.abi3.so"}
    assert compiled or not shutil.which("cc")
    assert "-cp311-abi3-linux_" in wheel.name
    assert "blobfeed/py.typed" in held_by(wheel)


def test_without_a_compiler_the_sdist_makes_a_wheel_too(built: Path, source: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    build = ("pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", sdist)
    run(sys.executable, "-m", *build, cwd=tmp_path, CC="/bin/false")
    (wheel,) = tmp_path.glob("*.whl")
    assert held_by(wheel) == modules_of(source)


@pytest.mark.skipif(not (ROOT / "conda").exists(), reason="not in the sdist")
def test_the_conda_recipe_names_what_pip_installs() -> None:
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    in_conda = {"python-xxhash": "xxhash"}
    needed = (Requirement(each.replace(" ", "")) for each in recipe["requirements"]["run"])
    ours = {in_conda.get(each.name, each.name): str(each.specifier) for each in needed if each.name != "python"}
    pips = [Requirement(each) for each in requires("blobfeed") or () if "extra ==" not in each]
    assert ours == {each.name.lower(): str(each.specifier) for each in pips}  # of several bounds the last, and highest
    assert recipe["context"]["version"] == blobfeed.__version__


def test_the_sdist_holds_the_whole_project_the_examples_and_their_data_included(built: Path, source: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    assert files_below(source) - held == set()
    assert "prototxt_examples/digits/solver.prototxt" in held


def test_the_installed_command_runs_and_is_the_one_of_the_wheel(environment: Path, tmp_path: Path) -> None:
    where = run(environment / "bin" / "python", "-c", "import blobfeed; print(blobfeed.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(environment)
    assert blobfeed.__version__ in run(environment / "bin" / "blobfeed", "--version", cwd=tmp_path)


def test_the_installed_layer_delivers_a_batch(environment: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", np.arange(24, dtype=np.float32).reshape(4, 6))
    program = """
        from blobfeed import LayerHarness, MultiProcessInputLayer
        source = {"npy": {"data": "data.npy"}}
        with LayerHarness(MultiProcessInputLayer, {"source": source, "tops": ["data"], "batch_size": 4}) as harness:
            print(harness.forward()["data"].sum())
    """
    assert run(environment / "bin" / "python", "-c", dedent(program), cwd=tmp_path) == "276.0\n"
