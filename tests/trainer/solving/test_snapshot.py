"""A snapshot is whole or not there, holds all that training goes on from, and cannot execute anything."""

from __future__ import annotations

import errno
import os
import pickle
import re
import resource
import signal
import traceback
from pathlib import Path

import pytest
import torch
from blobfeed.trainer.prototxt import SnapshotError
from blobfeed.trainer.solving import Solver, score_net
from blobfeed.trainer.solving import snapshot as snapshots

from tests.support.trainer_nets import DATA_LAYER, SMALL_NET, SMALL_SOLVER, write_project

# Batches of 8 of 50 rows, dropout, a step in the rate, momentum, tests of their own stand: all of it must go on.
TESTED = SMALL_SOLVER + "test_iter: 3 test_interval: 10 average_loss: 3 iter_size: 2\n"


def trained(path: Path, steps: int) -> list[object]:
    """What a run of `steps` from the start shows: losses, and tests after 10 and 20 steps."""
    with Solver.from_file(path) as solver:
        return go_on(solver, steps)


def go_on(solver: Solver, steps: int) -> list[object]:
    shown: list[object] = []
    for _ in range(steps):
        if solver.test_is_due:
            shown.append(solver.test())
        shown.append((float(solver.step()), solver.loss()))
    return shown


NOISE = """layer { name: "noise" type: "DummyData" top: "noise"
    dummy_data_param { shape { dim: [8, 4] } data_filler { type: "gaussian" } } }
layer { name: "noisy" type: "Eltwise" bottom: "data" bottom: "noise" top: "noisy" }
layer {
  name: "ip1" type: "InnerProduct" bottom: "noisy\""""
NOISY = SMALL_NET.replace('layer {\n  name: "ip1" type: "InnerProduct" bottom: "data"', NOISE)


@pytest.mark.parametrize("net", [SMALL_NET, NOISY], ids=["", "with DummyData that draws"])
@pytest.mark.parametrize("at", [1, 9, 10, 13])
def test_training_goes_on_to_the_bit(tmp_path: Path, at: int, net: str) -> None:
    path = write_project(tmp_path, net=net, solver=TESTED)
    whole = trained(path, 22)
    with Solver.from_file(path) as first:
        shown = go_on(first, at)
        saved = first.save()
    with Solver.from_file(path) as second:
        second.restore(saved)
        assert second.iteration == at
        shown += go_on(second, 22 - at)
    assert shown == whole


def test_a_snapshot_has_the_permissions_of_any_other_file(tmp_path: Path) -> None:
    path = write_project(tmp_path)
    with Solver.from_file(path) as solver:
        saved = solver.save()
    assert saved.stat().st_mode == path.stat().st_mode


def test_a_failing_write_leaves_the_old_snapshot_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_project(tmp_path)
    with Solver.from_file(path) as solver:
        saved = solver.save()
        before = saved.read_bytes()
        files = sorted(tmp_path.iterdir())

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(SnapshotError, match=os.strerror(errno.ENOSPC)):
            solver.save()
    assert saved.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == files


def test_a_full_disk_is_named_whatever_torch_makes_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Solver.from_file(write_project(tmp_path)) as solver:
        _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            with pytest.raises(SnapshotError, match=os.strerror(errno.EFBIG)):
                solver.save()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)
    assert not list(tmp_path.glob("*solver_iter*"))


def test_a_snapshot_goes_where_a_link_at_its_name_points(tmp_path: Path) -> None:
    with Solver.from_file(write_project(tmp_path)) as solver:
        (tmp_path / "kept").mkdir()
        (tmp_path / "solver_iter_0.pt").symlink_to("kept/a.pt")
        solver.save()
        assert snapshots.load(tmp_path / "kept/a.pt").iteration == 0


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [("runs/deep/small", "runs/deep/small"), ("runs/deep/", "runs/deep/solver"), (".", "solver")],
)
def test_the_prefix_is_taken_from_the_working_directory_and_its_folder_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, expected: str
) -> None:
    path = write_project(tmp_path, solver=SMALL_SOLVER + f'snapshot_prefix: "{prefix}"')
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with Solver.from_file(path) as solver:
        solver.check_snapshots()
        assert solver.save() == Path(f"{expected}_iter_0.pt")
    assert (tmp_path / f"elsewhere/{expected}_iter_0.pt").exists()


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {os.environ['EVIL_FILE']}",)


