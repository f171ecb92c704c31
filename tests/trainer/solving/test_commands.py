"""Caffe's files at the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from blobfeed.trainer.prototxt import NetParameter, read_prototxt
from typer.testing import CliRunner, Result

from blobfeed.cli import app
from tests.support.trainer_nets import SMALL_NET, SMALL_SOLVER, write_project


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
    assert scores[0].startswith("accuracy = ")
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


def test_the_times_of_layers_are_a_table(tmp_path: Path) -> None:
    write_project(tmp_path)
    lines = run("time", "--model", tmp_path / "net.prototxt", "--iterations", 3, "--device", "cpu").stdout.splitlines()
    assert lines[0].split() == ["layer", "type", "forward", "ms", "backward", "ms"]
    assert [line.split()[0] for line in lines[1:]] == ["data", "ip1", "relu1", "drop1", "ip2", "loss", "all"]
    figures = [[float(figure) for figure in line.split()[-2:]] for line in lines[1:]]
    assert all(sum(column[:-1]) == pytest.approx(column[-1], abs=0.01) for column in zip(*figures, strict=True))
    assert all(forward > 0 for forward, _ in figures)
    assert figures[1][1] > 0, "ip1 is learnt, so it has a backward"
    tested = run("time", "--model", tmp_path / "net.prototxt", "--iterations", 1, "--phase", "TEST").stdout
    assert "accuracy" in tested


def test_level_and_stages_choose_layers(tmp_path: Path) -> None:
    net = SMALL_NET.replace('name: "relu1"', 'name: "relu1" include { stage: "fast" min_level: 1 }')
    solver = write_project(tmp_path, net=net)
    model = tmp_path / "net.prototxt"
    chosen = ("--level", 2, "--stage", "deploy,fast")
    assert "relu1" not in run("time", "--model", model, "--iterations", 1).stdout
    assert "relu1" in run("time", "--model", model, "--iterations", 1, *chosen).stdout
    weights = tmp_path / "solver_iter_30.pt"
    losses = {}
    for given in ((), chosen):
        assert run("train", "--solver", solver, *given).exit_code == 0
        losses[given] = [
            run("test", "--model", model, "--weights", weights, *options).stdout for options in ((), chosen)
        ]
    assert len({loss for both in losses.values() for loss in both}) == 4


def test_an_old_net_is_printed_in_todays_format(tmp_path: Path) -> None:
    old = tmp_path / "old.prototxt"
    old.write_text(
        'layers { name: "d" type: DUMMY_DATA top: "d" } layers { name: "r" type: RELU bottom: "d" top: "r" }'
    )
    printed = run("upgrade", old)
    assert printed.exit_code == 0
    new = tmp_path / "new.prototxt"
    new.write_text(printed.stdout)
    assert [layer.type for layer in read_prototxt(new, NetParameter).message.layer] == ["DummyData", "ReLU"]
    assert "layers" not in printed.stdout
    assert run("upgrade", new).stdout == printed.stdout
