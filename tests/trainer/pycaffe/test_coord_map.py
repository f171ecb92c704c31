"""Offsets of crops, computed from the layers of a net: those that FCN's own nets have written in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from blobfeed.trainer.pycaffe import (
    CropError,
    Net,
    NetSpec,
    UndefinedMapException,
    coord_map_from_to,
    crop,
    layers,
    params,
)

STAGES = (2, 2, 3, 3, 3)
"""Convolutions before each pooling of VGG-16."""


def conv(bottom: Any, kernel_size: int, **more: Any) -> Any:
    return layers.ReLU(layers.Convolution(bottom, kernel_size=kernel_size, num_output=2, **more), in_place=True)


def up(bottom: Any, factor: int) -> Any:
    return layers.Deconvolution(bottom, kernel_size=2 * factor, stride=factor, num_output=2, bias_term=False)


def fcn(height: int = 16, width: int = 24) -> tuple[NetSpec, list[Any], Any]:
    """The net, its five poolings and the scores on top of the last."""
    n, pools = NetSpec(), []
    n.data = layers.Input(shape={"dim": [1, 3, height, width]})
    top = n.data
    for stage, convolutions in enumerate(STAGES):
        for nth in range(convolutions):
            top = conv(top, 3, pad=100 if stage == nth == 0 else 1)
        top = layers.Pooling(top, pool=params.Pooling.MAX, kernel_size=2, stride=2)
        pools.append(top)
    top = layers.Dropout(conv(conv(top, 7), 1), in_place=True)
    return n, pools, layers.Convolution(top, kernel_size=1, num_output=2)


def offset(crop_top: Any) -> Any:
    return list(crop_top.fn.message().crop_param.offset)


def test_the_crops_of_fcn_32s_and_16s_and_8s(tmp_path: Path) -> None:
    n, pools, score = fcn()
    assert offset(crop(up(score, 32), n.data)) == [19]
    fused = up(score, 2)
    for pool, expected, factor, whole in ((pools[3], 5, 16, 27), (pools[2], 9, 8, 31)):
        skip = crop(layers.Convolution(pool, kernel_size=1, num_output=2), fused)
        assert offset(skip) == [expected]
        fused = layers.Eltwise(fused, skip, operation=params.Eltwise.SUM)
        assert offset(crop(up(fused, factor), n.data)) == [whole]
        fused = up(fused, 2)
    n.scores = crop(up(fused.fn.bottoms[0], 8), n.data)
    model = tmp_path / "fcn8s.prototxt"
    model.write_text(str(n.to_proto()))
    net = Net(model, 1)
    assert net.forward()["scores"].shape == (1, 2, 16, 24)


def test_a_map_says_where_the_center_of_a_window_lies() -> None:
    n = NetSpec()
    n.data = layers.Input(shape={"dim": [1, 1, 30, 30]})
    for top, expected in (
        (layers.Convolution(n.data, kernel_size=5, stride=2, num_output=1), (1, 0.5, -1)),
        (layers.Convolution(n.data, kernel_size=3, dilation=2, pad=2, num_output=1), (1, 1, 0)),
        (layers.Convolution(n.data, kernel_h=3, kernel_w=5, num_output=1), (1, 1, [-1, -2])),
        (layers.Pooling(n.data, kernel_size=2, stride=2), (1, 0.5, -0.25)),
        (layers.Im2col(n.data, convolution_param={"kernel_size": 3, "pad": 1}), (1, 1, 0)),
        (up(n.data, 2), (1, 2, 1.5)),
        (layers.Deconvolution(n.data, convolution_param={"kernel_size": 4, "stride": 2}), (1, 2, 1.5)),
        (layers.Im2col(n.data, kernel_size=3, pad=1), (1, 1, 0)),
        (layers.Crop(n.data, n.data, crop_param={"axis": 2, "offset": 4}), (1, 1, -4)),
        (layers.Scale(layers.ReLU(n.data)), (None, 1, 0)),
    ):
        axis, scale, shift = coord_map_from_to(n.data, top)
        assert axis == expected[0]
        for found, number in ((scale, expected[1]), (shift, expected[2])):
            np.testing.assert_allclose(np.atleast_1d(found), np.atleast_1d(number))


def test_scripts_for_pycaffe_catch_its_errors() -> None:
    assert issubclass(UndefinedMapException, RuntimeError)
    assert issubclass(CropError, AssertionError)
