"""Inside a program that embeds Python and is as unkind as the `caffe train` binary."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from blobfeed.trainer.prototxt import NetParameter, read_prototxt

from tests.support import leftovers
from tests.support.part import some_of
from tests.support.programs import read_until, started
from tests.support.standin_files import write_images
from tests.support.standin_train import compile_caffe_train, environment
from tests.support.waiting import DEADLINE_S, wait_until_none

_ROOT = Path(__file__).resolve().parents[2]

_MODULE = textwrap.dedent("""
    import sys, time
    from blobfeed.layers import MultiProcessInputLayer

    class Plain(MultiProcessInputLayer):
        pass

    class CountsStalls(MultiProcessInputLayer):
        def forward(self, bottom, top):
            super().forward(bottom, top)
            print("stalls", self.statistics().stalls, "label", top[1].data[0], flush=True)

    class FailsInSetup(MultiProcessInputLayer):
        def setup(self, bottom, top):
            print("held back by Python")
            super().setup(bottom, top)
            raise RuntimeError("no luck in setup")

    class FailsInDecode(MultiProcessInputLayer):
        def decode(self, sample, rng):
            if sample.index == 70:
                raise ValueError("sample seventy is odd")
            return dict(sample)

    class HangsInDecode(MultiProcessInputLayer):
        def decode(self, sample, rng):
            while sample.index == 70:
                time.sleep(1)
            return dict(sample)

    class HangsInSetup(MultiProcessInputLayer):
        def decode(self, sample, rng):
            time.sleep(1000)
