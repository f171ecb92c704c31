"""Solvers used from Python as scripts for pycaffe do it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from blobfeed.trainer.prototxt import NetError
from blobfeed.trainer.pycaffe import Net, Solver, get_solver, mode, solvers

from tests.support.trainer_nets import SMALL_SOLVER, write_golden_solver, write_project
from tests.trainer.solving.test_golden import GOLDEN, WEIGHTS

CLASSES = ["SGDSolver", "NesterovSolver", "AdaGradSolver", "RMSPropSolver", "AdaDeltaSolver", "AdamSolver"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def started(solver: Solver, run: str) -> Solver:
    for name in WEIGHTS:
        solver.net.params[name[:3]][int(name[4])].data[...] = GOLDEN[f"{run}/{name}"][0]
    return solver


def assert_weights(solver: Solver, run: str, step: int) -> None:
    for name in WEIGHTS:
        found = solver.net.params[name[:3]][int(name[4])].data
        np.testing.assert_allclose(found, GOLDEN[f"{run}/{name}"][step], rtol=1e-4, atol=1e-5, err_msg=f"{run}: {name}")


def test_the_class_names_the_type_whatever_the_file_says(tmp_path: Path) -> None:
    path = write_golden_solver("adam", tmp_path)
    for name in CLASSES[:2] + CLASSES[4:]:
        solver = getattr(solvers, name)(path)
        assert solver.param.type == name.removesuffix("Solver")
    started(solver, "adam").step(10)
    assert_weights(solver, "adam", 10)


def test_forward_backward_and_update_are_a_step(tmp_path: Path) -> None:
    solver = started(get_solver(write_golden_solver("sgd", tmp_path)), "sgd")
    solver.net.clear_param_diffs()
    solver.net.forward()
    solver.net.backward()
    solver.apply_update()
    assert_weights(solver, "sgd", 1)
    assert solver.iter == 0


@pytest.mark.parametrize("has_run", [True, False])
def test_a_net_goes_back_only_from_a_forward_with_the_weights_that_it_has_now(tmp_path: Path, has_run: bool) -> None:
    solver = get_solver(write_golden_solver("sgd", tmp_path))
    if has_run:
        solver.net.forward()
    solver.step(1)
    with pytest.raises(NetError):
        solver.net.backward()
    solver.net.forward()
    solver.net.backward()


def test_a_script_trains_tests_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = SMALL_SOLVER + 'test_iter: 2 test_interval: 10 snapshot_prefix: "s"'
    solver = get_solver(write_project(tmp_path, solver=text))
    solver.step(12)
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["iteration 0", "iteration 10"]
    (test_net,) = solver.test_nets
    test_net.forward()
    assert 0 <= test_net.blobs["accuracy"].data <= 1
    assert test_net.params["ip1"][0].data.ctypes.data == solver.net.params["ip1"][0].data.ctypes.data
    solver.snapshot()
    assert {path.name for path in tmp_path.glob("s_*")} == {
        f"s_iter_12.{suffix}" for suffix in ("pt", "caffemodel", "solverstate")
    }
    weights = Net(tmp_path / "net.prototxt", "s_iter_12.caffemodel", 1).params["ip1"][0].data
    np.testing.assert_array_equal(weights, solver.net.params["ip1"][0].data)
    solver.solve()
    resumed = get_solver(tmp_path / "solver.prototxt")
    resumed.restore("s_iter_12.pt")
    assert resumed.iter == 12
    resumed.solve("s_iter_12.pt")
    assert resumed.iter == solver.iter == 30
    np.testing.assert_array_equal(resumed.net.params["ip2"][0].data, solver.net.params["ip2"][0].data)
    resumed.step(1)
    assert resumed.iter == 31
    for each in (solver, resumed):
        each.close()


def test_a_script_that_counts_its_steps_needs_no_max_iter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    solver = get_solver(write_project(tmp_path, solver=SMALL_SOLVER.replace("max_iter: 30", "display: 2")))
    solver.step(2)
    assert capsys.readouterr().out.startswith("iteration 2: loss")
    solver.close()


def test_a_solver_trains_the_weights_that_its_net_shares(tmp_path: Path) -> None:
    solver = get_solver(write_project(tmp_path, solver=SMALL_SOLVER + "test_iter: 1 test_interval: 1"))
    other = Net("net.prototxt", 0)
    solver.net.share_with(other)
    drawn = other.params["ip1"][0].data.copy()
    solver.step(1)
    trained = other.params["ip1"][0].data
    np.testing.assert_array_equal(solver.net.params["ip1"][0].data, trained)
    assert not np.array_equal(trained, drawn)
    solver.step(1)  # tests before the second step
    np.testing.assert_array_equal(solver.test_nets[0].params["ip1"][0].data, other.params["ip1"][0].data)


@pytest.mark.usefixtures("arrays_are_copies")
def test_a_test_net_sees_what_was_written_to_the_solvers_net(tmp_path: Path) -> None:
    solver = get_solver(write_project(tmp_path, solver=SMALL_SOLVER + "test_iter: 2 test_interval: 10"))
    shown, (test_net,) = solver.net.params["ip1"][0], solver.test_nets
    shown.data[...] = 1
    test_net.forward()
    np.testing.assert_array_equal(test_net.params["ip1"][0].data, np.ones(shown.shape, np.float32))


def test_callbacks_see_each_step_and_may_change_gradients(tmp_path: Path) -> None:
    solver = solvers.SGDSolver(write_project(tmp_path))
    seen: list[tuple[str, int]] = []

    def forget() -> None:
        seen.append(("ready", solver.iter))
        assert np.any(solver.net.params["ip1"][1].diff)
        solver.net.clear_param_diffs()

    before = solver.net.params["ip1"][1].data.copy()  # the bias, which does not decay
    solver.add_callback(lambda: seen.append(("start", solver.iter)), forget)
    solver.step(2)
    assert seen == [("start", 0), ("ready", 0), ("start", 1), ("ready", 1)]
    np.testing.assert_array_equal(solver.net.params["ip1"][1].data, before)


def test_there_is_one_solver_on_one_device() -> None:
    assert (mode.solver_count(), mode.solver_rank()) == (1, 0)
