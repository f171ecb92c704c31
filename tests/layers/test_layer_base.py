"""Which class our layers are based on, and layer classes that no other process can import."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import blobfeed
from tests.support.standin_files import write_images

_CAFFE = """
    # As Boost.Python makes it: a metaclass that can be imported nowhere, and a constructor for Caffe's own argument.
    import os

    if "BLOBFEED_ROLE" in os.environ:
        raise SystemExit("caffe was imported in a child process")

    class LayerParameter:
        pass

    _meta = type("class", (type,), {"__module__": "Boost.Python"})

    class Layer(metaclass=_meta):
        blobs = property(lambda self: self.made_by_caffe)

        def __init__(self, layer_param):
            if not isinstance(layer_param, LayerParameter):
                raise TypeError("Python argument types did not match C++ signature")
            self.made_by_caffe = True

    def solver_rank():
        return 1

    def solver_count():
        return 2
"""

_SCRIPT = """
    import sys
    import numpy as np
    from blobfeed.layers import LayerHarness, MultiProcessInputLayer

    scale = 3

    class Scales(MultiProcessInputLayer):
        def setup(self, bottom, top):
            self.offset = 1
            super().setup(bottom, top)

        def decode(self, sample, rng):
            raw = super().decode(sample, rng)
            return {"data": raw["data"] * np.float32(scale) + self.offset, "label": raw["label"]}

    values = {"source": {"hdf5": {"path": "train.h5"}}, "batch_size": 4, "num_loaders": 1}
"""

_RUNS = """
    for phase in sys.argv[1:]:
        with LayerHarness(Scales, values, phase=phase) as harness:
            tops = harness.forward()
            print(tops["label"].tolist(), tops["data"][0, 0, 0, :3].tolist())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_images(tmp_path / "train.h5")
    return tmp_path


def _python(folder: Path, code: str, *arguments: str, options: tuple[str, ...] = ()) -> str:
    (folder / "script.py").write_text(code)
    path = os.pathsep.join([str(folder), str(Path(blobfeed.__file__).parent.parent)])
    done = subprocess.run(
        [sys.executable, *options, "script.py", *arguments],
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def _with_caffe(folder: Path, text: str = _CAFFE) -> None:
    (folder / "caffe").mkdir()
    (folder / "caffe" / "__init__.py").write_text(textwrap.dedent(text))


def test_a_class_of_the_main_script_reaches_the_loaders_and_no_torch_is_imported(folder: Path) -> None:
    code = textwrap.dedent(_SCRIPT) + textwrap.dedent(_RUNS) + "print('torch' in sys.modules)"
    assert _python(folder, code, "TRAIN") == "[0.0, 1.0, 2.0, 3.0] [1.0, 4.0, 7.0]\nFalse\n"


def test_a_class_made_in_a_notebook_cell_reaches_the_loaders(folder: Path) -> None:
    # As IPython runs a cell: code without a file, in a module __main__ that has none either.
    cells = [textwrap.dedent(_SCRIPT), textwrap.dedent(_RUNS)]
    code = f"import sys\ndel __file__\nfor cell in {cells!r}:\n    exec(compile(cell, '<cell>', 'exec'), globals())\n"
    assert _python(folder, code, "TEST") == "[0.0, 1.0, 2.0, 3.0] [1.0, 4.0, 7.0]\n"


def test_with_caffe_the_base_is_caffes_own_and_in_train_each_of_its_solvers_gets_its_shard(folder: Path) -> None:
    """Other processes do without Caffe."""
    _with_caffe(folder)
    more = """
        import caffe
        assert issubclass(Scales, caffe.Layer)
        assert Scales(caffe.LayerParameter()).made_by_caffe
        assert not hasattr(Scales(None), "made_by_caffe")

        class Backwards(MultiProcessInputLayer):
            def sampler(self, epoch, samples, rng):
                return range(samples)[::-1]

        with LayerHarness(Backwards, values, phase="TEST") as harness:
            assert harness.forward()["label"].tolist() == [19, 18, 17, 16]
    """
    code = "".join(map(textwrap.dedent, (_SCRIPT, more, _RUNS)))
    in_test, in_train = _python(folder, code, "TEST", "TRAIN").splitlines()
    assert in_test == "[0.0, 1.0, 2.0, 3.0] [1.0, 4.0, 7.0]"
    assert in_train.startswith("[4.0, 5.0, 6.0, 7.0]")


_OURS = """
    layer {
      name: "data" type: "Python" top: "data" top: "label"
      python_param { module: "blobfeed.layers" layer: "HDF5InputLayer"
        param_str: "{path: train.h5, batch_size: 4, resume: snapshot}" }
    }
    layer {
      name: "sum" type: "Python" bottom: "label" top: "sum"
      python_param { module: "sums" layer: "Sum" param_str: "3" }
    }
"""

_SUM = """
    import caffe

    class Sum(caffe.Layer):
        def __init__(self, layer_param):
            super().__init__(layer_param)
            self.begin = 1

        def setup(self, bottom, top):
            self.blobs.add_blob(1)
            self.blobs[0].data[...] = int(self.param_str)

        def reshape(self, bottom, top):
            top[0].reshape(1)

        def forward(self, bottom, top):
            top[0].data[...] = self.begin + bottom[0].data.sum(axis=0) + self.blobs[0].data
"""


def test_a_trainer_of_ours_makes_layers_over_the_real_caffe(folder: Path) -> None:
    _with_caffe(folder)
    (folder / "net.prototxt").write_text(_OURS)
    (folder / "sums.py").write_text(textwrap.dedent(_SUM))
    code = """
        import blobfeed.caffe

        net = blobfeed.caffe.Net("net.prototxt", blobfeed.caffe.TRAIN)
        print(net.forward()["sum"])
    """
    assert _python(folder, textwrap.dedent(code)) == "[26.]\n"  # of the second of Caffe's two solvers


def test_the_harness_takes_a_layer_over_the_real_caffe(folder: Path) -> None:
    _with_caffe(folder)
    code = """
        import caffe
        from blobfeed import LayerHarness

        class Counts(caffe.Layer):
            def setup(self, bottom, top):
                self.count = 0

            def reshape(self, bottom, top):
                top[0].reshape(1)

            def forward(self, bottom, top):
                self.count += 1
                top[0].data[...] = self.count

        with LayerHarness(Counts, "", tops="data") as harness:
            print([float(harness.forward()["data"][0]) for _ in range(2)], type(harness.layer).__name__)
    """
    assert _python(folder, textwrap.dedent(code)) == "[1.0, 2.0] Counts\n"


def test_a_caffe_that_cannot_be_imported_is_said_and_done_without(folder: Path) -> None:
    _with_caffe(folder, "raise AttributeError('built for another NumPy')")
    said = _python(folder, textwrap.dedent(_SCRIPT) + textwrap.dedent(_RUNS), "TEST")
    assert "RuntimeWarning: there is a module caffe, but importing it raised AttributeError: built for another" in said
    assert "[0.0, 1.0, 2.0, 3.0]" in said


def test_a_module_of_that_name_that_is_no_caffe_is_left_alone_and_so_is_an_error_outside_an_embedding_program(
    folder: Path,
) -> None:
    _with_caffe(folder, "")
    more = """
        from blobfeed.layers import caffe_base

        try:
            LayerHarness(Scales, {**values, "batch_size": -1})
        except ValueError:
            print("caught", caffe_base.IS_STANDIN)
    """
    assert _python(folder, textwrap.dedent(_SCRIPT) + textwrap.dedent(more)) == "caught True\n"
