"""Training: what a solver prototxt asks for, to the bit."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from blobfeed.trainer.layer_types import Layer
from blobfeed.trainer.prototxt import NetError, SnapshotError, SolverError
from blobfeed.trainer.solving import Solver, StopRequest, printing, train

from tests.support.trainer_nets import BATCHES, DATA_LAYER, SMALL_NET, SMALL_SOLVER, write_project

TESTED = SMALL_SOLVER + "test_iter: 3 test_interval: 10\n"

ENDING = "from blobfeed.workers.base import EndOfData\n" + BATCHES.replace(
    "        rows =", '        if self.at >= 32:\n            raise EndOfData("all was given")\n        rows ='
)

TESTED_ONCE = ENDING.replace("self.at >= 32", "self.phase == 1 and self.at >= 8")


def losses(solver: Solver, steps: int) -> list[float]:
    return [float(solver.step()) for _ in range(steps)]


def run(solver: Solver) -> list[str]:
    """Train to the end; return the lines of the events."""
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        train(solver, [printing(solver)], StopRequest())
    return shown.getvalue().splitlines()


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without a CUDA device")
def test_a_solver_that_asks_for_a_gpu_where_there_is_none_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for mode, said in [("", 0), ("solver_mode: CPU", 0), ("solver_mode: GPU", 1)]:
        with Solver.from_file(write_project(tmp_path, solver=SMALL_SOLVER.replace("solver_mode: CPU", mode))):
            assert len(caplog.messages) == said
    assert "solver_mode: GPU, but torch finds no CUDA device" in caplog.text


def test_a_net_keeps_its_device_though_torch_has_another_default(tmp_path: Path) -> None:
    normalized = """
    layer { name: "shaped" type: "Reshape" bottom: "data" top: "shaped" reshape_param { shape { dim: [0, 2, 2, 1] } } }
    layer { name: "norm" type: "LRN" bottom: "shaped" top: "norm" lrn_param { local_size: 3 } }
    """
    net = SMALL_NET.replace('bottom: "data" top: "ip1"', 'bottom: "norm" top: "ip1"')
    path = write_project(tmp_path, net=net.replace(DATA_LAYER, DATA_LAYER + normalized))
    found = []
    for default in ("cpu", "meta"):
        with torch.device(default), Solver.from_file(path, device="cpu") as solver:
            found.append(float(solver.step()))
    assert found[0] == found[1]


def test_another_seed_gives_other_losses_and_no_seed_a_new_one_each_time(tmp_path: Path) -> None:
    path = write_project(tmp_path, solver=SMALL_SOLVER.replace("random_seed: 7", ""))
    firsts = set()
    for _ in range(3):
        with Solver.from_file(path) as solver:
            firsts.add(float(solver.step()))
    assert len(firsts) == 3


def test_the_test_net_uses_the_weights_that_are_being_trained(tmp_path: Path) -> None:
    with Solver.from_file(write_project(tmp_path, solver=TESTED)) as solver:
        (before,) = solver.test()
        losses(solver, 30)
        (after,) = solver.test()
        trained, tested = (
            [weights.data_ptr() for weights in net.all_weights()] for net in (solver.train_net, *solver.test_nets)
        )
        assert trained == tested
    assert before.keys() == after.keys() == {"loss", "accuracy"}
    assert after["loss"] < before["loss"]
    assert after["accuracy"] > 0.8


RUNS = {
    "tests and snapshots at their intervals, and both once at the end": (
        "test_iter: 3 test_interval: 10 snapshot: 15 display: 20",
        BATCHES,
        ["at 0", "at 10", "saved", "at 20/30", "at 20", "saved", "at 30"],
    ),
    "what the solver declines does not happen": (
        "test_iter: 3 test_interval: 10 test_initialization: false snapshot_after_train: false",
        BATCHES,
        ["at 10", "at 20", "at 30"],
    ),
    "training ends where the data ends, with a snapshot": (
        "test_iter: 1 test_interval: 2",
        ENDING,
        ["at 0", "at 2", "at 4", "the data ended after at 4", "saved"],
    ),
    "training ends where the data of a test end, with a snapshot": (
        "test_iter: 1 test_interval: 2",
        TESTED_ONCE,
        ["at 0", "the data ended after at 2", "saved"],
    ),
    "the data of the last test end": (
        "test_iter: 1 test_interval: 30",
        TESTED_ONCE,
        ["at 0", "saved", "the data ended after at 30"],
    ),
    "no test net": ("test_interval: 4", BATCHES, ["saved"]),
    "no test": ("test_interval: 4 test_iter: 0", BATCHES, ["at 0", *(f"at {nth}" for nth in range(4, 30, 4)), "saved"]),
}
"""Runs by name: more lines of the solver, the data layer, and the expected output up to the colon of each line."""


@pytest.mark.parametrize("name", RUNS)
def test_a_run_tests_saves_and_ends(tmp_path: Path, name: str) -> None:
    more, batches, expected = RUNS[name]
    path = write_project(tmp_path, solver=SMALL_SOLVER + more)
    (tmp_path / "batches.py").write_text(batches)
    with Solver.from_file(path) as solver:
        lines = [line.split(":") for line in run(solver)]
        last = solver.iteration
    found = [head.replace("iteration", "at").replace("snapshot", "saved") for head, *_ in lines]
    assert found == expected
    saved = [Path(rest[0].strip()).name for head, *rest in lines if head == "snapshot"]
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == saved
    assert saved[-1:] in ([], [f"solver_iter_{last}.pt"])


def test_the_displayed_loss_is_the_mean_of_the_last_ones(tmp_path: Path) -> None:
    with Solver.from_file(write_project(tmp_path, solver=SMALL_SOLVER + "average_loss: 4")) as solver:
        curve = losses(solver, 10)
        assert solver.loss() == pytest.approx(sum(curve[-4:]) / 4)


def test_layers_are_set_up_train_first_and_tested_first(tmp_path: Path) -> None:
    path = write_project(tmp_path, solver=TESTED)
    logged = BATCHES.replace("import h5py", "import h5py\n\nLOG = []", 1)
    for hook in ("setup", "forward"):
        head = f"def {hook}(self, bottom, top):"
        logged = logged.replace(head, f'{head}\n        LOG.append(("{hook}", self.phase))')
    (tmp_path / "batches.py").write_text(logged)
    with Solver.from_file(path) as solver:
        run(solver)
    import batches  # type: ignore[import-not-found]

    assert batches.LOG[:6] == [("setup", 0), ("setup", 1)] + [("forward", 1)] * 3 + [("forward", 0)]


def test_nets_are_closed_if_the_weights_to_begin_with_are_missing(tmp_path: Path) -> None:
    path = write_project(tmp_path, solver=TESTED + 'weights: "none.caffemodel"')
    (tmp_path / "batches.py").write_text(
        "CLOSED = []\n" + BATCHES + "\n    def close(self):\n        CLOSED.append(1)\n"
    )
    with pytest.raises(SnapshotError):
        Solver.from_file(path)
    assert sys.modules["batches"].CLOSED == [1, 1]


def test_all_nets_are_closed_though_each_fails_and_the_first_error_is_raised(tmp_path: Path) -> None:
    two_tests = SMALL_SOLVER + "test_iter: 3 test_iter: 3 test_interval: 10\ntest_state {} test_state {}\n"
    path = write_project(tmp_path, solver=two_tests)
    closing = "\n    def close(self):\n        self.closed = True\n        raise RuntimeError(self.name)\n"
    (tmp_path / "batches.py").write_text(BATCHES + closing)
    solver = Solver.from_file(path)
    layers = [layer for net in (solver.train_net, *solver.test_nets) for layer in net.user_layers().values()]
    for name, layer in zip(("train", "test 0", "test 1"), layers, strict=True):
        layer.name = name
    with pytest.raises(RuntimeError, match="train"):
        solver.close()
    assert all(layer.closed for layer in layers)


@pytest.mark.parametrize("use", [Solver.save, Solver.loss, Solver.test], ids=lambda use: use.__name__)
def test_nothing_comes_of_a_label_that_is_no_class_though_only_the_device_has_seen_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[Solver], object]
) -> None:
    path = write_project(tmp_path, solver=SMALL_SOLVER + "test_iter: 100 test_interval: 10")
    (tmp_path / "batches.py").write_text(ENDING.replace("self.label[rows]", "self.label[rows] + 7"))
    monkeypatch.setattr(Layer, "is_on_host", lambda self, tensor: False)  # as if the device were far behind
    with Solver.from_file(path) as solver:
        solver.step()
        with pytest.raises(NetError):
            use(solver)
    assert not list(tmp_path.glob("*.pt"))


def test_a_test_is_the_mean_over_as_many_batches_as_there_are(tmp_path: Path) -> None:
    path = write_project(tmp_path, solver=SMALL_SOLVER + "test_iter: 4 test_interval: 10")
    with Solver.from_file(path) as solver:
        expected = solver.test()
    (tmp_path / "solver.prototxt").write_text(SMALL_SOLVER + "test_iter: 100 test_interval: 10")
    (tmp_path / "batches.py").write_text(ENDING)
    del sys.modules["batches"]
    with Solver.from_file(path) as solver:
        assert solver.test() == expected


def test_each_number_of_an_output_is_scored_if_their_count_stays_and_is_modest(tmp_path: Path) -> None:
    net = SMALL_NET.replace('top: "accuracy"', 'top: "accuracy" top: "per_class"')
    net += 'layer { name: "many" type: "Tile" bottom: "label" top: "many" tile_param { axis: 0 tiles: 126 } }'
    path = write_project(tmp_path, net=net, solver=TESTED)
    with Solver.from_file(path) as solver:
        (scores,) = solver.test()
        assert list(scores) == ["accuracy", "loss", "per_class[0]", "per_class[1]", "per_class[2]"]
        assert 0 < sum(scores[f"per_class[{nth}]"] for nth in range(3)) < 3
    (tmp_path / "batches.py").write_text(
        BATCHES.replace("self.at += self.rows", "self.at += 1\n        self.rows -= 1")
    )
    del sys.modules["batches"]
    for tiles in (2, 160):  # of 160, the third batch alone has a modest count
        (tmp_path / "net.prototxt").write_text(net.replace("tiles: 126", f"tiles: {tiles}"))
        with Solver.from_file(path) as solver:
            (scores,) = solver.test()
        assert [name for name in scores if name.startswith("many")] == []


NETS = {
    "in one file": 'net: "net.prototxt"',
    "in two files": 'train_net: "net.prototxt" test_net: "test.prototxt"',
    "in the solver": f"net_param {{ {SMALL_NET} }}",
    "in two messages": f"train_net_param {{ {SMALL_NET} }} test_net_param {{ {SMALL_NET} }}",
}


def test_nets_stand_in_files_or_in_the_solver(tmp_path: Path) -> None:
    path, found = write_project(tmp_path), []
    (tmp_path / "test.prototxt").write_text(SMALL_NET)
    for nets in NETS.values():
        path.write_text(SMALL_SOLVER.replace('net: "net.prototxt"', nets) + "test_iter: 2 test_interval: 5")
        with Solver.from_file(path) as solver:
            found.append((losses(solver, 3), solver.test()))
            assert "accuracy" in found[-1][1][0]
    assert found == [found[0]] * len(NETS)


def test_a_net_is_found_in_the_working_directory_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_project(tmp_path)
    (tmp_path / "solvers").mkdir()
    monkeypatch.chdir(tmp_path)
    with Solver.from_file(path.rename("solvers/solver.prototxt")) as solver:
        assert solver.train_net.document.path == Path("net.prototxt")


def test_several_test_nets_differ_by_their_stages(tmp_path: Path) -> None:
    net = SMALL_NET.replace("include { phase: TEST }", 'include { phase: TEST stage: "scored" }')
    path = write_project(
        tmp_path,
        net=net,
        solver=SMALL_SOLVER + 'test_iter: [1, 2] test_interval: 5 test_state { stage: "scored" } test_state { }',
    )
    with Solver.from_file(path) as solver:
        assert [scores.keys() for scores in solver.test()] == [{"loss", "accuracy"}, {"loss"}]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_asking_for_cuda_where_there_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SolverError):
        Solver.from_file(write_project(tmp_path), device="cuda")


@pytest.mark.cuda
def test_on_cuda_the_whole_net_lives_there_and_learns_as_on_the_cpu(tmp_path: Path) -> None:
    net = SMALL_NET.replace("dropout_ratio: 0.25", "dropout_ratio: 0.001")
    path = write_project(tmp_path, net=net, solver=TESTED)
    with Solver.from_file(path, device="cpu") as on_cpu:
        expected = losses(on_cpu, 10)
    with Solver.from_file(path, device="cuda") as on_cuda:
        found = losses(on_cuda, 10)
        assert on_cuda.test()[0].keys() == {"loss", "accuracy"}
        assert {blob.data.device.type for blob in on_cuda.train_net.blobs.values()} == {"cuda"}
        assert {each.weights.device.type for each in on_cuda.train_net.learnt()} == {"cuda"}
    assert found == pytest.approx(expected, rel=0.05)


def test_the_old_numbers_of_solvers_are_known(tmp_path: Path) -> None:
    with Solver.from_file(write_project(tmp_path, solver=SMALL_SOLVER + "solver_type: NESTEROV")) as solver:
        assert solver.param.type == "Nesterov"


def test_the_objective_of_a_test_is_told_if_wanted(tmp_path: Path) -> None:
    path = write_project(tmp_path, solver=SMALL_SOLVER + "test_interval: 10 test_iter: 2 test_compute_loss: true")
    with Solver.from_file(path) as solver:
        scores = solver.test()[0]
    assert scores["total loss"] == pytest.approx(scores["loss"])
