"""Caffe's files at the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from blobfeed.cli import app
from tests.support.trainer_nets import SMALL_NET, SMALL_SOLVER, importing_leaves_no_trace, one_thread, write_project

__all__ = ["importing_leaves_no_trace", "one_thread"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_training_leaves_caffes_files_which_score_convert_resume_and_fine_tune(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    relu = 'name: "relu1" type: "ReLU"'
    net = SMALL_NET.replace(relu, f"{relu} relu_param {{ engine: CUDNN }}")
    assert net != SMALL_NET
    path = write_project(
        tmp_path, net=net, solver=SMALL_SOLVER + 'snapshot_format: HDF5 snapshot_prefix: "s" layer_wise_reduce: false'
    )
    trained = run("train", "--solver", path)
    assert trained.exit_code == 0, trained.output
    assert trained.stdout.splitlines() == [
        "fields without effect here: engine, layer_wise_reduce",
        "snapshot: s_iter_30.pt and s_iter_30.solverstate.h5",
    ]
    converted = run("convert", "s_iter_30.caffemodel.h5", "s.caffemodel")
    assert converted.stdout == "s.caffemodel: weights of 2 layers\n"
    scores = [
        run("test", "--model", "net.prototxt", "--weights", weights, "--iterations", 3).stdout
        for weights in ("s.caffemodel", "s_iter_30.pt", "s_iter_30.caffemodel.h5")
    ]
    assert scores[0].startswith("loss = ")
    assert len(set(scores)) == 1
    path.write_text(path.read_text().replace("max_iter: 30", "max_iter: 40"))
    assert "s_iter_40.pt" in run("train", "--solver", path, "--snapshot", "s_iter_30.solverstate.h5").stdout
    assert run("train", "--solver", path, "--weights", "s.caffemodel,s_iter_40.pt").exit_code == 0
    both = run("train", "--solver", path, "--weights", "s.caffemodel", "--snapshot", "s_iter_30.pt")
    assert both.exit_code == 2
    assert "not both" in both.stderr
    missing = run("train", "--solver", path, "--weights", "none.caffemodel")
    assert missing.exit_code == 1
    assert "none.caffemodel cannot be read: No such file" in missing.stderr
