"""The examples of readers that are more than one process, and the notebook: test_documents.py runs the others."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from blobfeed.cli import app
from tests.support.documents import EXAMPLES, right_in_percent
from tests.support.pictures import encoded, picture


def percentage_of(*command: str, **environment: str) -> float:
    """The last percentage that an example prints."""
    run = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    return right_in_percent(run.stdout)[-1]


def skip_without(*modules: str) -> None:
    """As the examples run in processes of their own, nothing is imported here."""
    if missing := [name for name in modules if find_spec(name) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed")


def test_two_ranks_of_torchrun_see_each_sample_once(tmp_path: Path) -> None:
    skip_without("torch")
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--log-dir", str(tmp_path))
    assert percentage_of(*launch, str(EXAMPLES / "torchrun_digits" / "train.py"), EPOCHS="5") > 90


@pytest.mark.slow
def test_folders_of_jpegs_become_a_list_and_train_two_ranks_of_torchrun(tmp_path: Path) -> None:
    skip_without("torch")
    for number in range(40):
        name = ("bright", "dark")[number % 2]
        (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
        pixels = picture(90 + number, 130 - number) // 2 + (128 if name == "bright" else 0)
        (tmp_path / "photos" / name / f"{number}.jpg").write_bytes(encoded(pixels))
    listed = CliRunner().invoke(app, ["inspect", str(tmp_path / "photos"), "--list", str(tmp_path / "train.txt")])
    assert listed.exit_code == 0, listed.output
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--log-dir", str(tmp_path))
    script = str(EXAMPLES / "photos_torchrun" / "train.py")
    assert percentage_of(*launch, script, str(tmp_path / "train.txt")) > 90


_RUNS_CELLS = """
import json, sys
source, order = sys.argv[1], map(int, sys.argv[2:])
cells = [cell for cell in json.load(open(source))["cells"] if cell["cell_type"] == "code"]
names = vars(sys.modules["__main__"])
for number in order:
    exec(compile("".join(cells[number]["source"]), f"<ipython-input-{number}>", "exec"), names)
print(len(names["means"]))
"""


def test_the_cells_of_a_notebook_run_in_any_order_and_again(tmp_path: Path) -> None:
    notebook = EXAMPLES / "notebook" / "digits.ipynb"
    command = [sys.executable, "-c", _RUNS_CELLS, str(notebook), *"01231012345"]
    run = subprocess.run(command, cwd=notebook.parent, check=False, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "20\n"
    assert run.stderr == ""


@pytest.mark.slow
def test_two_workers_of_ray_train_see_each_sample_once() -> None:
    skip_without("torch", "ray", "pyarrow")
    assert percentage_of(str(EXAMPLES / "ray_digits" / "train.py"), EPOCHS="5") > 90
