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
from typer.testing import CliRunner, Result

import blobfeed
from blobfeed.cli import app, main

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


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def message_of(result: Result) -> str:
    """The one message on stderr of a run that failed."""
    assert result.exit_code == 1
    assert result.stderr.startswith("blobfeed: error: ")
    assert result.stderr.count("blobfeed: error:") == 1
    assert "Traceback" not in result.stderr
    return result.stderr


def test_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"blobfeed {blobfeed.__version__}\n")


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


def test_testing_prints_the_means_of_the_outputs(tmp_path: Path) -> None:
    path = write_project(tmp_path)
    assert run("train", "--solver", path).exit_code == 0
    arguments = ("test", "--model", tmp_path / "net.prototxt", "--weights", tmp_path / "solver_iter_30.pt")
    result = run(*arguments, "--iterations", 6)
    assert result.exit_code == 0
    accuracy, loss = (float(part.split(" = ")[1]) for part in result.stdout.split(", "))
    assert 0 < loss < 0.5
    assert accuracy > 0.8
    assert run(*arguments, "--iterations", 0).exit_code == 2


def test_weights_may_have_spaces_between_their_names_and_no_name_may_be_empty(tmp_path: Path) -> None:
    path = write_project(tmp_path)
    assert run("train", "--solver", path).exit_code == 0
    saved = tmp_path / "solver_iter_30.pt"
    assert run("train", "--solver", path, "--weights", f"{saved}, {saved}").exit_code == 0
    for empty in ("", " ", f"{saved},"):
        result = run("train", "--solver", path, "--weights", empty)
        assert result.exit_code == 2
        assert "expected names of files" in result.stderr


def test_an_unknown_option_or_device_is_a_usage_error(tmp_path: Path) -> None:
    assert run("train", "--slover", "x").exit_code == 2
    assert run("train", "--solver", "x", "--device", "tpu").exit_code == 2
    assert run("train").exit_code == 2


def test_missing_data_are_one_message_that_names_file_and_layer(tmp_path: Path) -> None:
    path = write_project(tmp_path, net=OURS)
    (tmp_path / "numbers.h5").unlink()
    message = message_of(run("train", "--solver", path))
    assert all(part in message for part in ["numbers.h5", "net.prototxt:2:1: layer 'data'", "in setup, "])


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (('type: "ReLU"', 'type: "ReLUU"'), ["net.prototxt:13:23", "'ReLUU' is not supported", "'ReLU'"]),
        (("inner_product_param {", "inner_product_param {{"), ["net.prototxt:11:24"]),
        (("batch_size: 8", "batchsize: 8"), ["'batchsize'", "batch_size"]),
    ],
)
def test_a_bad_net_is_one_message(tmp_path: Path, change: tuple[str, str], parts: list[str]) -> None:
    """tests/trainer/errors.txt has the words of all that may be wrong with one."""
    assert change[0] in OURS
    path = write_project(tmp_path, net=OURS.replace(change[0], change[1], 1))
    message = message_of(run("train", "--solver", path))
    assert all(part in message for part in parts), message


def test_missing_files_are_named(tmp_path: Path) -> None:
    assert "none.prototxt: no such file" in message_of(run("train", "--solver", tmp_path / "none.prototxt"))
    path = write_project(tmp_path)
    missing = tmp_path / "none.pt"
    assert "none.pt cannot be read" in message_of(run("train", "--solver", path, "--snapshot", missing))
    assert "none.pt cannot be read" in message_of(
        run("test", "--model", tmp_path / "net.prototxt", "--weights", missing)
    )
    (tmp_path / "net.prototxt").unlink()
    assert "net.prototxt: no such file (named at " in message_of(run("train", "--solver", path))


def test_a_snapshot_of_another_net_is_one_message(tmp_path: Path) -> None:
    path = write_project(tmp_path)
    assert run("train", "--solver", path).exit_code == 0
    (tmp_path / "net.prototxt").write_text(SMALL_NET.replace("num_output: 12", "num_output: 5"))
    message = message_of(run("train", "--solver", path, "--snapshot", tmp_path / "solver_iter_30.pt"))
    assert "layer 'ip1': its weights have the shapes [(5, 4), (5,)]" in message


def test_an_exception_of_somebodys_layer_is_one_message_that_says_whose(tmp_path: Path) -> None:
    path = write_project(tmp_path)
    (tmp_path / "batches.py").write_text(BATCHES.replace("rows = (", "rows = 1 / 0 * ("))
    message = message_of(run("train", "--solver", path))
    assert message == (
        "blobfeed: error: ZeroDivisionError: division by zero\n"
        f"  in forward, {tmp_path / 'net.prototxt'}:2:1: layer 'data' (--debug shows where)\n"
    )


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    path = write_project(tmp_path)
    (tmp_path / "batches.py").write_text(BATCHES.replace("rows = (", "rows = 1 / 0 * ("))
    result = run("train", "--solver", path, "--debug")
    assert isinstance(result.exception, ZeroDivisionError)


def test_an_exception_in_decode_is_one_message_and_leaves_nothing(tmp_path: Path) -> None:
    net = OURS.replace("blobfeed.layers", "mine").replace("MultiProcessInputLayer", "Mine")
    path = write_project(tmp_path, net=net)
    (tmp_path / "mine.py").write_text(
        "from blobfeed.layers import MultiProcessInputLayer\n\n"
        "class Mine(MultiProcessInputLayer):\n"
        "    def decode(self, sample, rng):\n"
        "        if (sample.epoch, sample.index) == (1, 20):\n            raise ValueError('cannot make this out')\n"
        "        return dict(sample)\n"
    )
    message = message_of(run("train", "--solver", path))
    assert "sample 20 of epoch 1" in message
    assert "ValueError: cannot make this out" in message
    assert "numbers.h5" in message


