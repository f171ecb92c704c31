"""Where the data stood at a snapshot of Caffe's: noted by the layer alone, and taken up again."""

from __future__ import annotations

import logging
import os
import re
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.layers import state_file
from blobfeed.layers.state_file import StateFile, path_of

from blobfeed import LayerHarness, MultiProcessInputLayer, ParameterError
from tests.support.standin_files import write_images
from tests.support.standin_train import compile_caffe_train, environment

SAMPLES = 20


def _values(folder: Path, **more: object) -> dict[str, Any]:
    if not (folder / "train.h5").exists():
        write_images(folder / "train.h5", samples=SAMPLES)
    source = {"hdf5": {"path": str(folder / "train.h5")}}
    return {"source": source, "batch_size": 3, "num_loaders": 0, "shuffle": True, "state_file": "data.json", **more}


class _Training:
    """A net in training, as far as its input layer sees it: forwards, and files of snapshots."""

    def __init__(self, folder: Path, **more: object) -> None:
        self.folder = folder
        self.harness = LayerHarness(MultiProcessInputLayer, _values(folder, **more), base_dir=folder)
        self.iteration = 0

    def step(self, count: int) -> list[list[int]]:
        self.iteration += count
        return [self.harness.forward()["label"].astype(int).tolist() for _ in range(count)]

    def snapshot(self, ending: str = "solverstate") -> Path:
        path = self.folder / f"net_iter_{self.iteration}.{ending}"
        path.write_text(f"iteration {self.iteration}")
        return path

    def restored(self, snapshot: Path) -> list[list[int]]:
        """Five steps after `snapshot`."""
        self.harness.layer.restore(snapshot)
        self.iteration = int(re.findall(r"\d+", snapshot.name)[0])
        return self.step(5)

    def __enter__(self) -> _Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.harness.close()


@pytest.mark.parametrize("ending", ["solverstate", "solverstate.h5"])
def test_the_data_goes_on_from_any_snapshot_of_a_run(tmp_path: Path, ending: str) -> None:
    with _Training(tmp_path, num_loaders=1) as training:  # which are ahead of what the trainer has got
        steps = training.step(4)
        first = training.snapshot(ending)
        steps += training.step(7)
        second = training.snapshot(ending)
        steps += training.step(3)
        last = training.snapshot(ending)  # no batch follows
    with _Training(tmp_path, state_file="") as undisturbed:
        whole = undisturbed.step(20)
    assert steps == whole[:14]
    for snapshot, at in ((last, 14), (second, 11), (first, 4)):  # the later ones are forgotten by going back
        with _Training(tmp_path) as training:
            assert training.restored(snapshot) == whole[at : at + 5]


def test_a_snapshot_that_was_written_without_the_file_is_refused(tmp_path: Path) -> None:
    with _Training(tmp_path) as training:
        training.step(7)
        last = training.snapshot()
    with _Training(tmp_path, state_file="") as training:  # goes on from there
        training.iteration = 7
        training.step(3)
        later = training.snapshot()
    with (
        _Training(tmp_path) as training,
        pytest.raises(ParameterError, match=r"net_iter_10.* 7 "),
    ):
        training.restored(later)
    with _Training(tmp_path, state_file="") as whole:
        expected = whole.step(12)[7:]
    with _Training(tmp_path) as training:
        assert training.restored(last) == expected


@pytest.mark.parametrize("at", ["the end", "once", "both"])
def test_a_copy_under_another_name_is_refused(tmp_path: Path, at: str) -> None:
    names = ["copy_iter_2.solverstate", "best.solverstate", "copy_iter_5.solverstate"]
    with _Training(tmp_path) as training:
        training.step(2)
        first = training.snapshot()
        training.step(1)
        if at != "the end":  # while the run goes on
            for name in names[:2]:
                shutil.copy(first, tmp_path / name)
        training.step(2)
        last = training.snapshot()
    if at != "once":
        for name, of in zip(names, (first, first, last), strict=True):
            shutil.copy(of, tmp_path / name)
    for name in names:
        with (
            _Training(tmp_path) as training,
            pytest.raises(ParameterError, match=r"net_iter_2\.solverstate"),
        ):
            training.restored(tmp_path / name)


