r"""Mistakes in prototxts, files and calls: errors.txt has the words, with the line of the field that is wrong.

The file is the table of scenarios, too: a line begins with a kind of KINDS and the text that is wrong, with \n for the
ends of lines, or with the name of one of FUNCTIONS. For a new mistake write a line without a message, and `--update`.
"""

from __future__ import annotations

import dataclasses
import io as io_
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from blobfeed.layers.torch_blob import Blob
from blobfeed.tools.convert import convert
from blobfeed.trainer import Net
from blobfeed.trainer.layer_types import Layer, layer_type
from blobfeed.trainer.net import read_weights, write_weights
from blobfeed.trainer.prototxt import NetParameter, Phase, read_prototxt
from blobfeed.trainer.pycaffe import Net as CaffeNet
from blobfeed.trainer.pycaffe import NetSpec, caffe_pb2, crop, get_solver, io, layers, to_proto
from blobfeed.trainer.solving import Solver, read_state, write_state
from blobfeed.trainer.solving import snapshot as snapshots
from numpy.typing import NDArray

from blobfeed import BlobfeedError
from tests.support.catalogue import Catalogue, Scenario
from tests.support.trainer_nets import CPU, SMALL_NET, SMALL_SOLVER, make_net, with_inputs, write_project

Kind = Callable[[str], Scenario]


def zeros(*shape: int) -> NDArray[np.float32]:
    return np.zeros(shape, np.float32)


def net(phase: Phase = Phase.TRAIN, **shapes: tuple[int, ...]) -> Kind:
    """Nets over inputs of `shapes`."""
    return lambda text: lambda folder: make_net(folder, with_inputs(text, **shapes), phase)


def layer(**shapes: tuple[int, ...]) -> Kind:
    """Layers with the bottom x and the top y over inputs of `shapes`; they run once."""

    def scenario(text: str) -> Scenario:
        whole = with_inputs(f'layer {{ name: "l" bottom: "x" top: "y"\n{text} }}', **shapes)
        return lambda folder: make_net(folder, whole).forward()

    return scenario


def solver(change: str) -> Scenario:
    """The small solver with one text in place of another."""
    old, _, new = change.partition(" → ")
    assert old in SMALL_SOLVER

    def make(folder: Path) -> None:
        with Solver.from_file(write_project(folder, solver=SMALL_SOLVER.replace(old, new))) as solver:
            solver.step()

    return make


def prototxt(text: str | bytes) -> Scenario:
    def read(folder: Path) -> None:
        (folder / "net.prototxt").write_bytes(text if isinstance(text, bytes) else text.encode())
        read_prototxt(folder / "net.prototxt", NetParameter)

    return read


SHARED = """
layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" param { name: "w" lr_mult: 2 }
        inner_product_param { num_output: 3 bias_term: false } }
layer { name: "c" type: "InnerProduct" bottom: "z" top: "c" param { name: "w" %s }
        inner_product_param { num_output: 3 bias_term: false } }
"""

KINDS: dict[str, Kind] = {
    "net": net(data=(1, 2), x=(1, 2)),
    "bare net": net(),
    "weights of other shapes": lambda text: net(x=(4, 2), z=(4, 3))(SHARED % text),
    "weights of one shape": lambda text: net(x=(4, 2), z=(4, 2))(SHARED % text),
    "layer": layer(x=(1, 4, 5, 5), z=(2, 4, 3, 3)),
    "no axes": layer(x=(), z=()),
    "one axis": layer(x=(4,), z=(4,)),
    "pairs": layer(x=(2, 3), z=(1, 1)),
    "three axes": layer(x=(1, 4, 5, 5), z=(1, 4, 5)),
    "three channels": layer(x=(1, 4, 5, 5), z=(1, 3, 5, 5)),
    "no inputs": layer(x=(2, 0)),
    "labels": layer(x=(2, 3), z=(2,)),
    "no rows": layer(x=(0, 3), z=(2,)),
    "steps": layer(x=(4, 2, 3), z=(4, 2), s=(1, 6), h=(2, 5), c=(1, 2, 5)),
    "data": net(x=(1,)),
    "solver": solver,
    "prototxt": prototxt,
}
"""By the first word of a line: the scenario that the text behind it makes."""


def python(module: str | None, param: str) -> Scenario:
    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.syspath_prepend(str(folder))
            if module is not None:
                (folder / f"{re.findall(r'of_errors_.', param)[0]}.py").write_text(module)
            make_net(folder, f'layer {{ name: "p" type: "Python" top: "y"\npython_param {{ {param} }} }}')

    return make


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


def _input() -> Any:
    return layers.Input(shape={"dim": [2, 3]})


def _crop(make: Callable[[Any], Any], *, to_data: bool = True) -> Scenario:
    def scenario(folder: Path) -> Any:
        data = NetSpec().data = layers.Input(shape={"dim": [1, 1, 30, 30]})
        return crop(make(data), data) if to_data else crop(data, make(data))

    return scenario


def hdf5(**data_sets: object) -> bytes:
    with io_.BytesIO() as content:
        with h5py.File(content, "w") as file:
            file.update(data_sets)
        return content.getvalue()


FOREIGN = {
    "no file": None,
    "empty": b"",
    "text": b"no weights",
    "broken HDF5": b"\x89HDF\r\n\x1a\n",
    "broken archive": b"PK\x03\x04",
    "HDF5 of data": hdf5(data=[1.0], label=[2]),
    "HDF5 of a wrong history": hdf5(iter=[6], current_step=[0], learned_net="w", history=[3.0]),
    "HDF5 with a broken group": b"SNOX".join(hdf5(**{"data/ip/0": [1.0]}).rsplit(b"SNOD", 1)),
}


