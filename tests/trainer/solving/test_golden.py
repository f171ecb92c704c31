"""Every solver and learning-rate policy moves the weights as BVLC Caffe 1.0 moved them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from blobfeed.trainer.solving import POLICIES, SOLVER_TYPES, Solver

from tests.support.trainer_nets import write_golden_solver

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "solvers.npz")
RUNS = sorted({key.partition("/")[0] for key in GOLDEN.files} - {"data"})
WEIGHTS = ("ip1_0", "ip1_1", "ip2_0", "ip2_1")


def weights_of(solver: Solver) -> dict[str, torch.Tensor]:
    layers = solver.train_net.layers
    return {name: layers[name[:3]].blobs[int(name[4])] for name in WEIGHTS}


def golden_solver(run: str, folder: Path) -> Solver:
    """The solver of a golden run, with the weights that Caffe began with."""
    solver = Solver.from_file(write_golden_solver(run, folder), device="cpu")
    with torch.no_grad():
        for name, weights in weights_of(solver).items():
            weights.copy_(torch.from_numpy(GOLDEN[f"{run}/{name}"][0]))
    return solver


def assert_step(solver: Solver, run: str) -> None:
    """The weights are those that Caffe had after as many steps."""
    for name, weights in weights_of(solver).items():
        np.testing.assert_allclose(
            weights.detach(),
            GOLDEN[f"{run}/{name}"][solver.iteration],
            rtol=1e-4,
            atol=1e-5,
            err_msg=f"{run}: {name} after {solver.iteration} steps",
        )


@pytest.mark.parametrize("run", RUNS)
def test_ten_steps_move_the_weights_as_caffe_did(run: str, tmp_path: Path) -> None:
    with golden_solver(run, tmp_path) as solver:
        assert solver.samples_per_step == 6 * solver.param.iter_size
        (data,) = solver.train_net.user_layers().values()
        first = np.mean([float(solver.train_net.objective().detach()) for _ in range(solver.param.iter_size)])
        data.at = 0
        for loss in GOLDEN[f"{run}/loss"]:
            found = float(solver.step())
            if solver.iteration == 1:
                assert found == pytest.approx(first)
            if solver.param.iter_size == 1:  # else Caffe's figure is of the last of the step's batches alone
                assert found == pytest.approx(float(loss), rel=1e-4, abs=1e-5)
            assert_step(solver, run)


def test_all_solver_types_and_policies_have_a_run() -> None:
    texts = "".join(str(GOLDEN[f"{run}/prototxt"]) for run in RUNS) + "type: 'SGD'"
    assert all(f"type: '{name}'" in texts for name in SOLVER_TYPES)
    assert all(f"lr_policy: '{name}'" in texts for name in POLICIES)
