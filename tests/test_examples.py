"""The examples run as they are, and show what their READMEs say."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import re
import runpy
import subprocess
import sys
from pathlib import Path

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from blobfeed.tools.convert import convert

from .support.commands import output_of
from .support.documents import EXAMPLES, right_in_percent
from .support.training import importing_leaves_no_trace, one_thread

__all__ = ["importing_leaves_no_trace", "one_thread"]

FASHION = Path("/usr/share/datasets/fashion-mnist")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots go to the working directory."""
    monkeypatch.chdir(tmp_path)


def last_scores(output: str) -> dict[str, float]:
    scores = output.splitlines()[-1].partition("test net 0: ")[2]
    return {name: float(value) for name, value in (part.split(" = ") for part in scores.split(", "))}


def copy_of(example: str, folder: Path, max_iter: int) -> Path:
    """The solver of a copy of the example, which ends after so many iterations."""
    for name in ("net.prototxt", "solver.prototxt"):
        text = (EXAMPLES / example / name).read_text()
        for data in ("../digits/digits_", "digits_"):
            text = text.replace(f"path: {data}", f"path: {EXAMPLES / 'digits'}/digits_")
        (folder / name).write_text(text)
    for module in (EXAMPLES / example).glob("augment.py"):
        (folder / module.name).write_text(module.read_text())
    solver = folder / "solver.prototxt"
    solver.write_text(re.sub(r"(?<=max_iter: )\d+", str(max_iter), solver.read_text()))
    return solver


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The snapshot of a trained net, and what its training printed."""
    folder = tmp_path_factory.mktemp("digits")
    with contextlib.chdir(folder):
        output = output_of("train", "--solver", EXAMPLES / "digits" / "solver.prototxt")
    return folder / "runs" / "digits_iter_630.pt", output


def test_digits_are_told_apart(digits: tuple[Path, str]) -> None:
    weights, output = digits
    assert last_scores(output)["accuracy"] >= 0.97
    assert "snapshot: runs/digits_iter_630.pt" in output
    model = str(EXAMPLES / "digits" / "net.prototxt")
    scores = output_of("test", "--model", model, "--weights", weights, "--iterations", 9)
    assert scores.strip() == output.splitlines()[-1].partition("test net 0: ")[2]


def test_a_trained_net_is_fine_tuned_in_a_loop_of_torch_and_exported(
    tmp_path: Path, digits: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    convert(digits[0], tmp_path / "digits.caffemodel")
    script = EXAMPLES / "parity_digits" / "train.py"
    loop = script.read_text().partition("torch.manual_seed(1)\n")[2]
    assert len(loop.splitlines()) <= 25
    monkeypatch.setattr(sys, "argv", [str(script), "digits.caffemodel"])
    runpy.run_path(str(script), run_name="__main__")
    assert right_in_percent(capsys.readouterr().out)[-1] > 95
    with h5py.File(EXAMPLES / "digits" / "digits_test.h5") as file:
        images, labels = torch.from_numpy(file["data"][:64] / np.float32(16)), file["label"][:64]
    parity = torch.export.load("parity.pt2").module()(data=images)["prob"].argmax(1).numpy()
    assert (parity == labels % 2).mean() > 0.9


@pytest.mark.parametrize(("max_iter", "least"), [(420, 0.85), pytest.param(1260, 0.96, marks=pytest.mark.slow)])
def test_shifted_digits_are_told_apart(tmp_path: Path, max_iter: int, least: float) -> None:
    """Only 60 % of them are by a net that has seen none."""
    assert last_scores(output_of("train", "--solver", copy_of("augment", tmp_path, max_iter)))["accuracy"] >= least


def test_petals_are_estimated_to_two_millimetres() -> None:
    assert last_scores(output_of("train", "--solver", EXAMPLES / "regression" / "solver.prototxt"))["loss"] < 0.03


@pytest.mark.parametrize("example", ["volumes", "forecast"])
def test_nets_learn_from_parts_of_volumes_and_fields(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = EXAMPLES / example / "train.py"
    assert len(script.read_text().splitlines()) <= 40
    runpy.run_path(str(script), run_name="__main__")
    found = [float(number) for number in re.findall(r" ([\d.]+)", capsys.readouterr().out.partition(":")[2])]
    assert found[0] > 60 if example == "volumes" else found[0] < found[1] / 3


@pytest.mark.parametrize("example", ["digits", "regression"])
def test_the_data_is_what_its_script_makes(tmp_path: Path, example: str) -> None:
    spec = importlib.util.spec_from_file_location(f"make_{example}", EXAMPLES / example / "make_data.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.__file__ = str(tmp_path / "make_data.py")
    script.main()
    made = sorted(tmp_path.glob("*.h5"))
    assert [path.name for path in made] == sorted(path.name for path in (EXAMPLES / example).glob("*.h5"))
    for path in made:
        with h5py.File(path) as mine, h5py.File(EXAMPLES / example / path.name) as shipped:
            assert mine.keys() == shipped.keys()
            for name in mine:
                assert mine[name].dtype == shipped[name].dtype
                assert np.array_equal(mine[name][:], shipped[name][:])


def test_the_data_is_small() -> None:
    assert sum(path.stat().st_size for path in EXAMPLES.rglob("*.h5")) < 150_000


def fashion(folder: Path, max_iter: str) -> Path:
    """A copy of the example, with the data in its folder still to make."""
    example = EXAMPLES / "fashion_mnist"
    for name in ("net.prototxt", "make_lmdb.py"):
        (folder / name).write_bytes((example / name).read_bytes())
    solver = folder / "solver.prototxt"
    solver.write_text((example / "solver.prototxt").read_text().replace("max_iter: 5625", max_iter))
    return solver


def make_lmdbs(folder: Path, source: Path) -> None:
    words = [sys.executable, str(folder / "make_lmdb.py"), str(source)]
    subprocess.run(words, check=True, capture_output=True, timeout=300)


def test_a_net_over_lmdbs_runs_as_in_caffe(tmp_path: Path) -> None:
    solver = fashion(tmp_path, "max_iter: 50")
    solver.write_text(solver.read_text().replace("test_iter: 100", "test_iter: 2").replace("1875", "50"))
    rng = np.random.default_rng(0)
    for prefix, count in (("train", 640), ("t10k", 200)):  # a bright row tells the class
        labels = rng.integers(0, 10, count, np.uint8)
        images = rng.integers(0, 99, (count, 28, 28), np.uint8)
        images[np.arange(count), 2 + 2 * labels] = 255
        for kind, header, numbers in (("images-idx3", 16, images), ("labels-idx1", 8, labels)):
            (tmp_path / f"{prefix}-{kind}-ubyte.gz").write_bytes(gzip.compress(bytes(header) + numbers.tobytes()))
    make_lmdbs(tmp_path, tmp_path)
    assert last_scores(output_of("train", "--solver", solver, "--threads", 1))["accuracy"] >= 0.9


@pytest.mark.slow
def test_clothes_are_told_apart(tmp_path: Path) -> None:
    if not FASHION.exists():
        pytest.skip(f"needs Debian's package dataset-fashion-mnist ({FASHION})")
    solver = fashion(tmp_path, "max_iter: 5625")
    make_lmdbs(tmp_path, FASHION)
    assert last_scores(output_of("train", "--solver", solver))["accuracy"] >= 0.9
