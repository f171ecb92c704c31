"""Caffe's own files: what Caffe wrote is read, training goes on from it, and what is written says the same again."""

from __future__ import annotations

from pathlib import Path

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from blobfeed.tools.convert import convert
from blobfeed.trainer.net import read_weights, write_weights
from blobfeed.trainer.prototxt import NetParameter, SnapshotError, message_class
from blobfeed.trainer.solving import Snapshot, Solver, read_state, score_net, write_state

from tests.support.trainer_nets import SMALL_NET, SMALL_SOLVER, make_net, with_inputs, write_project
from tests.trainer.solving.test_golden import GOLDEN, RUNS, WEIGHTS, assert_step, golden_solver


def caffe_snapshot(run: str, folder: Path) -> Path:
    """The .solverstate that Caffe wrote after six steps of a golden run, with its .caffemodel beside it."""
    for key in GOLDEN.files:
        name, _, kind = key.partition("/")
        if name == run and kind.partition(".")[0] in ("caffemodel", "solverstate"):
            (folder / f"{run}_iter_6.{kind}").write_bytes(GOLDEN[key].tobytes())
    (state,) = folder.glob("*.solverstate*")
    return state


def skip_data(solver: Solver) -> None:
    """A .solverstate does not know where the data was: 36 rows on, or 72 with two batches a step."""
    (layer,) = solver.train_net.user_layers().values()
    layer.at = 36 * solver.param.iter_size


@pytest.mark.parametrize("run", RUNS)
def test_training_that_caffe_began_goes_on_here(run: str, tmp_path: Path) -> None:
    state = caffe_snapshot(run, tmp_path)
    with golden_solver(run, tmp_path) as solver:
        solver.restore(state)
        assert_step(solver, run)
        skip_data(solver)
        for _ in range(4):
            solver.step()
            assert_step(solver, run)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("form", ["BINARYPROTO", "HDF5"])