@pytest.mark.parametrize("known", [False, True])
def test_the_last_snapshot_of_iterations_of_several_batches_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    solver = tmp_path / "solver.prototxt"
    solver.write_text("# iter_size: 7\niter_size: 2\n" if known else "")
    monkeypatch.setattr(state_file, "of_command", {"solver": str(solver)}.get)
    with _Training(tmp_path) as training:
        if not known:  # the first snapshot shows it
            training.step(4)
            training.iteration = 2
            training.snapshot()
        training.step(6)
        training.iteration = 3 if known else 5
        last = training.snapshot()
        expected = training.step(5)
    with _Training(tmp_path) as training:
        assert training.restored(last) == expected


def test_a_snapshot_of_no_iteration_that_has_ended_is_refused(tmp_path: Path) -> None:
    """Batches that a script took by itself are found out at the next snapshot that a batch follows."""
    with _Training(tmp_path) as training:
        training.step(4)
        training.iteration = 3
        unknown = training.snapshot()
    with _Training(tmp_path) as training, pytest.raises(ParameterError, match=r"\b4 .*\b0 "):
        training.restored(unknown)
    with _Training(tmp_path) as training:
        training.step(4)
        training.iteration = 3
        training.snapshot()
        training.step(2)
        last = training.snapshot()
    with _Training(tmp_path, state_file="") as whole:
        expected = whole.step(11)[6:]
    with _Training(tmp_path) as training:
        assert training.restored(last) == expected


def test_a_snapshot_that_is_written_again_is_noted_again(tmp_path: Path) -> None:
    with _Training(tmp_path) as training:
        training.step(2)
        snapshot = training.snapshot()
        training.step(1)
    with _Training(tmp_path, seed=0, rand_skip=5) as training:
        shown = training.step(2)
        training.snapshot()
        shown += training.step(5)
    with _Training(tmp_path, rand_skip=5) as training:
        assert training.restored(snapshot) == shown[2:]


def test_what_is_written_again_is_noted_after_a_second_restore_and_after_a_refused_one(tmp_path: Path) -> None:
    with _Training(tmp_path) as training:
        snapshots = [training.snapshot() for _ in range(3) if training.step(2)]
        training.step(1)
    first, second, last = snapshots
    with _Training(tmp_path) as training:
        training.harness.layer.restore(last)
        training.harness.layer.restore(first)
        training.iteration = 2
        training.step(2)
        training.snapshot()
        expected = training.step(5)
    with _Training(tmp_path) as training:
        assert training.restored(second) == expected
    with _Training(tmp_path, seed=1) as training:
        with pytest.raises(ParameterError, match="seed"):
            training.harness.layer.restore(second)
        training.step(2)
        training.snapshot()
        expected = training.step(5)
    with _Training(tmp_path, seed=1) as training:
        assert training.restored(first) == expected


def test_a_position_that_outgrows_its_line_leaves_the_snapshots_behind_it_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_images(tmp_path / "train.h5", samples=1000)
    more = {"shuffle": False, "sampler": {"draws": 1000}}
    with _Training(tmp_path, **more) as training:
        training.step(2)
        first = training.snapshot()
        shown = training.step(1)
        training.harness.layer.set_weights(np.random.default_rng(0).random(1000))
        training.step(3)
        last = training.snapshot()
        expected = training.step(5)
    assert "begins anew" not in caplog.text
    for snapshot, steps in ((last, expected), (first, shown)):
        with _Training(tmp_path, **more) as training:
            assert training.restored(snapshot)[: len(steps)] == steps


