"""Upgrades nets in Caffe's older formats, as Caffe does when it reads them."""

from __future__ import annotations

from typing import Any

from .locations import Location
from .schema import V1LayerType

_WORDS = {
    "absval": "AbsVal",
    "argmax": "ArgMax",
    "bnll": "BNLL",
    "hdf5_data": "HDF5Data",
    "hdf5_output": "HDF5Output",
    "lrn": "LRN",
    "mvn": "MVN",
    "relu": "ReLU",
    "softmax_loss": "SoftmaxWithLoss",
    "tanh": "TanH",
    # Only in files of 2013:
    "conv": "Convolution",
    "pool": "Pooling",
    "innerproduct": "InnerProduct",
    "images": "ImageData",
    "window_data": "WindowData",
}

_SOLVERS = ("SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam")  # in the order of SolverType

_FEED_V0 = {"source": "source", "batchsize": "batch_size"}
_TRANSFORM_V0 = {
    "scale": ("transform_param", "scale"),
    "meanfile": ("transform_param", "mean_file"),
    "cropsize": ("transform_param", "crop_size"),
    "mirror": ("transform_param", "mirror"),
}

# For each type, the fields of a layer of 2013, and the message and field of today.
_V0_FIELDS: dict[str, dict[str, tuple[str, str]]] = {
    "Convolution": {
        "num_output": ("convolution_param", "num_output"),
        "biasterm": ("convolution_param", "bias_term"),
        "weight_filler": ("convolution_param", "weight_filler"),
        "bias_filler": ("convolution_param", "bias_filler"),
        "pad": ("convolution_param", "pad"),
        "kernelsize": ("convolution_param", "kernel_size"),
        "group": ("convolution_param", "group"),
        "stride": ("convolution_param", "stride"),
    },
    "Pooling": {
        "pool": ("pooling_param", "pool"),
        "pad": ("pooling_param", "pad"),
        "kernelsize": ("pooling_param", "kernel_size"),
        "stride": ("pooling_param", "stride"),
    },
    "InnerProduct": {
        "num_output": ("inner_product_param", "num_output"),
        "biasterm": ("inner_product_param", "bias_term"),
        "weight_filler": ("inner_product_param", "weight_filler"),
        "bias_filler": ("inner_product_param", "bias_filler"),
    },
    "LRN": {name: ("lrn_param", name) for name in ("local_size", "alpha", "beta", "k")},
    "Dropout": {"dropout_ratio": ("dropout_param", "dropout_ratio")},
    "Concat": {"concat_dim": ("concat_param", "concat_dim")},
    "Data": {
        **_TRANSFORM_V0,
        **{old: ("data_param", new) for old, new in _FEED_V0.items()},
        "rand_skip": ("data_param", "rand_skip"),
    },
    "HDF5Data": {old: ("hdf5_data_param", new) for old, new in _FEED_V0.items()},
    "ImageData": {
        **_TRANSFORM_V0,
        **{old: ("image_data_param", new) for old, new in _FEED_V0.items()},
        **{name: ("image_data_param", name) for name in ("rand_skip", "new_height", "new_width")},
        "shuffle_images": ("image_data_param", "shuffle"),
    },
    "WindowData": {
        **_TRANSFORM_V0,
        **{old: ("window_data_param", new) for old, new in _FEED_V0.items()},
        **{
            f"det_{name}": ("window_data_param", name)
            for name in ("fg_threshold", "bg_threshold", "fg_fraction", "context_pad", "crop_mode")
        },
    },
    "HDF5Output": {"hdf5_output_param": ("hdf5_output_param", "")},
    "InfogainLoss": {"source": ("infogain_loss_param", "source")},
}
_V0_READ_FOR_ALL = {"name", "type", "blobs", "blobs_lr", "weight_decay"}


class UpgradeError(Exception):
    """What cannot be upgraded, and the path to it."""

    def __init__(self, text: str, *where: str | int) -> None:
        super().__init__(text)
        self.where = where


def upgrade_net(net: Any, root: Location) -> None:
    """Rewrite `net`, a NetParameter, and `root`, the locations of its fields; raises UpgradeError."""
    if net.layers:
        if net.layer:
            raise UpgradeError("`layer` and `layers` cannot stand in one file", "layers")
        _upgrade_layers(net, root)
    if net.input:
        _upgrade_input(net, root)


def upgrade_solver(solver: Any) -> None:
    """`solver_type`, the name of `type` before 2015, becomes `type`."""
    if solver.HasField("solver_type"):
        if solver.HasField("type"):
            raise UpgradeError("give type or solver_type, not both", "solver_type")
        solver.type = _SOLVERS[solver.solver_type]
        solver.ClearField("solver_type")