def test_a_snapshot_for_caffe_says_what_caffe_says(
    run: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "caffe").mkdir()
    expected = read_state(caffe_snapshot(run, tmp_path / "caffe"))
    with golden_solver(run, tmp_path) as solver:
        solver.param.snapshot_format = {"HDF5": 0, "BINARYPROTO": 1}[form]
        for _ in range(6):
            solver.step()
        solver.save()
    suffix = ".h5" if form == "HDF5" else ""
    found = read_state(tmp_path / f"{run}_iter_6.solverstate{suffix}")
    assert (found.iteration, found.current_step) == (expected.iteration, expected.current_step)
    assert found.learned_net == f"{run}_iter_6.caffemodel{suffix}"
    for mine, theirs in zip(found.history, expected.history, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    weights = read_weights(tmp_path / found.learned_net)
    for name in WEIGHTS:
        np.testing.assert_allclose(weights[name[:3]][int(name[4])], GOLDEN[f"{run}/{name}"][6], rtol=1e-4, atol=1e-5)


def test_a_caffemodel_says_what_its_layers_are_and_their_gradients_if_wanted(tmp_path: Path) -> None:
    path = tmp_path / "m.caffemodel"
    with golden_solver("sgd", tmp_path) as solver:
        solver.step()
        net = solver.train_net
        net.layers["ip2"].blobs[0].grad = None  # as where lr_mult is 0
        write_weights(path, net.weights(), net.layers, with_diff=True)
        write_weights(path.with_suffix(".h5"), net.weights(), net.layers, with_diff=True)
        gradient = net.layers["ip1"].blobs[0].grad
        assert gradient is not None
        message: NetParameter = message_class(NetParameter).FromString(path.read_bytes())
        assert [(layer.name, layer.type) for layer in message.layer][:2] == [
            ("data", "Python"),
            ("ip1", "InnerProduct"),
        ]
        assert message.layer[1].blobs[0].diff == gradient.numpy().tobytes()
        with h5py.File(path.with_suffix(".h5")) as file:
            assert np.array_equal(file["diff/ip1/0"], gradient.numpy())
            assert not np.any(file["diff/ip2/0"])


@pytest.mark.parametrize("suffix", ["", ".h5"])
def test_weights_may_have_no_axes(tmp_path: Path, suffix: str) -> None:
    slope = 'layer { name: "y" type: "PReLU" bottom: "x" top: "y" prelu_param { channel_shared: true } }'
    path = tmp_path / f"m.caffemodel{suffix}"
    write_weights(path, make_net(tmp_path, with_inputs(slope, x=(2, 3))).weights())
    assert torch.equal(read_weights(path)["y"][0], torch.tensor(0.25))


@pytest.mark.parametrize("suffix", ["", ".h5"])
def test_names_of_layers_may_have_slashes(tmp_path: Path, suffix: str) -> None:
    weights = {"inception/1": [torch.ones(2), torch.zeros(1)], "inception": [torch.full((1,), 3.0)]}
    path = tmp_path / f"m.caffemodel{suffix}"
    write_weights(path, weights)
    found = read_weights(path)
    assert {name: [blob.tolist() for blob in blobs] for name, blobs in found.items()} == {
        "inception/1": [[1, 1], [0]],
        "inception": [[3]],
    }


def test_fine_tuning_takes_what_layers_have_by_name(tmp_path: Path) -> None:
    path = write_project(tmp_path)
    with Solver.from_file(path) as solver:
        weights = solver.train_net.weights()
    weights["ip1"][0].fill_(3)
    # Files of before 2015 have four axes for everything.
    write_weights(tmp_path / "a.caffemodel", {"ip1": [weights["ip1"][0].view(1, 1, 12, 4), weights["ip1"][1]]})
    path.write_text(path.read_text() + 'weights: "a.caffemodel"')
    with Solver.from_file(path) as solver:
        assert (solver.train_net.layers["ip1"].blobs[0] == 3).all()
        assert torch.equal(solver.train_net.layers["ip2"].blobs[0], weights["ip2"][0])


def test_weights_reach_layers_that_only_a_test_net_has(tmp_path: Path) -> None:
    head = """layer { name: "old" type: "InnerProduct" bottom: "ip1" top: "old" include { phase: TEST }
              inner_product_param { num_output: 5 } }"""
    path = write_project(tmp_path, net=SMALL_NET + head, solver=SMALL_SOLVER + "test_iter: 1 test_interval: 5")
    ones = {"ip1": [torch.ones(12, 4), torch.ones(12)], "old": [torch.ones(5, 12), torch.ones(5)]}
    write_weights(tmp_path / "a.caffemodel", ones)
    with Solver.from_file(path) as solver:
        solver.load_weights(tmp_path / "a.caffemodel")
        (test_net,) = solver.test_nets
        assert all((blob == 1).all() for name in ones for blob in test_net.layers[name].blobs)


def test_layers_may_share_weights_that_a_file_has_once_at_the_first(tmp_path: Path) -> None:
    shared = """layer { name: "%s" type: "InnerProduct" bottom: "x" top: "%s" param { name: "w" } param { name: "%s" }
                inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }"""
    twins = with_inputs(shared % ("a", "a", "b") + shared % ("a_p", "a_p", "b"), x=(1, 3))
    net = make_net(tmp_path, twins)
    # As Caffe writes it: a layer whose weights are all another's is an empty group.
    write_weights(tmp_path / "w.caffemodel.h5", {"a": [torch.ones(2, 3), torch.zeros(2)], "a_p": []})
    net.load_weights(read_weights(tmp_path / "w.caffemodel.h5"), "w.caffemodel.h5")
    assert (net.layers["a_p"].blobs[0] == 1).all()
    other = make_net(tmp_path, with_inputs(shared % ("a", "a", "b") + shared % ("a_p", "a_p", "own"), x=(1, 3)))
    with pytest.raises(SnapshotError):
        other.load_weights(read_weights(tmp_path / "w.caffemodel.h5"), "w.caffemodel.h5")
    # Of a layer that shares some, the file has the others, under their own numbers.
    with h5py.File(tmp_path / "w.caffemodel.h5", "a") as file:
        file["data/a_p/1"] = np.full(2, 5, np.float32)
    other.load_weights(read_weights(tmp_path / "w.caffemodel.h5"), "w.caffemodel.h5")
    assert (other.layers["a_p"].blobs[0] == 1).all()
    assert (other.layers["a_p"].blobs[1] == 5).all()
    unshared = make_net(
        tmp_path, with_inputs(shared % ("a", "a", "b") + shared.replace('"w"', '"v"') % ("a_p", "a_p", "own"), x=(1, 3))
    )
    with pytest.raises(SnapshotError):
        unshared.load_weights(read_weights(tmp_path / "w.caffemodel.h5"), "w.caffemodel.h5")


def test_weights_of_old_nets_are_read(tmp_path: Path) -> None:
    old = message_class(NetParameter)()
    for kind in ("v1", "v0"):
        layer = old.layers.add()
        holder = layer if kind == "v1" else layer.layer
        holder.name = kind
        holder.blobs.add(num=1, channels=1, height=2, width=3, data=np.arange(6, dtype="<f4").tobytes())
    (tmp_path / "old.caffemodel").write_bytes(old.SerializeToString())
    weights = read_weights(tmp_path / "old.caffemodel")
    assert {name: blobs[0].shape for name, blobs in weights.items()} == {"v1": (1, 1, 2, 3), "v0": (1, 1, 2, 3)}
    assert weights["v0"][0].flatten().tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("target", ["w.caffemodel", "w.caffemodel.h5", "w.pt"])
def test_weights_survive_any_conversion_and_score_the_same(tmp_path: Path, target: str) -> None:
    path = write_project(tmp_path)
    with Solver.from_file(path) as solver:
        for _ in range(5):
            solver.step()
        saved = solver.save()
    convert(saved, tmp_path / target)
    back = tmp_path / "back.caffemodel"
    assert convert(tmp_path / target, back) == f"{back}: weights of 2 layers"
    for name, blobs in read_weights(saved).items():
        for mine, theirs in zip(read_weights(back)[name], blobs, strict=True):
            assert torch.equal(mine, theirs)
    net = tmp_path / "net.prototxt"
    assert score_net(net, tmp_path / target, 3, "cpu") == score_net(net, saved, 3, "cpu")


def test_states_become_each_other(tmp_path: Path) -> None:
    state = caffe_snapshot("adam", tmp_path)
    convert(state, tmp_path / "a.solverstate.h5")
    convert(tmp_path / "a.solverstate.h5", tmp_path / "b.solverstate")
    assert (tmp_path / "b.solverstate").read_bytes() == state.read_bytes()


def test_a_state_names_its_weights_in_any_letters(tmp_path: Path) -> None:
    write_state(tmp_path / "s.solverstate.h5", Snapshot(1, [], "josé/w.caffemodel.h5"))
    assert read_state(tmp_path / "s.solverstate.h5").learned_net == "josé/w.caffemodel.h5"
