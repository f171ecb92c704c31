"""Mistakes in prototxts, files and calls: errors.txt has the words, with the line of the field that is wrong.

A scenario is named by the text that is wrong, so that a line of the file reads as a mistake and its message.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blobfeed.layers import LayerHarness, WindowsInputLayer
from blobfeed.layers.torch_blob import Blob
from blobfeed.trainer import Net
from blobfeed.trainer.prototxt.prototxt import read_prototxt
from blobfeed.trainer.prototxt.schema import NetParameter, Phase
from blobfeed.trainer.pycaffe import caffe_pb2, io
from blobfeed.trainer.pycaffe.coord_map import crop
from blobfeed.trainer.pycaffe.net import Net as CaffeNet
from blobfeed.trainer.pycaffe.net_spec import NetSpec, layers
from blobfeed.trainer.pycaffe.solvers import get_solver
from blobfeed.trainer.solving import snapshot as snapshots
from blobfeed.trainer.solving.solver import Solver
from numpy.typing import NDArray

from tests.support.catalogue import Catalogue, Scenario
from tests.support.pictures import encoded, noise
from tests.support.trainer_nets import CPU, DATA_LAYER, SMALL_NET, SMALL_SOLVER, make_net, with_inputs, write_project


def zeros(*shape: int) -> NDArray[np.float32]:
    return np.zeros(shape, np.float32)


def named(kind: str, texts: tuple[str, ...], scenario: Callable[[str], Scenario]) -> dict[str, Scenario]:
    return {f"{kind}: {' '.join(text.split())}": scenario(text) for text in texts}


def nets(*texts: str, kind: str = "net", phase: Phase = Phase.TRAIN, **shapes: tuple[int, ...]) -> dict[str, Scenario]:
    """Nets of `texts`, over inputs of `shapes`."""
    return named(kind, texts, lambda text: lambda folder: make_net(folder, with_inputs(text, **shapes), phase))


def of(kind: str, *options: str, **shapes: tuple[int, ...]) -> dict[str, Scenario]:
    """Layers with the bottom x and the top y, and `options`, over inputs of `shapes`; they run once."""

    def scenario(text: str) -> Scenario:
        def run(folder: Path) -> None:
            layer = f'layer {{ name: "l" bottom: "x" top: "y"\n{text} }}'
            make_net(folder, with_inputs(layer, **shapes)).forward()

        return run

    return named(kind, options, scenario)


def solvers(*changes: tuple[str, str]) -> dict[str, Scenario]:
    """The small solver with one text in place of another."""
    texts = dict(zip((f"{old} → {new}" for old, new in changes), changes, strict=True))

    def scenario(text: str) -> Scenario:
        def make(folder: Path) -> None:
            with Solver.from_file(write_project(folder, solver=SMALL_SOLVER.replace(*texts[text]))) as solver:
                solver.step()

        return make

    return named("solver", tuple(texts), scenario)


def prototxts(*texts: str | bytes) -> dict[str, Scenario]:
    def scenario(text: str | bytes) -> Scenario:
        def read(folder: Path) -> None:
            (folder / "net.prototxt").write_bytes(text if isinstance(text, bytes) else text.encode())
            read_prototxt(folder / "net.prototxt", NetParameter)

        return read

    return {f"prototxt: {text!r}": scenario(text) for text in texts}


def shared(*options: str, z: tuple[int, ...]) -> dict[str, Scenario]:
    def scenario(text: str) -> Scenario:
        return lambda folder: make_net(folder, with_inputs(SHARED % text, x=(4, 2), z=z))

    return named(f"shared weights, {z}", options, scenario)


def windows(options: str = "", transform: str = "crop_size: 9", fraction: float = 0.5) -> str:
    return f"""layer {{ name: "d" type: "WindowData" top: "data" top: "label" transform_param {{ {transform} }}
        window_data_param {{ source: "windows.txt" batch_size: 8 fg_fraction: {fraction} {options} }} }}"""


def over_windows(*texts: str) -> dict[str, Scenario]:
    def scenario(text: str) -> Scenario:
        def make(folder: Path) -> None:
            (folder / "0.png").write_bytes(encoded(noise(20, 30, 0), ".png"))
            (folder / "windows.txt").write_text("# 0\n0.png\n3\n20\n30\n2\n1 0.8 2 3 28 15\n1 0.1 0 0 8 19")
            make_net(folder, text)

        return make

    return named("windows", texts, scenario)


def python(module: str | None, param: str) -> Scenario:
    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.syspath_prepend(str(folder))
            if module is not None:
                (folder / f"{re.findall(r'of_errors_.', param)[0]}.py").write_text(module)
            make_net(folder, f'layer {{ name: "p" type: "Python" top: "y"\npython_param {{ {param} }} }}')

    return make


SHARED = """
layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" param { name: "w" lr_mult: 2 }
        inner_product_param { num_output: 3 bias_term: false } }
