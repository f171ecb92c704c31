"""Upgrades nets in Caffe's older formats, as Caffe does when it reads them."""

from __future__ import annotations

from typing import Any

from .locations import Location
from .schema import V1LayerType, own_fields

# Types of which the words of older files are not today's in small letters.
_WORDS = {"absval": "AbsVal", "bnll": "BNLL", "softmax_loss": "SoftmaxWithLoss", "im2col": "Im2col"}
_WORDS |= {"conv": "Convolution", "pool": "Pooling", "images": "ImageData"}  # only in files of 2013

_SOLVERS = ("SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam")  # in the order of SolverType

# The fields of a layer of 2013 that have other names today, beside the prefix det_.
_RENAMED = {"biasterm": "bias_term", "kernelsize": "kernel_size", "batchsize": "batch_size", "meanfile": "mean_file"}
_RENAMED |= {"cropsize": "crop_size", "shuffle_images": "shuffle"}
_TRANSFORM = ("scale", "mean_file", "crop_size", "mirror")
_V0_READ_FOR_ALL = {"name", "type", "blobs_lr", "weight_decay"}


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
    kept: list[Location] = []  # they get their new name at the end: an error on the way counts all layers
    padding: dict[str, Any] = {}
    for position, old in enumerate(net.layers):
        if old.HasField("layer") and old.layer.type == "padding":
            padding[old.top[0]] = old
            continue
        new = net.layer.add()
        if old.HasField("layer"):
            _upgrade_v0(old, new, padding, position)
        else:
            _upgrade_v1(old, new)
        kept.append(locations[position])
    for location in kept:
        location.name = "layer"
    net.ClearField("layers")


def _upgrade_v1(old: Any, new: Any) -> None:
    _copy_names(old, new, old.name, old.type and V1LayerType(old.type).name.lower())
    _add_specs(new, name=old.param, share_mode=old.blob_share_mode, lr_mult=old.blobs_lr, decay_mult=old.weight_decay)
    for field, value in old.ListFields():
        if field.name.endswith("_param"):
            getattr(new, field.name).CopyFrom(value)
    for options in (new.data_param, new.image_data_param, new.window_data_param):
        for name in (name for name in _TRANSFORM if options.HasField(name)):
            setattr(new.transform_param, name, getattr(options, name))
            options.ClearField(name)


def _upgrade_v0(old: Any, new: Any, padding: dict[str, Any], position: int) -> None:
    layer = old.layer
    _copy_names(old, new, layer.name, layer.type)
    for field, value in layer.ListFields():
        if field.name not in _V0_READ_FOR_ALL and not _set_v0(new, field.name, value):
            text = f"a layer of type {layer.type!r} does not read {field.name!r}"
            raise UpgradeError(text, "layers", position, "layer", field.name)
    _add_specs(new, lr_mult=layer.blobs_lr, decay_mult=layer.weight_decay)
    # A layer of type "padding" becomes the pad of the convolution or pooling that takes its top.
    for nth, name in enumerate(new.bottom):
        if name in padding:
            if new.type not in ("Convolution", "Pooling"):
                raise UpgradeError(f"a layer of type {layer.type!r} cannot take a padding", "layers", position)
            new.bottom[nth] = padding[name].bottom[0]
            _set_v0(new, "pad", padding[name].layer.pad)


def _add_specs(new: Any, **values_by_field: Any) -> None:
    """Add a `param` for each of the layer's weights that has a value; the lists may differ in length."""
    for _ in range(max(map(len, values_by_field.values()))):
        new.param.add()
    for field, values in values_by_field.items():
        for spec, value in zip(new.param, values, strict=False):
            setattr(spec, field, value)


def _set_v0(new: Any, old_name: str, value: Any) -> bool:
    """Set what the field of 2013 means in the layer `new`; returns whether its type reads it."""
    own = own_fields().get(new.type, "")
    if old_name == own:  # hdf5_output_param
        getattr(new, own).CopyFrom(value)
        return True
    name = _RENAMED.get(old_name, old_name.removeprefix("det_"))
    is_transform = name in _TRANSFORM and new.type in ("Data", "ImageData", "WindowData")
    target = getattr(new, "transform_param" if is_transform else own, None)
    if target is None or name not in target.DESCRIPTOR.fields_by_name:
        return False
    current = getattr(target, name)
    if hasattr(value, "ListFields"):
        current.CopyFrom(value)
    elif hasattr(current, "append"):
        current[:] = [value]
    else:
        setattr(target, name, value)
    return True


def _copy_names(old: Any, new: Any, name: str, kind: str | int) -> None:
    new.name = name
    if kind:
        words = str(kind)
        known = {each.lower(): each for each in own_fields()} | _WORDS
        new.type = known.get(words) or known.get(words.replace("_", "")) or words.title().replace("_", "")
    for field in ("bottom", "top", "include", "exclude", "loss_weight"):
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