def test_a_snapshot_cannot_execute_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVIL_FILE", str(tmp_path / "executed"))
    torch.save({"format": Evil()}, tmp_path / "evil.pt")
    (tmp_path / "evil.pickle").write_bytes(pickle.dumps(Evil()))
    for name in ("evil.pt", "evil.pickle"):
        with pytest.raises(SnapshotError) as caught:
            snapshots.load(tmp_path / name)
        assert "weights_only" not in "".join(traceback.format_exception(caught.value))  # no advice to execute it
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(("phase", "solver"), [("TRAIN", SMALL_SOLVER), ("TEST", TESTED)])
def test_changed_training_data_are_named_and_changed_test_data_begin_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, phase: str, solver: str
) -> None:
    """Each layer has its own limit, so that its data can change alone. The test net has another one before it."""

    def layer(of: str, limit: int, name: str, tops: str) -> str:
        return f"""
            layer {{
              name: "{name}" type: "Python" {tops} include {{ phase: {of} }}
              python_param {{
                module: "blobfeed.layers" layer: "MultiProcessInputLayer"
                param_str: "{{source: {{hdf5: {{path: numbers.h5, limit: {limit}}}}}, batch_size: 8, num_loaders: 0}}"
              }}
            }}
            """

    spare = layer("TEST", 40, "spare", 'top: "spare" top: "other"')
    spare += 'layer { name: "hush" type: "Silence" bottom: "spare" bottom: "other" include { phase: TEST } }'

    def net(limits: dict[str, int]) -> str:
        layers = [layer(of, limit, "data", 'top: "data" top: "label"') for of, limit in limits.items()]
        return SMALL_NET.replace(DATA_LAYER, spare + "".join(layers))

    path = write_project(tmp_path, net=net({"TRAIN": 40, "TEST": 40}), solver=solver)
    with Solver.from_file(path) as begun:
        begun.step()
        if phase == "TEST":
            begun.test()
        saved = begun.save()
    (tmp_path / "net.prototxt").write_text(net({"TRAIN": 40, "TEST": 40} | {phase: 48}))
    names = r"'data'.*\b40\b.*\b48\b"
    with Solver.from_file(path) as other:
        if phase == "TRAIN":
            with pytest.raises(SnapshotError, match=names):
                other.restore(saved)
        else:
            begins = other.test_nets[0].data_states()
            other.restore(saved)
            assert other.iteration == 1
            assert other.test_nets[0].data_states() == begins, "one alone would not be in step with the other"
            assert re.search(names, caplog.text)


def test_a_test_that_was_stopped_midway_is_repeated_over_the_same_data(tmp_path: Path) -> None:
    data = """layer { name: "data" type: "Python" top: "data" top: "label" python_param {
        module: "blobfeed.layers" layer: "MultiProcessInputLayer"
        param_str: "{source: {hdf5: {path: numbers.h5}}, batch_size: 8, num_loaders: 0}" } }"""
    path = write_project(
        tmp_path, net=SMALL_NET.replace(DATA_LAYER, data), solver=SMALL_SOLVER + "test_iter: 3 test_interval: 1"
    )
    with Solver.from_file(path) as begun:
        begun.step()
        before, answers = begun.test_nets[0].data_states(), iter([False, False, True])
        assert begun.test(lambda: next(answers)) == []
        assert begun.test_nets[0].data_states() != before
        saved = begun.save()
    with Solver.from_file(path) as other:
        other.restore(saved)
        assert other.test_nets[0].data_states() == before


def test_a_solverstate_says_which_snapshot_has_the_position_of_the_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_project(tmp_path, solver=SMALL_SOLVER + "snapshot_format: BINARYPROTO\n")
    with Solver.from_file(path) as solver:
        saved = solver.save()
        solver.restore(solver.caffe_path("solverstate"))
        assert f"to go on where they stood, resume from {saved}" in caplog.text
        saved.unlink()
        caplog.clear()
        solver.restore(solver.caffe_path("solverstate"))
        assert not caplog.text