layer { name: "c" type: "InnerProduct" bottom: "z" top: "c" param { name: "w" %s }
        inner_product_param { num_output: 3 bias_term: false } }
"""
CONVOLVED = 'type: "Convolution" convolution_param { num_output:'
FILLED = 'type: "InnerProduct" inner_product_param { num_output: 100 weight_filler { type:'
DUMMY = 'layer { name: "d" type: "DummyData" top: "d" top: "e" dummy_data_param {'
DATA = 'layer { name: "d" type: "Data" top: "data" top: "label"\n data_param {'
IMAGES = 'layer { name: "d" type: "ImageData" top: "data" top: "label" image_data_param { source: "list.txt" '

WIRING = (
    'layer { name: "l" }',
    'layer { type: "ReLU" }',
    'layer { name: "x" type: "PReLU" bottom: "x" top: "y" }',
    'layer { name: "l" type: "EuclideanLoss" bottom: "x" top: "y" }',
    'layer { name: "l" type: "ReLU" bottom: "x" top: "y" top: "z" }',
    'layer { name: "l" type: "Eltwise" bottom: "x" top: "y" }',
    'layer { name: "l" type: "Flatten" bottom: "x"\n top: "x" }',
    'layer { name: "l" type: "ReLU" bottom: "x" top: "y"\n loss_weight: [1, 2] }',
    'layer { name: "l" type: "PReLU" bottom: "x" top: "y"\n propagate_down: [true, false] }',
    'layer { name: "l" type: "ReLU" bottom: "x" top: "y"\n dropout_param { } }',
    'layer { name: "l" type: "ReLU" bottom: "x" top: "y"\n blobs { num: 1 } }',
    'layer { name: "l" type: "ReLU" bottom: "x" top: "y"\n param { lr_mult: 1 } }',
    'layer { name: "l" type: "ReLU" bottom: "x" top: "y" include { phase: TEST }\n exclude { phase: TEST } }',
    'layer { name: "l" bottom: "x" top: "y"\n type: "Convolutoin" }',
    'layer { name: "l" type: "Scale" bottom: "x" top: "y" scale_param {\n filler { type: "xavir" } } }',
    'layer { name: "l" type: "ReLU" bottom: "x"\n top: "data" }',
    'layer { name: "l" type: "ReLU" top: "y"\n bottom: "dta" }',
    'layer { name: "l" type: "ReLU" top: "dta"\n bottom: "dta" }',
    'layer { name: "t" include { phase: TEST } top: "t" } layer { name: "l" type: "Exp" bottom: "t" top: "y" }',
    'layer { name: "i" type: "Input" top: "a" top: "b" top: "c" input_param { shape {} shape {} } }',
    'layer { name: "i" type: "Input" top: "a" input_param { shape {\n dim: -1 } } }',
    "\ndebug_info: true",
    'layer { name: "e" type: "Parameter" top: "e" parameter_param { shape { dim: -1 } } }',
    DUMMY + " shape { dim: 2 } data_filler { value: 4 }\n data_filler { type: 'gausian' } } }",
    DUMMY + " num: 8 channels: [3, 1] height: [28, 1] } }",
    DUMMY + " num: 8 channels: [3, 1] height: [28, 1] width: [28, 1] width: 5 } }",
    DUMMY + " num: 1 shape { dim: 5 } } }",
    DUMMY + ' shape { dim: -2 } data_filler { type: "gaussian" } } }',
    'layer { name: "o" type: "HDF5Output" bottom: "x" bottom: "x" }',
    'layer { name: "m" type: "MemoryData" top: "d" top: "e" memory_data_param { batch_size: 2 channels: 1 width: 3 } }',
)

LAYERS = (
    'type: "Convolution" convolution_param { kernel_size: 3 }',
    f"{CONVOLVED} 1 }}",
    f"{CONVOLVED} 1 kernel_h: 1 }}",
    f"{CONVOLVED} 1 kernel_size: 1 kernel_h: 1 kernel_w: 1 }}",
    f"{CONVOLVED} 1 kernel_size: [1, 2, 3] }}",
    f"{CONVOLVED} 1 kernel_size: 1 stride: 0 }}",
    f"{CONVOLVED} 3 kernel_size: 1 group: 2 }}",
    f"{CONVOLVED} 1 kernel_h: 1 kernel_w: 1 axis: 0 }}",
    f"{CONVOLVED} 1 kernel_size: 9 }}",
    f'bottom: "x" {CONVOLVED} 1 kernel_size: 1 }}',
    f'{CONVOLVED} 2 kernel_h: 1 kernel_w: 3 weight_filler {{ type: "bilinear" }} }}',
    'type: "Pooling" pooling_param { }',
    'type: "Pooling" pooling_param { kernel_size: 3 pad: 3 }',
    'type: "Pooling" pooling_param { kernel_size: 3 pad: 1 pool: STOCHASTIC }',
    'type: "Pooling" pooling_param { global_pooling: true stride: 2 }',
    'type: "Pooling" pooling_param { kernel_size: 9 }',
    'type: "Pooling" pooling_param { kernel_size: 1 stride: 5 }',
    'type: "Pooling" top: "at" pooling_param { kernel_size: 2 pool: AVE }',
    'type: "InnerProduct" inner_product_param { }',
    'type: "InnerProduct" inner_product_param { num_output: 1 axis: 4 }',
    f'{FILLED} "bilinear" }} }}',
    f'{FILLED} "gaussian" std: -1 }} }}',
    f'{FILLED} "uniform" min: 2 max: 1 }} }}',
    'type: "InnerProduct" inner_product_param { num_output: 2 bias_filler { type: "bilinear" } }',
    'type: "Dropout" dropout_param { dropout_ratio: 1 }',
    'type: "LRN" lrn_param { local_size: 4 }',
    'type: "LRN" lrn_param { norm_region: WITHIN_CHANNEL k: 2 }',
    'type: "BatchNorm" param { lr_mult: 1 }',
    'type: "Scale" scale_param { axis: 2 num_axes: 3 }',
    'type: "Scale" bottom: "z"',
    'type: "Flatten" flatten_param { axis: 2 end_axis: 1 }',
    'type: "Flatten" } layer { name: "s" bottom: "y" top: "s" type: "SPP" spp_param { pyramid_height: 1 }',
    'type: "Eltwise" bottom: "x" eltwise_param { coeff: 1 }',
    'type: "Eltwise" bottom: "x" eltwise_param { operation: MAX coeff: [1, 1] }',
    'type: "Eltwise" bottom: "z"',
    'type: "Concat" bottom: "z"',
    'type: "Concat" concat_param { concat_dim: 1 axis: 2 }',
    'type: "Softmax" softmax_param { axis: 4 }',
    'type: "Slice" top: "b" slice_param { slice_point: [1, 2] }',
    'type: "Slice" top: "b" slice_param { slice_point: 9 }',
    'type: "Slice" top: "b" top: "c" slice_param { slice_point: [2, 2] }',
    'type: "Slice" top: "b" top: "c"',
    'type: "Slice" top: "b" slice_param { slice_dim: 1 axis: 2 }',
    'type: "Reshape" reshape_param { shape { dim: 3 dim: -1 } }',
    'type: "Reshape" reshape_param { shape { dim: -1 dim: -1 } }',
    'type: "Reshape" reshape_param { shape { dim: 0 dim: 0 dim: 0 dim: 0 dim: 0 } }',
    'type: "Reshape" reshape_param { axis: 3 num_axes: 2 shape { dim: 1 } }',
    'type: "Reduction" reduction_param { axis: 4 }',
    'type: "SPP" spp_param { pyramid_height: 4 }',
    'type: "SPP" spp_param { pyramid_height: 1 pool: STOCHASTIC }',
    'type: "Tile"',
    'type: "ArgMax" argmax_param { top_k: 200 }',
    'type: "Crop" bottom: "z" crop_param { offset: 3 }',
    'type: "Crop" bottom: "z" crop_param { offset: [1, 1, 1] }',
    'type: "Crop" bottom: "z" crop_param { axis: 4 }',
    'type: "Embed" embed_param { num_output: 2 }',
    'type: "LSTM" bottom: "z" recurrent_param { }',
    'type: "InfogainLoss" bottom: "z"',
    'type: "Clip" clip_param { min: 0 }',
    'type: "Log" log_param { base: 1 }',
    'type: "Filter" bottom: "z" top: "b"',
    'type: "Filter" bottom: "z"',
    'type: "EuclideanLoss" bottom: "z"',
    'type: "SoftmaxWithLoss" bottom: "z"',
    'type: "Python"',
)

SOLVERS = (
    ("base_lr: 0.1", ""),
    ('lr_policy: "step"', ""),
    ('lr_policy: "step"', 'lr_policy: "stepp"'),
    ("stepsize: 10", ""),
    ("stepsize: 10", "stepsize: 0"),
    ('lr_policy: "step" gamma: 0.5', 'lr_policy: "inv"'),
    ('lr_policy: "step"', 'lr_policy: "multistep"'),
    ('lr_policy: "step"', 'lr_policy: "multistep" stepvalue: [5, 3]'),
    ('lr_policy: "step"', 'lr_policy: "poly"'),
    (SMALL_SOLVER[SMALL_SOLVER.index("lr_policy") : SMALL_SOLVER.index(" random")], 'lr_policy: "poly" power: 1'),
    ('net: "net.prototxt"', ""),
    ('net: "net.prototxt"', 'net: "net.prototxt" train_net: "net.prototxt"'),
    ('net: "net.prototxt"', 'net: "nte.prototxt"'),
    ('net: "net.prototxt"', 'net_param {\n layer { name: "a"\n type: "Relu" } }'),
    ('net: "net.prototxt"', f"net_param {{ {DATA_LAYER} }}"),
    ("max_iter: 30", 'max_iter: 30 type: "Adm"'),
    ("max_iter: 30", 'max_iter: 30 type: "Adam" solver_type: ADAM'),
    ("max_iter: 30", 'max_iter: 30 type: "AdaGrad"'),
    ("max_iter: 30", "max_iter: 30 rms_dcay: 0.5"),
    ("max_iter: 30", "max_iter: 30 debug_info: true"),
    ("max_iter: 30", 'max_iter: 30 regularization_type: "L3"'),
    ("momentum: 0.9", 'momentum: 1 type: "Adam"'),
    ("momentum: 0.9", 'type: "RMSProp" rms_decay: 98'),
    ("max_iter: 30", "max_iter: 30 iter_size: 0"),
    ("max_iter: 30", "max_iter: 30 average_loss: 0"),
    ("max_iter: 30", "max_iter: 30 test_iter: 4"),
    ("max_iter: 30", 'max_iter: 30 test_net: "net.prototxt"'),
    ("max_iter: 30", "max_iter: 30 test_interval: 4 test_iter: 1 test_state {} test_state {}"),
)

PROTOTXTS: tuple[str | bytes, ...] = (
    'layer {\n  name: "c"\n  convolution_param { num_ouput: 3 }\n}',
    'layer { name: "c" norm_param { } }',
    'layer { name: "c" prior_box_param { } }',
    'layer { name: "c" convolutoin_param { } }',
    "layer {\n  pooling_param { pool: MEDIAN }\n}",
    "layers { type: INNERPRODUCT }",
    '\ninput: "x" input_dim: [1, 2]',
    'layer { name: "a" }\nlayers { name: "b" }',
    'layers { }\nlayers {\n layer { type: "conv" kernelsize: 3 } }\nlayers { }',
    b"\x89HDF\r\n\x1a\n\xff\xfe",
)


def _net(folder: Path) -> CaffeNet:
    layer = 'layer { name: "conv" type: "Power" bottom: "data" top: "conv" } layer { name: "prob" type: "Softmax"'
    (folder / "net.prototxt").write_text(with_inputs(layer + ' bottom: "conv" top: "prob" }', data=(2, 1, 6, 6)))
    return CaffeNet(folder / "net.prototxt", Phase.TEST)


def _feeds_itself(folder: Path) -> CaffeNet:
    write_project(folder)
    return CaffeNet(folder / "net.prototxt", Phase.TEST)


def _memory(*shape: int) -> Scenario:
    """A MemoryData layer that gets arrays of `shape`, or runs without any."""

    def scenario(folder: Path) -> Any:
        layer = 'layer { name: "m" type: "MemoryData" top: "data" top: "label" memory_data_param { batch_size: 2 '
        (folder / "net.prototxt").write_text(layer + "channels: 1 height: 2 width: 3 } }")
        net = CaffeNet(folder / "net.prototxt", Phase.TEST)
        return net.set_input_arrays(zeros(*shape), zeros(shape[0])) if shape else net.forward()

    return scenario


def _transformed(step: str, value: Any, name: str = "data") -> Scenario:
    return lambda folder: getattr(io.Transformer({"data": (1, 3, 12, 10)}), f"set_{step}")(name, value)


def _no_image(folder: Path) -> Any:
    (folder / "none.png").write_bytes(b"text")
    return io.load_image(folder / "none.png")


def _of_windows(**given: Any) -> Scenario:
    values = {"path": "windows.txt", "crop_size": 9, "batch_size": 4, **given}
    return lambda folder: LayerHarness(WindowsInputLayer, values, base_dir=folder)


def _by_another_solver(folder: Path) -> None:
    with Solver.from_file(write_project(folder)) as solver:
        saved = solver.save()
    with Solver.from_file(
        write_project(folder, solver=SMALL_SOLVER.replace("momentum: 0.9", 'type: "Adam"'))
    ) as solver:
        solver.restore(saved)


def _no_end(folder: Path) -> None:
    get_solver(write_project(folder, solver=SMALL_SOLVER.replace("max_iter: 30", ""))).solve()


def _backward(folder: Path) -> Any:
    net = _net(folder)
    net.forward(end="conv")
    return net.backward()


def _crop(make: Callable[[Any], Any], *, to_data: bool = True) -> Scenario:
    def scenario(folder: Path) -> Any:
        data = NetSpec().data = layers.Input(shape={"dim": [1, 1, 30, 30]})
        return crop(make(data), data) if to_data else crop(data, make(data))

    return scenario


def _loads(content: bytes | None) -> Scenario:
    def scenario(folder: Path) -> Any:
        if content is not None:
            (folder / "some.pt").write_bytes(content)
        return snapshots.load(folder / "some.pt")

    return scenario


def _somebody_elses(folder: Path) -> Any:
    torch.save({"ip1.weight": torch.zeros(1)}, folder / "other.pt")
    return snapshots.load(folder / "other.pt")


def _no_folder(folder: Path) -> None:
    (folder / "file").write_text("")
    snapshots.check_writable(str(folder / "file" / "small"))


NORMALIZED = SMALL_NET.replace(
    'name: "ip2" type: "InnerProduct" bottom: "ip1"',
    'name: "a" type: "InnerProduct" bottom: "ip1" top: "a" inner_product_param { num_output: 12 } }\n'
    'layer { name: "b" type: "BatchNorm" bottom: "a" top: "b" }\n'
    'layer { name: "ip2" type: "InnerProduct" bottom: "b"',
)


def _of_another_net(old: str, new: str, net: str = SMALL_NET) -> Scenario:
    def scenario(folder: Path) -> None:
        path = write_project(folder, net=net)
        with Solver.from_file(path) as solver:
            saved = solver.save()
        (folder / "net.prototxt").write_text(net.replace(old, new))
        with Solver.from_file(path) as solver:
            solver.restore(saved)

    return scenario


def _called_with(**inputs: tuple[int, ...]) -> Scenario:
    def scenario(folder: Path) -> Any:
        write_project(folder)
        with closing(Net(folder / "net.prototxt", "TEST")) as net:
            return net(**{name: torch.zeros(shape) for name, shape in inputs.items()})

    return scenario


def _phase(folder: Path) -> Any:
    write_project(folder)
    return Net(folder / "net.prototxt", "train")


SCENARIOS: dict[str, Scenario] = {
    **nets(*WIRING, data=(1, 2), x=(1, 2)),
    **nets('layer { name: "a" type: "Input" include { phase: TEST } }'),
    **shared("", "share_mode: PERMISSIVE", z=(4, 3)),
    **shared("lr_mult: 1", z=(4, 2)),
    **of("layer", *LAYERS, x=(1, 4, 5, 5), z=(2, 4, 3, 3)),
    **of("no axes", 'type: "EuclideanLoss" bottom: "z"', 'type: "HingeLoss" bottom: "z"', x=(), z=()),
    **of("no axes", 'type: "SigmoidCrossEntropyLoss" bottom: "z"', 'type: "BatchNorm"', x=(), z=()),
    **of("one axis", 'type: "MultinomialLogisticLoss" bottom: "z"', x=(4,), z=(4,)),
    **of("pairs", 'type: "ContrastiveLoss" bottom: "x" bottom: "z"', x=(2, 3), z=(1, 1)),
    **of("three axes", f'bottom: "z" top: "b" {CONVOLVED} 2 kernel_size: 1 }}', x=(1, 4, 5, 5), z=(1, 4, 5)),
    **of("three channels", f'bottom: "z" top: "b" {CONVOLVED} 2 kernel_size: 1 }}', x=(1, 4, 5, 5), z=(1, 3, 5, 5)),
    **of("no inputs", f'{FILLED} "xavier" }} }}', x=(2, 0)),
    **of("no rows", 'type: "BatchReindex" bottom: "z"', x=(0, 3), z=(2,)),
    **of(
        "layer",
        'type: "LSTM" bottom: "z" bottom: "s" recurrent_param { num_output: 5 }',
        x=(4, 2, 3),
        z=(4, 2),
        s=(1, 6),
    ),
    **of(
        "layer",
        'bottom: "z" bottom: "h" bottom: "c" top: "h1" top: "c1" type: "LSTM" '
        "recurrent_param { num_output: 5 expose_hidden: true }",
        x=(4, 2, 3),
        z=(4, 2),
        h=(2, 5),
        c=(1, 2, 5),
    ),
    **nets(
        f'{DATA} source: "x" }} }}',
        f"{DATA} batch_size: 1 }} }}",
        f'{DATA} source: "x" batch_size: 2\n crop_size: 3 }} }}',
        f'{DATA} source: "x" batch_size: 2 }} transform_param {{ force_gray: true force_color: true }} }}',
        f'{DATA} source: "x" batch_size: 2 }} bottom: "x" }}',
        f'{DATA} source: "x" batch_size: 2 }} top: "third" }}',
        'layer { name: "d" type: "HDF5Data" top: "d"\ntransform_param { scale: 2 } }',
        f"{IMAGES} batch_size: 2 new_height: 3 }} }}",
        kind="data",
        x=(1,),
    ),
    **over_windows(
        windows(transform=""),
        windows(transform="crop_size: 9 scale: 2"),
        windows("crop_size: 9"),
        windows('crop_mode: "round"'),
        windows("fg_threshold: 2"),
        windows(fraction=2),
    ),
    "Python: no module": python(None, 'module: "of_errors_1" layer: "Own"'),
    "Python: an import in it": python("import no_such_library", 'module: "of_errors_2" layer: "Own"'),
    "Python: no class": python("", 'module: "of_errors_3" layer: "Own"'),
    "Python: no layer": python("", 'module: "of_errors_4"'),
    **solvers(*SOLVERS),
    **prototxts(*PROTOTXTS),
    "no prototxt": lambda folder: read_prototxt(folder / "n.prototxt", NetParameter, named_by="solver:1:1"),
    "a folder": lambda folder: read_prototxt(folder, NetParameter),
    **{
        f"snapshot: {content!r}": _loads(content)
        for content in (None, b"", b"PK\x03\x04 half", b"net: 1", b"\x89HDF\r\n\x1a\n")
    },
    "snapshot: of another program": _somebody_elses,
    "snapshot: no folder": _no_folder,
    "snapshot: other shapes": _of_another_net("num_output: 12", "num_output: 13"),
    "snapshot: another layer": _of_another_net('"ip2"', '"ip3"'),
    "snapshot: a layer of a later place": _of_another_net('name: "ip1"', 'name: "a"', NORMALIZED.replace('"a"', '"c"')),
    "snapshot: a layer without weights now": _of_another_net('"BatchNorm"', '"ReLU"', NORMALIZED),
    "snapshot: another solver": _by_another_solver,
    "snapshot: other data": _of_another_net('name: "data"', 'name: "images"'),
    "Net: a top missing": _called_with(data=(2, 4)),
    "Net: no input": _called_with(ip1=(2, 12)),
    "Net: phase": _phase,
    "caffe.Solver: no end": _no_end,
    "caffe.Net: no phase": lambda folder: CaffeNet(folder / "net.prototxt"),
    "caffe.Net: other names": lambda folder: _net(folder).forward(image=np.zeros(2)),
    "caffe.Net: other rows": lambda folder: _net(folder).forward(data=np.zeros((3, 1, 6, 6))),
    "caffe.Net: other outputs": lambda folder: _net(folder).forward_backward_all(data=np.zeros(2), sum=np.zeros(2)),
    "caffe.Net: no inputs": lambda folder: _feeds_itself(folder).forward(foo=1),
    "caffe.Net: no rows": lambda folder: _feeds_itself(folder).forward_all(),
    "caffe.Net: no weights": lambda folder: _net(folder).copy_from(folder / "none.caffemodel"),
    "caffe.Net: MemoryData": lambda folder: _net(folder).set_input_arrays(zeros(1, 1, 1, 1), zeros(1)),
    **{f"MemoryData: {shape}": _memory(*shape) for shape in ((), (3, 1, 2, 3), (4, 1, 1, 3), (0, 1, 2, 3))},
    "blob: no shape": lambda folder: Blob(CPU).data,
    "blob: negative": lambda folder: Blob(CPU).reshape(2, -1),
    "caffe.io: no image": _no_image,
    "caffe.io: resize": lambda folder: io.resize_image(np.zeros((2, 2, 1)), (1, 1), 2),
    "caffe.io: encoded": lambda folder: io.datum_to_array(caffe_pb2.Datum(encoded=True)),
    "caffe.io: axes": lambda folder: io.array_to_datum([1]),
    "Transformer: transpose": _transformed("transpose", (0, 1)),
    "Transformer: channel_swap": _transformed("channel_swap", (3, 1, 0)),
    "Transformer: mean": _transformed("mean", np.zeros((3, 5, 5))),
    "Transformer: input": _transformed("raw_scale", 1, "image"),
    "windows: means": _of_windows(mean_value=[1.0, 2.0]),
    "windows: mean nan": _of_windows(mean_value=[math.nan]),
    "windows: mean text": _of_windows(mean_value=["a"]),
    "windows: mean large": _of_windows(mean_value=1e300),
    "windows: scale nan": _of_windows(scale=math.nan),
    "caffe.Net: no layer": lambda folder: _net(folder).forward(end="fc"),
    "caffe.Net: backward": _backward,
    "crop: product": _crop(lambda data: layers.InnerProduct(data, num_output=2)),
    "crop: whole": _crop(lambda data: layers.Pooling(data, global_pooling=True)),
    "crop: scale": _crop(lambda data: layers.Convolution(data, kernel_size=3, stride=2, num_output=1)),
    "crop: offset": _crop(lambda data: layers.Convolution(data, kernel_size=3, num_output=1, pad=2), to_data=False),
    "crop: axes": _crop(lambda data: layers.Im2col(layers.Im2col(data, kernel_size=3), axis=2, kernel_size=3)),
}

CATALOGUE = Catalogue(Path(__file__).with_name("errors.txt"), SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_error_has_the_words_of_the_catalogue(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    CATALOGUE.check(name, tmp_path, update=pytestconfig.getoption("update"))


def test_every_line_of_the_catalogue_is_a_scenario() -> None:
    CATALOGUE.check_names()
