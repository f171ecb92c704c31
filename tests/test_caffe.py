"""`import blobfeed.caffe as caffe` in scripts, and `import caffe` in Python layers, each in a fork of one process."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from .support.forks import Forks, forks_with
from .support.trainer_nets import SMALL_NET, SMALL_SOLVER, write_project

LOSS = """
import caffe
import caffe.io
import numpy as np
from caffe import layers, params
from caffe.proto import caffe_pb2


class Distance(caffe.Layer):
    def setup(self, bottom, top):
        if len(bottom) != 2:
            raise Exception("needs two bottoms")
        assert self.phase in (caffe.TRAIN, caffe.TEST)

    def reshape(self, bottom, top):
        self.diff = np.zeros_like(bottom[0].data, dtype=np.float32)
        top[0].reshape(1)

    def forward(self, bottom, top):
        self.diff[...] = bottom[0].data.copy() - np.eye(3)[bottom[1].data.astype(int)]
        assert bottom[0].data.max(axis=1).shape == (bottom[0].num,)
        top[0].data[...] = np.sum(self.diff**2) / bottom[0].num / 2

    def backward(self, top, propagate_down, bottom):
        if propagate_down[0]:
            bottom[0].diff[...] = top[0].diff[0] * self.diff / bottom[0].num
"""

NET = SMALL_NET.replace(
    'type: "SoftmaxWithLoss"',
    'type: "Python" loss_weight: 1 python_param { module: "distance" layer: "Distance" }',
)


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with forks_with("torch", "h5py", "blobfeed.cli", "blobfeed.trainer.solving.solver") as forks:
        yield forks


def command(forks: Forks, folder: Path, *arguments: str) -> str:
    ended, output, errors = forks.run(folder, "", *arguments)
    assert ended == 0, errors
    return output


def script(forks: Forks, folder: Path, text: str) -> str:
    (folder / "script.py").write_text(textwrap.dedent(text))
    ended, output, errors = forks.run(folder, folder / "script.py")
    assert ended == 0, errors
    return output


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "distance.py").write_text(LOSS)
    write_project(tmp_path, net=NET, solver=SMALL_SOLVER + "test_iter: 5 test_interval: 30")
    batches = tmp_path / "batches.py"
    batches.write_text("import caffe\n" + batches.read_text().replace("class Batches:", "class Batches(caffe.Layer):"))
    return tmp_path


def test_python_layers_that_import_caffe_train_as_they_are(forks: Forks, project: Path) -> None:
    last = command(forks, project, "train", "--solver", "solver.prototxt").splitlines()[-1]
    assert float(last.partition("loss = ")[2].partition(",")[0]) < 0.25
    tested = ("test", "--model", "net.prototxt", "--weights", "solver_iter_30.pt")
    assert "loss = " in command(forks, project, *tested)


def test_a_script_and_its_layers_see_the_same_caffe(forks: Forks, project: Path) -> None:
    said = script(
        forks,
        project,
        """
        import os
        import torch
        import blobfeed.caffe as caffe
        from blobfeed.caffe.proto import caffe_pb2
        import blobfeed.caffe.io
        from blobfeed.workers.plan import usable_cores
        caffe.set_mode_cpu()
        caffe.set_random_seed(1)
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        del os.environ["OMP_NUM_THREADS"]
        solver = caffe.SGDSolver("solver.prototxt")
        assert torch.get_num_threads() == max(1, usable_cores() - 1)
        assert caffe_pb2.TRAIN == caffe.TRAIN
        solver.step(25)
        import caffe as named
        print(named is caffe, isinstance(solver.net.layer_dict["loss"], caffe.Layer))
        print(solver.iter, solver.net.blobs["loss"].data.shape, solver.test_nets[0].layer_dict["loss"].phase)
        print("Convolution" in caffe.layer_type_list(), caffe.TRAIN, caffe.TEST)
        """,
    )
    assert said.splitlines()[1:] == ["True True", "25 (1,) 1", "True 0 1"]


def test_a_seed_makes_nets_alike(forks: Forks, tmp_path: Path) -> None:
    write_project(tmp_path, solver=SMALL_SOLVER.replace("random_seed: 7", ""))
    code = """
        import blobfeed.caffe as caffe
        def drawn():
            nets = caffe.get_solver("solver.prototxt").net, caffe.Net("net.prototxt", caffe.TRAIN)
            return [float(net.params["ip1"][0].data[0, 0]) for net in nets]
        (first, second), (third, fourth) = drawn(), drawn()
        print(first != third, second != fourth)
        caffe.set_random_seed(3)
        print(drawn() == drawn())
    """
    assert script(forks, tmp_path, code).splitlines() == ["True True", "True"]


def test_a_real_caffe_is_not_hidden(forks: Forks, project: Path) -> None:
    (project / "caffe").mkdir()
    code = f"""
        import sys
        sys.path.insert(0, {str(project)!r})
        import blobfeed.caffe as ours, caffe
        print(caffe is ours, hasattr(caffe, "real"))
    """
    assert script(forks, project, code) == "True False\n"  # the folder has nothing to import
    (project / "caffe" / "__init__.py").write_text("real = True")
    assert script(forks, project, code) == "False True\n"


@pytest.mark.parametrize("folder", [False, True])
def test_loaders_take_a_module_that_imports_caffe(forks: Forks, tmp_path: Path, folder: bool) -> None:
    if folder:  # perhaps with Caffe's sources: nothing to import
        (tmp_path / "caffe").mkdir()
    (tmp_path / "mine.py").write_text(
        textwrap.dedent("""
        import caffe
        import caffe.io
        import numpy as np
        from blobfeed import MultiProcessInputLayer
        from caffe import layers as L
        from caffe.proto import caffe_pb2

        class Doubled(MultiProcessInputLayer):
            def decode(self, sample, rng):
                datum = caffe.io.array_to_datum(np.zeros((1, 2, 3), np.uint8), 7)
                assert caffe_pb2.Datum.FromString(datum.SerializeToString()).label == 7
                return {"data": 2 * sample["data"], "label": sample["label"]}

        class Other(caffe.Layer):
            pass
        """)
    )
    ours = """
layer {
  name: "data" type: "Python" top: "data" top: "label"
  python_param { module: "mine" layer: "Doubled"
    param_str: "{source: {hdf5: {path: numbers.h5}}, tops: [data, label], batch_size: 8, num_loaders: 1}" }
}
"""
    write_project(tmp_path, net=ours + SMALL_NET[SMALL_NET.index('layer {\n  name: "ip1"') :])
    command(forks, tmp_path, "train", "--solver", "solver.prototxt")


@pytest.mark.slow
def test_the_script_in_the_documentation_runs(forks: Forks, tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "docs" / "trainer.md").read_text()
    blocks = [block.partition("```")[0] for block in text.split("```python\n")[1:]]
    (code,) = (block for block in blocks if "blobfeed.caffe" in block)
    assert " [0.25 0.25 0.25 0.25]]\n" in script(forks, tmp_path, code)
    assert (tmp_path / "small.caffemodel").exists()