def test_without_torch_the_command_says_what_to_install(tmp_path: Path) -> None:
    program = "import sys; sys.modules['torch'] = None; from blobfeed.cli import main; main()"
    finished = subprocess.run(
        [sys.executable, "-P", "-c", program, "train", "--solver", str(write_project(tmp_path))],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert finished.returncode == 1
    assert finished.stderr == (
        "blobfeed: error: training needs torch, which is not installed: pip install 'blobfeed[torch]'\n"
    )


def test_the_version_needs_no_torch() -> None:
    program = "import sys; sys.modules['torch'] = None; from blobfeed.cli import main; main()"
    finished = subprocess.run(
        [sys.executable, "-P", "-c", program, "--version"], capture_output=True, text=True, timeout=200, check=True
    )
    assert finished.stdout == f"blobfeed {blobfeed.__version__}\n"


def test_several_gpus_are_refused_by_name_and_one_needs_a_device(tmp_path: Path) -> None:
    path = write_project(tmp_path)
    assert "--gpu 0,1: training on several GPUs (0, 1; NCCL in Caffe) is not supported" in message_of(
        run("train", "--solver", path, "--gpu", "0,1")
    )
    for gpu in ("first", "-1"):
        assert f"--gpu {gpu}: expected the number" in message_of(run("time", "--model", "x", f"--gpu={gpu}"))
    both = run("train", "--solver", path, "--gpu", "0", "--device", "cpu")
    assert (both.exit_code, "give --gpu or --device, not both" in both.stderr) == (2, True)
    for gpu in ("0", "all"):
        if not torch.cuda.is_available():
            assert "torch finds no CUDA device" in message_of(run("train", "--solver", path, "--gpu", gpu))


def test_every_command_that_computes_takes_the_same_options() -> None:
    for command in ("train", "test", "time"):
        told = run(command, "--help").output
        assert all(option in told for option in ("--level", "--stage", "--gpu", "--device", "--threads", "--debug"))


def test_help_says_where_to_start() -> None:
    first = run("--help").output.partition("Start here")[2].partition("╰")[0]
    assert re.findall(r"^│ (\w+)", first, re.MULTILINE) == ["inspect", "train", "monitor"]


def test_flags_that_caffe_takes_and_does_not_use_are_told(tmp_path: Path) -> None:
    path = write_project(tmp_path, solver=SMALL_SOLVER.replace("max_iter: 30", "max_iter: 2"))
    result = run("train", "--solver", path, "--iterations", 5, "--phase", "TEST")
    assert result.exit_code == 0
    assert "--iterations and --phase change nothing in training" in result.stdout
    assert (tmp_path / "solver_iter_2.pt").exists()


def test_a_solver_of_an_older_format_is_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "solver.prototxt"
    path.write_text('net: "net.prototxt"\nsolver_type: ADAM\nbase_lr: 0.5\n')
    printed = run("upgrade", path).stdout.splitlines()
    assert sorted(printed) == ["base_lr: 0.5", 'net: "net.prototxt"', 'type: "Adam"']
    path.write_text("solver_type: ADAM\n base_lrr: 0.5\n")
    assert f"{path}:2:2: SolverParameter has no field 'base_lrr'" in message_of(run("upgrade", path))
    path.write_text('layer { name: "a"\n namee: "b" }')
    assert f"{path}:2:2: LayerParameter has no field 'namee'" in message_of(run("upgrade", path))


def test_the_monitors_picture_is_not_written_under_the_name_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("precious")
    said = message_of(run("monitor", "--svg", tmp_path / "run.log"))
    assert "run.log: the picture is an SVG: name a file that ends in .svg" in said
    assert (tmp_path / "run.log").read_text() == "precious"


def test_a_disk_that_is_full_is_said_of_the_file(tmp_path: Path) -> None:
    path = write_project(tmp_path, solver=SMALL_SOLVER + "display: 10")
    (tmp_path / "a.jsonl").symlink_to("/dev/full")
    message = f"--log {tmp_path / 'a.jsonl'} cannot be written: No space left on device: remove the cause, or"
    assert message in message_of(run("train", "--solver", path, "--log", tmp_path / "a.jsonl"))


def test_options_may_have_one_dash_as_those_of_caffe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(tmp_path)
    options = ["-model", str(tmp_path / "net.prototxt"), "-iterations=1", "-phase", "TRAIN"]
    monkeypatch.setattr(sys, "argv", ["blobfeed", "time", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert "backward ms" in capsys.readouterr().out


def test_training_needs_no_standard_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    monkeypatch.setattr(sys, "argv", ["blobfeed", "train", "--solver", str(write_project(tmp_path))])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert (tmp_path / "solver_iter_30.pt").exists()


def test_a_reader_of_the_output_that_goes_ends_the_command_in_silence(tmp_path: Path) -> None:
    path = write_project(tmp_path)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as nobody_reads:
        command = (sys.executable, "-P", "-m", "blobfeed", "upgrade", path)
        result = subprocess.run(command, stdout=nobody_reads, stderr=subprocess.PIPE, check=False)
    assert (result.returncode, result.stderr) == (141, b"")


def test_what_a_terminal_of_ascii_cannot_show_is_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 8, 8), np.uint8))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown := io.BytesIO(), "ascii"))
    monkeypatch.setattr(sys, "argv", ["blobfeed", "inspect", str(tmp_path / "x.npy"), "--seconds", "0"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert rb"8\xd78" in shown.getvalue()