def test_the_data_go_on_at_the_iteration_of_a_solverstate_if_the_net_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net = SMALL_NET.replace('module: "batches" layer: "Batches"', 'module: "blobfeed.layers" layer: "HDF5InputLayer"')
    net = net.replace("batch_size: 8", "batch_size: 8, num_loaders: 0, resume: snapshot, batches_per_iteration: 2")
    path = write_project(tmp_path, net=net, solver=SMALL_SOLVER + "snapshot_format: BINARYPROTO iter_size: 2\n")
    with Solver.from_file(path) as solver:
        for _ in range(3):
            solver.step()
        solver.save()
        expected = solver.train_net.data_states()
        saved = solver.caffe_path("solverstate")
    with Solver.from_file(path) as solver:
        assert solver.train_net.data_states() != expected
        solver.restore(saved)
        assert solver.train_net.data_states() == expected
        assert not caplog.text
    (tmp_path / "net.prototxt").write_text(net.replace(", batches_per_iteration: 2", ""))
    with Solver.from_file(path) as solver, pytest.raises(SnapshotError, match="batches_per_iteration: 2"):
        solver.restore(saved)


@pytest.mark.parametrize("form", ["pt", "solverstate", "solverstate.h5"])
def test_weights_may_be_frozen_and_freed_again_when_training_resumes(tmp_path: Path, form: str) -> None:
    written = f"snapshot_format: {'HDF5' if form.endswith('h5') else 'BINARYPROTO'}\n"
    path = write_project(tmp_path, solver=SMALL_SOLVER + written)
    histories: list[list[torch.Tensor]] = []
    for multiplier in ("lr_mult: 2", "lr_mult: 0", "lr_mult: 2"):
        (tmp_path / "net.prototxt").write_text(SMALL_NET.replace("lr_mult: 2", multiplier))
        with Solver.from_file(path) as solver:
            if histories:
                solver.restore(tmp_path / f"solver_iter_{len(histories)}.{form}")
            solver.step()
            histories.append(snapshots.load(solver.save()).history)
    assert [bool(history[1].any()) for history in histories] == [True, False, True]
    assert [len(history) for history in histories] == [4, 4, 4]


def of_type(kind: str) -> str:
    momentum = "" if kind in ("AdaGrad", "RMSProp") else "momentum: 0.9"
    return SMALL_SOLVER.replace("momentum: 0.9", f'type: "{kind}" {momentum}')


def test_nesterov_goes_on_from_sgd_and_files_of_before_are_read(tmp_path: Path) -> None:
    with Solver.from_file(write_project(tmp_path)) as solver:
        solver.step()
        saved = solver.save()
    with Solver.from_file(write_project(tmp_path, solver=of_type("Nesterov"))) as solver:
        solver.restore(saved)
    old = torch.load(saved, weights_only=True)
    del old["solver_type"], old["fillers"]
    torch.save(old, saved)
    with Solver.from_file(write_project(tmp_path, solver=of_type("Nesterov"))) as solver:
        solver.restore(saved)
        assert solver.iteration == 1


def test_a_test_net_whose_weights_have_other_shapes_is_refused(tmp_path: Path) -> None:
    solver = SMALL_SOLVER.replace(
        'net: "net', 'test_iter: 1 test_interval: 1 test_net: "test.prototxt" train_net: "net'
    )
    path = write_project(tmp_path, solver=solver)
    (tmp_path / "test.prototxt").write_text(SMALL_NET.replace("num_output: 12", "num_output: 13"))
    with pytest.raises(SnapshotError):
        Solver.from_file(path)


def test_scoring_a_snapshot_gives_what_testing_in_training_gave(tmp_path: Path) -> None:
    with Solver.from_file(write_project(tmp_path, solver=TESTED)) as solver:
        go_on(solver, 10)
        saved = solver.save()
        scores = solver.test()[0]
    fresh = score_net(tmp_path / "net.prototxt", saved, 3, "cpu")
    assert fresh.keys() == scores.keys()
    # The test net went on through its data: the first test of the run read the first batches, as scoring does.
    with Solver.from_file(tmp_path / "solver.prototxt") as again:
        again.train_net.load_weights(snapshots.load(saved).weights, "the snapshot")
        assert again.test()[0] == fresh