def test_a_full_disk_leaves_the_earlier_snapshots_whole(tmp_path: Path) -> None:
    with _Training(tmp_path) as training:
        training.step(2)
        first = training.snapshot()
        expected = training.step(1)
        training.snapshot()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "data.json").stat().st_size + 20, hard))
        try:
            with pytest.raises(ParameterError, match=r"data\.json"):
                training.step(1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with _Training(tmp_path) as training:
        assert training.restored(first)[:1] == expected


def test_a_folder_that_has_long_been_still_is_looked_at_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net_iter_1.solverstate").write_text("of an earlier run")
    listings: list[Path] = []
    listed = os.scandir

    def counted(folder: Path) -> Any:
        listings.append(folder)
        return listed(folder)

    monkeypatch.setattr(os, "scandir", counted)
    with _Training(tmp_path) as training:
        training.step(1)
        (tmp_path / "net_iter_1.solverstate").unlink()
        training.step(1)
        os.utime(tmp_path, (1, 1))  # the change lies longer back than a file system's times are exact
        training.step(1)
        before = len(listings)
        training.step(5)
        assert len(listings) == before
        snapshot = training.snapshot()
        os.utime(tmp_path, (2, 2))
        expected = training.step(5)
        assert len(listings) == before + 1
    with _Training(tmp_path) as training:
        assert training.restored(snapshot) == expected


def test_to_begin_anew_beside_an_old_file_is_said_and_forgets_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with _Training(tmp_path) as training:
        training.step(2)
        old = training.snapshot()
        training.step(1)
    assert not caplog.records
    with _Training(tmp_path) as training, caplog.at_level(logging.WARNING, "blobfeed"):
        training.step(1)
    assert "data.json: training begins anew" in caplog.text
    with _Training(tmp_path) as training, pytest.raises(ParameterError, match=r"net_iter_2\.solverstate"):
        training.restored(old)


@pytest.mark.parametrize(
    "content", [b"", b"no json", b'{"state": 3', b"[]\n{}", b'{"state": {}}\n{"x": 1}', b'{"state": 3}']
)
def test_a_file_that_holds_no_positions_is_named(tmp_path: Path, content: bytes) -> None:
    with _Training(tmp_path) as training:
        snapshot = training.snapshot()
        (tmp_path / "data.json").write_bytes(content)
        with pytest.raises(ParameterError, match=r"data\.json"):
            training.restored(snapshot)


def test_a_test_net_writes_none(tmp_path: Path) -> None:
    with LayerHarness(MultiProcessInputLayer, _values(tmp_path), base_dir=tmp_path, phase="TEST") as harness:
        harness.forward()
    assert not (tmp_path / "data.json").exists()


def test_the_data_of_a_stream_goes_on_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numbers_of_a_stream.py").write_text(
        "import numpy as np\n\ndef make(shard, shards):\n    return map(np.float32, range(shard, 40, shards))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    source = {"stream": {"make": "numbers_of_a_stream:make", "shards": 1, "capacity": 10}}
    values = _values(tmp_path, source=source, shuffle=False, tops=["data"])
    with LayerHarness(MultiProcessInputLayer, values, base_dir=tmp_path) as harness:
        for _ in range(3):
            harness.forward()
        (tmp_path / "net_iter_3.solverstate").write_text("3")
        expected = [harness.forward()["data"].tolist() for _ in range(5)]
    with LayerHarness(MultiProcessInputLayer, values, base_dir=tmp_path) as harness:
        harness.layer.restore(tmp_path / "net_iter_3.solverstate")
        assert [harness.forward()["data"].tolist() for _ in range(5)] == expected


_MODULE = """
from blobfeed.layers import MultiProcessInputLayer

class Tells(MultiProcessInputLayer):
    def forward(self, bottom, top):
        super().forward(bottom, top)
        print("labels", *top[1].data.astype(int), flush=True)
"""


@pytest.mark.parametrize("named", ["data.json", "auto"])
def test_the_binary_takes_the_data_up_from_the_snapshot_that_its_command_names(named: str, tmp_path: Path) -> None:
    program = compile_caffe_train(tmp_path)
    (tmp_path / "tells.py").write_text(_MODULE)
    solver = tmp_path / "solver.prototxt"
    solver.write_text(f'net: "net.prototxt" # snapshot_prefix: "no"\nsnapshot_prefix: "{tmp_path}/net"\n')
    values = _values(tmp_path, state_file=named, num_loaders=1)

    def train(iterations: int, *command: str) -> list[str]:
        options = ["2", str(iterations), "0", "0", str(tmp_path / "net"), "4", *command, f"--solver={solver}"]
        done = subprocess.run(
            [str(program), "tells", "Tells", repr(values), *options],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return [line for line in done.stdout.splitlines() if line.startswith("labels")]

    whole = train(15)
    assert len(np.unique(whole)) == 15
    if named == "auto":
        assert train(15, f"--snapshot={tmp_path}/net_iter_8.solverstate") == whole[8:]
        assert {path.name for path in tmp_path.glob("*.json")} == {"net_data.json"}
        return
    assert train(6) == whole[:6]
    resumed = train(10, f"--snapshot={tmp_path}/net_iter_6.solverstate")  # the last one, that no batch followed
    assert resumed == whole[6:10]
    assert train(15, f"--snapshot={tmp_path}/net_iter_8.solverstate") == whole[8:]
    assert train(6, f"--snapshot={tmp_path}/net_iter_4.solverstate") == whole[4:6]


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert path_of("~/data.json", Path("elsewhere"), 0) == tmp_path / "data.json"


# ---- auto


@pytest.fixture
def in_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The solver of the command that this process seems to be."""
    solver = tmp_path / "solver.prototxt"
    command = {"solver": str(solver)}
    monkeypatch.setattr(state_file, "of_command", command.get)
    monkeypatch.setattr(state_file, "_in_use", set())
    return solver


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("snapshot_prefix: 'runs/digits' snapshot: 100", "runs/digits_data.json"),
        ('base_lr: 0.1\nsnapshot_prefix:"runs/#7"  # snapshot_prefix: "other"', "runs/#7_data.json"),
        ('net: "snapshot_prefix: x" # snapshot_prefix: "other"', "{folder}/solver_data.json"),
        ('snapshot_prefix: "{folder}"', "{folder}/solver_data.json"),
        ('snapshot_prefix: "{folder}/runs/"', "{folder}/runs/solver_data.json"),
    ],
)
def test_auto_means_beside_the_snapshots_of_the_solver(in_command: Path, text: str, expected: str) -> None:
    folder = in_command.parent
    in_command.write_text(text.format(folder=folder))
    assert path_of("auto", Path("elsewhere"), 0) == Path(expected.format(folder=folder))


def test_each_layer_has_a_file_of_its_own_and_all_ranks_the_same(in_command: Path) -> None:
    in_command.write_text(f'snapshot_prefix: "{in_command.parent}/net"')
    found = [path_of("auto", Path(), rank) for rank in (0, 0, 1, 1)]
    assert [path.name for path in found if path] == ["net_data.json", "net_data_2.json"] * 2
    assert found[1] is not None
    StateFile(found[1]).close()
    assert path_of("auto", Path(), 0) == found[1]


def test_auto_without_a_readable_solver_is_an_error(in_command: Path) -> None:
    with pytest.raises(ParameterError, match=str(in_command)):
        path_of("auto", Path(), 0)


def test_auto_in_pycaffe_is_refused_and_needless_in_our_own_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LayerHarness(MultiProcessInputLayer, _values(tmp_path, state_file="auto"), base_dir=tmp_path) as harness:
        harness.forward()
    assert list(tmp_path.glob("*.json")) == []
    monkeypatch.setattr(MultiProcessInputLayer, "_is_caffes", True)
    with pytest.raises(ParameterError, match=r"'auto'.*`caffe train`"):
        LayerHarness(MultiProcessInputLayer, _values(tmp_path, state_file="auto"), base_dir=tmp_path)
