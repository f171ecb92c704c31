"""The command: what it prints, what it leaves, and the one message for each thing that can be wrong."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from blobfeed.trainer.prototxt import NetParameter, read_prototxt

import blobfeed
from blobfeed.cli import main

from .support.commands import error_of, output_of, run
from .support.trainer_nets import BATCHES, SMALL_NET, SMALL_SOLVER, write_project
from .support.training import importing_leaves_no_trace, one_thread

__all__ = ["importing_leaves_no_trace", "one_thread"]

OURS = """
layer {
  name: "data" type: "Python" top: "data" top: "label"
  python_param {
    module: "blobfeed.layers" layer: "MultiProcessInputLayer"
    param_str: "{source: {hdf5: {path: numbers.h5}}, tops: [data, label], batch_size: 8, num_loaders: 1}"
  }
}
""" + SMALL_NET[SMALL_NET.index('layer {\n  name: "ip1"') :]


def test_without_a_command_the_commands_are_told() -> None:
    result = run()
    assert all(command in result.output for command in ("train", "test", "inspect"))


def test_training_prints_lines_leaves_a_snapshot_and_goes_on_from_it(tmp_path: Path) -> None:
    path = write_project(tmp_path, solver=SMALL_SOLVER + "display: 10 snapshot: 20 test_iter: 5 test_interval: 30")
    result = run("train", "--solver", path)
    assert result.exit_code == 0
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert [line.split()[:2] for line in lines if "samples/s" in line] == [
        ["iteration", f"{iteration}/30:"] for iteration in (10, 20, 30)
    ]
    assert f"snapshot: {tmp_path / 'solver_iter_30.pt'}" in lines
    assert lines[-1].startswith("iteration 30: test net 0: accuracy = 0.")
    halfway = tmp_path / "solver_iter_20.pt"
    again = run("train", "--solver", path, "--snapshot", halfway, "--device", "cpu", "--threads", 1)
    loss = next(line for line in lines if line.startswith("iteration 30/30")).split(",")[0]
    assert loss in again.stdout
    assert "iteration 20/30" not in again.stdout


def test_weights_may_have_spaces_between_their_names_and_no_name_may_be_empty(tmp_path: Path) -> None:
    path = write_project(tmp_path)
    output_of("train", "--solver", path)
    saved = tmp_path / "solver_iter_30.pt"
    output_of("train", "--solver", path, "--weights", f"{saved}, {saved}")
    for empty in ("", " ", f"{saved},"):
        result = run("train", "--solver", path, "--weights", empty)
        assert result.exit_code == 2
        assert "expected names of files" in result.stderr


def test_an_unknown_option_or_device_is_a_usage_error() -> None:
    assert run("train", "--slover", "x").exit_code == 2
    assert run("train", "--solver", "x", "--device", "tpu").exit_code == 2
    assert run("train").exit_code == 2
    assert run("test", "--model", "x", "--weights", "x", "--iterations", 0).exit_code == 2


def test_missing_data_are_one_message_that_names_file_and_layer(tmp_path: Path) -> None:
    path = write_project(tmp_path, net=OURS)
    (tmp_path / "numbers.h5").unlink()
    message = error_of("train", "--solver", path)
    assert all(part in message for part in ["numbers.h5", "net.prototxt:2:1: layer 'data'", "in setup, "])


def test_an_exception_of_somebodys_layer_is_one_message_that_says_whose(tmp_path: Path) -> None:
    path = write_project(tmp_path)
    (tmp_path / "batches.py").write_text(BATCHES.replace("rows = (", "rows = 1 / 0 * ("))
    message = error_of("train", "--solver", path)
    assert message == (
        "blobfeed: error: ZeroDivisionError: division by zero\n"
        f"  in forward, {tmp_path / 'net.prototxt'}:2:1: layer 'data' (--debug shows where)\n"
    )
    assert isinstance(run("train", "--solver", path, "--debug").exception, ZeroDivisionError)


NEEDED = "blobfeed: error: training needs torch, which is not installed: pip install 'blobfeed[torch]'\n"


@pytest.mark.parametrize(
    ("arguments", "ended", "said"),
    [(["--version"], 0, f"blobfeed {blobfeed.__version__}\n"), (["train", "--solver", "x"], 1, NEEDED)],
)
def test_without_torch_the_version_is_told_and_what_training_needs(arguments: list[str], ended: int, said: str) -> None:
    program = "import sys; sys.modules['torch'] = None; from blobfeed.cli import main; main()"
    command = [sys.executable, "-P", "-c", program, *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout + finished.stderr) == (ended, said)


def test_several_gpus_are_refused_by_name_and_one_needs_a_device(tmp_path: Path) -> None:
    path = write_project(tmp_path)
    assert "--gpu 0,1: training on several GPUs (0, 1; NCCL in Caffe) is not supported" in error_of(
        "train", "--solver", path, "--gpu", "0,1"
    )
    for gpu in ("first", "-1"):
        assert f"--gpu {gpu}: expected the number" in error_of("time", "--model", "x", f"--gpu={gpu}")
    both = run("train", "--solver", path, "--gpu", "0", "--device", "cpu")
    assert (both.exit_code, "give --gpu or --device, not both" in both.stderr) == (2, True)
    for gpu in ("0", "all"):
        if not torch.cuda.is_available():
            assert "torch finds no CUDA device" in error_of("train", "--solver", path, "--gpu", gpu)


def test_every_command_that_computes_takes_the_same_options() -> None:
    for command in ("train", "test", "time"):
        told = run(command, "--help").output
        assert all(option in told for option in ("--level", "--stage", "--gpu", "--device", "--threads", "--debug"))


def test_help_says_where_to_start() -> None:
    first = run("--help").output.partition("Start here")[2].partition("╰")[0]
    assert re.findall(r"^│ (\w+)", first, re.MULTILINE) == ["inspect", "train", "monitor"]


def test_flags_that_caffe_takes_and_does_not_use_are_told(tmp_path: Path) -> None:
    path = write_project(tmp_path, solver=SMALL_SOLVER.replace("max_iter: 30", "max_iter: 2"))
    shown = output_of("train", "--solver", path, "--iterations", 5, "--phase", "TEST")
    assert "--iterations and --phase change nothing in training" in shown
    assert (tmp_path / "solver_iter_2.pt").exists()


def test_a_solver_of_an_older_format_is_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "solver.prototxt"
    path.write_text('net: "net.prototxt"\nsolver_type: ADAM\nbase_lr: 0.5\n')
    printed = output_of("upgrade", path).splitlines()
    assert sorted(printed) == ["base_lr: 0.5", 'net: "net.prototxt"', 'type: "Adam"']
    path.write_text("solver_type: ADAM\n base_lrr: 0.5\n")
    assert f"{path}:2:2: SolverParameter has no field 'base_lrr'" in error_of("upgrade", path)
    path.write_text('layer { name: "a"\n namee: "b" }')
    assert f"{path}:2:2: LayerParameter has no field 'namee'" in error_of("upgrade", path)


def test_the_monitors_picture_is_not_written_under_the_name_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("precious")
    said = error_of("monitor", "--svg", tmp_path / "run.log")
    assert "run.log: the picture is an SVG: name a file that ends in .svg" in said
    assert (tmp_path / "run.log").read_text() == "precious"


def test_a_disk_that_is_full_is_said_of_the_file(tmp_path: Path) -> None:
    path = write_project(tmp_path, solver=SMALL_SOLVER + "display: 10")
    (tmp_path / "a.jsonl").symlink_to("/dev/full")
    message = f"--log {tmp_path / 'a.jsonl'} cannot be written: No space left on device: remove the cause, or"
    assert message in error_of("train", "--solver", path, "--log", tmp_path / "a.jsonl")


def test_a_reader_of_the_output_that_goes_ends_the_command_in_silence(tmp_path: Path) -> None:
    path = write_project(tmp_path)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as nobody_reads:
        command = (sys.executable, "-P", "-m", "blobfeed", "upgrade", path)
        result = subprocess.run(command, stdout=nobody_reads, stderr=subprocess.PIPE, check=False)
    assert (result.returncode, result.stderr) == (141, b"")


# ---- Caffe's files


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
        output_of("test", "--model", "net.prototxt", "--weights", weights, "--iterations", 3)
        for weights in ("s.caffemodel", "s_iter_30.pt", "s_iter_30.caffemodel.h5")
    ]
    assert scores[0].startswith("accuracy = ")
    assert len(set(scores)) == 1
    path.write_text(path.read_text().replace("max_iter: 30", "max_iter: 40"))
    assert "s_iter_40.pt" in output_of("train", "--solver", path, "--snapshot", "s_iter_30.solverstate.h5")
    output_of("train", "--solver", path, "--weights", "s.caffemodel,s_iter_40.pt")
    both = run("train", "--solver", path, "--weights", "s.caffemodel", "--snapshot", "s_iter_30.pt")
    assert both.exit_code == 2
    assert "not both" in both.stderr
    assert "none.caffemodel cannot be read: No such" in error_of(
        "train", "--solver", path, "--weights", "none.caffemodel"
    )


def test_the_times_of_layers_are_a_table(tmp_path: Path) -> None:
    write_project(tmp_path)
    lines = output_of("time", "--model", tmp_path / "net.prototxt", "--iterations", 3, "--device", "cpu").splitlines()
    assert lines[0].split() == ["layer", "type", "forward", "ms", "backward", "ms"]
    assert [line.split()[0] for line in lines[1:]] == ["data", "ip1", "relu1", "drop1", "ip2", "loss", "all"]
    figures = [[float(figure) for figure in line.split()[-2:]] for line in lines[1:]]
    assert all(sum(column[:-1]) == pytest.approx(column[-1], abs=0.01) for column in zip(*figures, strict=True))
    assert all(forward > 0 for forward, _ in figures)
    assert figures[1][1] > 0, "ip1 is learnt, so it has a backward"
    tested = output_of("time", "--model", tmp_path / "net.prototxt", "--iterations", 1, "--phase", "TEST")
    assert "accuracy" in tested


def test_level_and_stages_choose_layers(tmp_path: Path) -> None:
    net = SMALL_NET.replace('name: "relu1"', 'name: "relu1" include { stage: "fast" min_level: 1 }')
    solver = write_project(tmp_path, net=net)
    model = tmp_path / "net.prototxt"
    chosen = ("--level", 2, "--stage", "deploy,fast")
    assert "relu1" not in output_of("time", "--model", model, "--iterations", 1)
    assert "relu1" in output_of("time", "--model", model, "--iterations", 1, *chosen)
    weights = tmp_path / "solver_iter_30.pt"
    losses = {}
    for given in ((), chosen):
        output_of("train", "--solver", solver, *given)
        losses[given] = [
            output_of("test", "--model", model, "--weights", weights, *options) for options in ((), chosen)
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
    assert output_of("upgrade", new) == printed.stdout


# ---- the program itself


def ends_well(patch: pytest.MonkeyPatch, *arguments: object) -> bool:
    patch.setattr(sys, "argv", ["blobfeed", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code == 0


def test_options_may_have_one_dash_as_those_of_caffe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(tmp_path)
    assert ends_well(monkeypatch, "time", "-model", tmp_path / "net.prototxt", "-iterations=1", "-phase", "TRAIN")
    assert "backward ms" in capsys.readouterr().out


def test_training_needs_no_standard_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert ends_well(monkeypatch, "train", "--solver", write_project(tmp_path))
    assert (tmp_path / "solver_iter_30.pt").exists()


def test_what_a_terminal_of_ascii_cannot_show_is_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 8, 8), np.uint8))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown := io.BytesIO(), "ascii"))
    assert ends_well(monkeypatch, "inspect", tmp_path / "x.npy", "--seconds", "0")
    assert rb"8\xd78" in shown.getvalue()