def _upgrade_layers(net: Any, root: Location) -> None:
    locations = [each for each in root.inside if each.name == "layers"]
    padding: dict[str, Any] = {}
    for position, old in enumerate(net.layers):
        if old.HasField("layer") and old.layer.type == "padding":
            padding[old.top[0]] = old
            root.inside.remove(locations[position])
            continue
        new = net.layer.add()
        if old.HasField("layer"):
            _upgrade_v0(old, new, padding, position)
        else:
            _upgrade_v1(old, new)
        locations[position].name = "layer"
    net.ClearField("layers")


def _upgrade_v1(old: Any, new: Any) -> None:
    _copy_names(old, new, old.name, old.type and V1LayerType(old.type).name.lower())
    specs = max(len(old.param), len(old.blobs_lr), len(old.weight_decay), len(old.blob_share_mode))
    for _ in range(specs):
        new.param.add()
    for values, field in (
        (old.param, "name"),
        (old.blob_share_mode, "share_mode"),
        (old.blobs_lr, "lr_mult"),
        (old.weight_decay, "decay_mult"),
    ):
        for spec, value in zip(new.param, values, strict=False):
            setattr(spec, field, value)
    for field, value in old.ListFields():
        if field.name.endswith("_param"):
            getattr(new, field.name).CopyFrom(value)
    for options in (new.data_param, new.image_data_param, new.window_data_param):
        for name in (name for _, name in _TRANSFORM_V0.values() if options.HasField(name)):
            setattr(new.transform_param, name, getattr(options, name))
            options.ClearField(name)


def _upgrade_v0(old: Any, new: Any, padding: dict[str, Any], position: int) -> None:
    layer = old.layer
    _copy_names(old, new, layer.name, layer.type)
    fields = _V0_FIELDS.get(new.type, {})
    for field, value in layer.ListFields():
        if field.name in fields:
            _set(new, *fields[field.name], value)
        elif field.name not in _V0_READ_FOR_ALL:
            text = f"a layer of type {layer.type!r} does not read {field.name!r}"
            raise UpgradeError(text, "layers", position, "layer", field.name)
    for rate, decay in zip(layer.blobs_lr, layer.weight_decay or [1.0] * len(layer.blobs_lr), strict=False):
        new.param.add(lr_mult=rate, decay_mult=decay)
    new.blobs.extend(layer.blobs)
    # A layer of type "padding" becomes the pad of the convolution or pooling that takes its top.
    for nth, name in enumerate(new.bottom):
        if name in padding:
            if new.type not in ("Convolution", "Pooling"):
                raise UpgradeError(f"a layer of type {layer.type!r} cannot take a padding", "layers", position)
            new.bottom[nth] = padding[name].bottom[0]
            _set(new, *fields["pad"], padding[name].layer.pad)


def _set(new: Any, message: str, field: str, value: Any) -> None:
    target = getattr(new, message)
    current = getattr(target, field) if field else target
    if hasattr(value, "ListFields"):
        current.CopyFrom(value)
    elif hasattr(current, "append"):
        current[:] = [value]
    else:
        setattr(target, field, value)


def _copy_names(old: Any, new: Any, name: str, kind: str | int) -> None:
    new.name = name
    if kind:
        words = str(kind)
        new.type = _WORDS.get(words) or "".join(part.capitalize() for part in words.split("_"))
    for field in ("bottom", "top", "include", "exclude", "loss_weight", "blobs"):
        getattr(new, field).extend(getattr(old, field))


def _upgrade_input(net: Any, root: Location) -> None:
    """`input` and its shapes become a first layer of type Input."""
    inputs = list(net.input)
    if net.input_shape:
        shapes = [list(shape.dim) for shape in net.input_shape]
    else:
        dims = list(net.input_dim)
        shapes = [dims[start : start + 4] for start in range(0, len(dims), 4)]
    if len(shapes) != len(inputs) or any(len(shape) != 4 for shape in shapes if not net.input_shape):
        raise UpgradeError(f"needs an input_shape, or four input_dim, for each of the {len(inputs)} inputs", "input")
    rest = type(net)(layer=net.layer)
    net.ClearField("layer")
    layer = net.layer.add(name="input", type="Input", top=inputs)
    for shape in shapes:
        layer.input_param.shape.add(dim=shape)
    net.layer.extend(rest.layer)
    first = root.follow("input")
    root.inside.insert(0, Location("layer", first.line, first.column))
    for field in ("input", "input_shape", "input_dim"):
        net.ClearField(field)