""")


@pytest.fixture(scope="module")
def program() -> Path:
    return compile_caffe_train()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_images(folder / "train.h5", samples=80)
    (folder / "my_layers.py").write_text(_MODULE)
    return folder


def _command(
    program: Path, folder: Path, layer: str, iterations: int = 3, compute_ms: int = 10, more: str = ""
) -> list[str]:
    param_str = f"{{source: {{hdf5: {{path: {folder}/train.h5}}}}, batch_size: 4, num_loaders: 2{more}}}"
    return [str(program), "my_layers", layer, param_str, "2", str(iterations), str(compute_ms)]


def _run(
    command: list[str], environment: dict[str, str], folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE_S
    )


def _nobody_is_left() -> bool:
    return not wait_until_none(lambda: list(map(leftovers.describe, leftovers.orphans())), DEADLINE_S)


def test_it_trains_and_its_output_pipe_closes_with_it(program: Path, folder: Path) -> None:
    done = _run(_command(program, folder, "Plain"), environment(folder))  # returns at the end of the pipes
    assert done.stdout.splitlines()[-1] == "done"
    assert (done.returncode, done.stderr) == (0, "")
    assert _nobody_is_left()


def test_batches_are_made_while_the_trainer_holds_the_gil(program: Path, folder: Path) -> None:
    done = _run(_command(program, folder, "CountsStalls", iterations=10, compute_ms=100), environment(folder))
    counts = [line.split() for line in done.stdout.splitlines() if line.startswith("stalls")]
    assert int(counts[-1][1]) < len(counts)  # on a machine that has nothing else to do only the first batch
    assert [float(words[3]) for words in counts] == [*range(0, 40, 4)]


@pytest.mark.parametrize(
    ("layer", "more", "said"),
    [
        ("FailsInSetup", "", ["no luck in setup", 'raise RuntimeError("no luck in setup")']),
        ("FailsInDecode", "", ["SampleError: sample 70", "sample seventy is odd", "in decode"]),
        ("HangsInDecode", ", timeout_s: 1", ["PipelineStalled: no batch for timeout_s=1 s"]),
        ("HangsInSetup", ", timeout_s: 1", ["PipelineStalled: setup hung for timeout_s=1 s, making a sample on trial"]),
        ("Plain", ", epochs: 1", ["EndOfData: all 20 batches"]),
        ("Plain", ", bach_size: 3", ["ParameterError: layer Plain: unknown parameter 'bach_size'"]),
    ],
)
def test_an_error_is_said_once_with_its_traceback_before_the_abort(
    program: Path, folder: Path, layer: str, more: str, said: list[str]
) -> None:
    done = _run(_command(program, folder, layer, 30, 0, more), environment(folder))
    assert done.returncode == -signal.SIGABRT
    assert all(words in done.stderr for words in said), done.stderr
    assert done.stderr.count(said[0]) == 1 + (layer == "FailsInSetup")  # there the source line has the words too
    assert "Traceback (most recent call last)" in done.stderr
    assert ("held back by Python" in done.stdout) == (layer == "FailsInSetup")
    assert _nobody_is_left()


@pytest.mark.parametrize(
    ("layer", "said", "times"),
    some_of(
        [
            ("FailsInSetup", "no luck in setup", 2),  # the source line has the words, too
            ("FailsInDecode", "SampleError: sample 70", 1),
            ("NoSuchLayer", "has no attribute 'NoSuchLayer'", 1),
        ],
        3,
    ),
)
def test_an_error_that_caffe_prints_itself_is_said_once(folder: Path, layer: str, said: str, times: int) -> None:
    done = _run(_command(compile_caffe_train("-DPRINTS_ERRORS"), folder, layer, 20, 0), environment(folder))
    assert (done.returncode, done.stderr.count(said)) == (1, times), done.stderr
    assert _nobody_is_left()


def test_ctrl_c_lets_the_iteration_end_and_the_program_exit_with_0(program: Path, folder: Path) -> None:
    with started(_command(program, folder, "CountsStalls", 10_000, 100), env=environment(folder)) as process:
        read_until(process, "iteration 1")
        os.killpg(process.pid, signal.SIGINT)
        rest, errors = process.communicate(timeout=DEADLINE_S)
        assert rest.splitlines()[-1] == "stopped early"
        assert (process.returncode, errors) == (0, "")
    assert _nobody_is_left()


def test_a_closed_terminal_does_not_end_the_loaders(program: Path, folder: Path) -> None:
    with started(_command(program, folder, "Plain", 8, 50), env=environment(folder)) as process:
        read_until(process, "iteration 1")
        os.killpg(process.pid, signal.SIGHUP)
        rest, errors = process.communicate(timeout=DEADLINE_S)
        assert "snapshot" in rest
        assert "iteration 7\ndone\n" in rest
        assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nobody_outlives_a_trainer_that_is_killed(program: Path, folder: Path, number: signal.Signals) -> None:
    with started(_command(program, folder, "Plain", 10_000, 50), env=environment(folder)) as process:
        read_until(process, "iteration 1")
        assert len(leftovers.orphans()) >= 4  # the program, the assembler, and two loaders at least
        process.send_signal(number)
        process.wait(DEADLINE_S)
        assert _nobody_is_left()
        process.communicate(timeout=DEADLINE_S)  # nobody holds its pipes either


def _examples() -> list[Path]:
    return sorted(path.parent for path in (_ROOT / "prototxt_examples").glob("*/solver.prototxt"))


def _with_our_layers() -> list[Path]:
    """The examples that Caffe runs through blobfeed's layers: fashion_mnist has Caffe's own layers in their place."""
    return [example for example in _examples() if 'type: "Python"' in (example / "net.prototxt").read_text()]


@pytest.mark.parametrize("example", some_of(_with_our_layers(), 3), ids=lambda path: path.name)
def test_the_layers_of_the_examples_run_from_their_folder(program: Path, example: Path) -> None:
    layers = read_prototxt(example / "net.prototxt", NetParameter).message.layer
    inputs = [layer for layer in layers if layer.type == "Python"]
    assert inputs
    for layer in inputs:
        given = layer.python_param
        command = [str(program), given.module, given.layer, given.param_str, str(len(layer.top)), "3", "0"]
        done = _run(command, environment(Path()), example)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("example", _examples(), ids=lambda path: path.name)
def test_the_page_about_caffe_has_a_command_for_every_example(example: Path) -> None:
    blocks = (_ROOT / "docs" / "caffe.md").read_text().split("```")
    (block,) = (text for text in blocks if f"cd prototxt_examples/{example.name}" in text)
    assert "mkdir -p runs && " in block
    assert "caffe train --solver=solver.prototxt" in block
    own_modules = list(example.glob("*.py"))
    if any(path.stem in (example / "net.prototxt").read_text() for path in own_modules):
        assert "PYTHONPATH=.:$PYTHONPATH" in block


def _python_of_another_version(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "python3").write_text("#!/bin/sh\necho 2.7\n")
    (folder / "python3").chmod(0o755)
    return folder / "python3"


def test_an_executable_of_another_version_on_the_path_is_found_out(program: Path, folder: Path, tmp_path: Path) -> None:
    other = _python_of_another_version(tmp_path / "bin")
    changed = environment(folder, PATH=f"{other.parent}{os.pathsep}{os.environ['PATH']}")
    done = _run(_command(program, folder, "Plain"), changed)
    assert (done.returncode, done.stderr) == (0, "")


def test_where_no_executable_fits_the_error_says_how_to_name_one(program: Path, folder: Path, tmp_path: Path) -> None:
    other = _python_of_another_version(tmp_path / "bin")
    done = _run(_command(program, folder, "Plain"), environment(folder, BLOBFEED_PYTHON=str(other)))
    assert done.returncode == -signal.SIGABRT
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"InterpreterError: no Python {version} found to run the loaders: tried {other} (2.7)" in done.stderr
    assert "set the environment variable BLOBFEED_PYTHON" in done.stderr