def _reads(reader: Callable[[Path], object], content: bytes | None) -> Scenario:
    def scenario(folder: Path) -> Any:
        if content is not None:
            (folder / "some.caffemodel").write_bytes(content)
        return reader(folder / "some.caffemodel")

    return scenario


def _converts(source: str, target: str) -> Scenario:
    def scenario(folder: Path) -> None:
        write_weights(folder / "w.caffemodel", {"ip1": [torch.zeros(1)]})
        (folder / "link.caffemodel").symlink_to("w.caffemodel")
        convert(folder / source, folder / target)

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


def _other_inputs(folder: Path) -> Any:
    layer = 'layer { name: "l" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 5 } }'
    return make_net(folder, with_inputs(layer, x=(2, 3)))(x=torch.zeros(2, 4))


def _moved(folder: Path) -> Any:
    write_project(folder)
    with closing(Net(folder / "net.prototxt", "TEST")) as net:
        return net.to("cpu").to("meta")


def _weights(layer: str, *shapes: tuple[int, ...], some: bool = True) -> Scenario:
    """The small net, whose layers are ip1 (12, 4), (12,) and ip2 (3, 12), (3,), begins with weights of `shapes`."""

    def scenario(folder: Path) -> None:
        write_project(folder)
        with closing(Net(folder / "net.prototxt", "TEST")) as net:
            net.load_weights({layer: [torch.zeros(shape) for shape in shapes]}, "some.caffemodel", some=some)

    return scenario


def _history(*blobs: torch.Tensor) -> Scenario:
    """The small solver resumes from a .solverstate with these blobs of history."""

    def scenario(folder: Path) -> None:
        path = write_project(folder, solver=SMALL_SOLVER + "snapshot_format: BINARYPROTO")
        with Solver.from_file(path) as solver:
            solver.save()
            state = solver.caffe_path("solverstate")
            write_state(state, dataclasses.replace(read_state(state), history=list(blobs)))
            solver.restore(state)

    return scenario


def _phase(folder: Path) -> Any:
    write_project(folder)
    return Net(folder / "net.prototxt", "train")


FUNCTIONS: dict[str, Scenario] = {
    "Python: no module": python(None, 'module: "of_errors_1" layer: "Own"'),
    "Python: an import in it": python("import no_such_library", 'module: "of_errors_2" layer: "Own"'),
    "Python: no class": python("", 'module: "of_errors_3" layer: "Own"'),
    "Python: no layer": python("", 'module: "of_errors_4"'),
    "no prototxt: binary": prototxt(b"\x89HDF\r\n\x1a\n\xff\xfe"),
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
    "Net: another device": _moved,
    "InnerProduct: other inputs": _other_inputs,
    "weights: of none of the layers": _weights("ip3", (12, 4)),
    "weights: of other shapes": _weights("ip2", (12, 4), (12,)),
    "weights: of other shapes, all needed": _weights("ip1", (3, 4), (12,), some=False),
    "weights: not of all layers": _weights("ip1", (12, 4), (12,), some=False),
    "history: of another solver": _history(torch.zeros(12, 4)),
    "history: of other shapes": _history(*[torch.zeros(1)] * 4),
    **{f"weights: {name}": _reads(read_weights, content) for name, content in FOREIGN.items()},
    **{f"history: {name}": _reads(read_state, content) for name, content in FOREIGN.items()},
    "convert: onto itself": _converts("w.caffemodel", "w.caffemodel"),
    "convert: weights to a state": _converts("w.caffemodel", "w.solverstate"),
    "convert: to another format": _converts("w.caffemodel", "w.onnx"),
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
    "caffe.Net: no layer": lambda folder: _net(folder).forward(end="fc"),
    "caffe.Net: backward": _backward,
    "NetSpec: no such field": lambda _: to_proto(layers.InnerProduct(_input(), outputs=2)),
    "NetSpec: no such field of a layer": lambda _: to_proto(layers.AbsVal(_input(), scale=2)),
    "NetSpec: a name for a bottom": lambda _: layers.AbsVal("data"),
    "NetSpec: no such top": lambda _: NetSpec().conv9,
    "layer_type: registered already": lambda _: layer_type("ReLU")(Layer),
    "crop: product": _crop(lambda data: layers.InnerProduct(data, num_output=2)),
    "crop: whole": _crop(lambda data: layers.Pooling(data, global_pooling=True)),
    "crop: scale": _crop(lambda data: layers.Convolution(data, kernel_size=3, stride=2, num_output=1)),
    "crop: offset": _crop(lambda data: layers.Convolution(data, kernel_size=3, num_output=1, pad=2), to_data=False),
    "crop: axes": _crop(lambda data: layers.Im2col(layers.Im2col(data, kernel_size=3), axis=2, kernel_size=3)),
}

FILE = Path(__file__).with_name("errors.txt")


def scenario_of(name: str) -> Scenario:
    kind, _, text = name.partition(": ")
    return FUNCTIONS.get(name) or KINDS[kind](text.replace("\\n", "\n"))


NAMES = [line.partition(" | ")[0] for line in FILE.read_text(encoding="utf-8").splitlines()]
CATALOGUE = Catalogue(
    FILE,
    {name: scenario_of(name) for name in (*NAMES, *FUNCTIONS)},
    errors=(BlobfeedError, AttributeError, TypeError, ValueError),
)


@pytest.mark.parametrize("name", CATALOGUE.scenarios)
def test_an_error_has_the_words_of_the_catalogue(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    CATALOGUE.check(name, tmp_path, update=pytestconfig.getoption("update"))
