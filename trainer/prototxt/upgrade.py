"""Upgrades nets in Caffe's older formats, as Caffe does when it reads them."""

from __future__ import annotations

from typing import Any

from .locations import Location
from .schema import V1LayerType, own_fields

# Types of which the words of older files are not today's in small letters.
_WORDS = {"absval": "AbsVal", "bnll": "BNLL", "softmax_loss": "SoftmaxWithLoss", "im2col": "Im2col"}

_SOLVERS = ("SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam")  # in the order of SolverType

MOVED = {
    "data_param": ("scale", "mean_file", "crop_size", "mirror"),
    "image_data_param": ("scale", "mean_file", "crop_size", "mirror"),
}
"""Fields that stand in transform_param since 2014."""


class UpgradeError(Exception):
    """A field that cannot be upgraded, and the path to it."""

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
    for position, old in enumerate(net.layers):
        if old.HasField("layer"):
            raise UpgradeError(
                "a `layer` inside `layers` is Caffe's format V0, of 2013, which is not supported; Caffe's "
                "upgrade_net_proto_text writes such a net in today's format",
                *("layers", position, "layer"),
            )
    for old in net.layers:
        _upgrade_v1(old, net.layer.add())
    for location in root.inside:
        if location.name == "layers":
            location.name = "layer"
    net.ClearField("layers")


def _upgrade_v1(old: Any, new: Any) -> None:
    new.name = old.name
    if old.type:
        words = V1LayerType(old.type).name.lower()
        known = {each.lower(): each for each in own_fields()} | _WORDS
        new.type = known.get(words) or known.get(words.replace("_", "")) or words.title().replace("_", "")
    for field in ("bottom", "top", "include", "exclude", "loss_weight"):
        getattr(new, field).extend(getattr(old, field))
    _add_specs(new, name=old.param, share_mode=old.blob_share_mode, lr_mult=old.blobs_lr, decay_mult=old.weight_decay)
    for field, value in old.ListFields():
        if field.name.endswith("_param"):
            getattr(new, field.name).CopyFrom(value)
    for field, names in MOVED.items():
        options = getattr(new, field)
        for name in filter(options.HasField, names):
            setattr(new.transform_param, name, getattr(options, name))
            options.ClearField(name)


def _add_specs(new: Any, **values_by_field: Any) -> None:
    """Add a `param` for each of the layer's weights that has a value; the lists may differ in length."""
    for _ in range(max(map(len, values_by_field.values()))):
        new.param.add()
    for field, values in values_by_field.items():
        for spec, value in zip(new.param, values, strict=False):
            setattr(spec, field, value)


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
