"""Nets written in Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from blobfeed.trainer.pycaffe import Net, NetSpec, caffe_pb2, to_proto
from blobfeed.trainer.pycaffe import layers as L  # noqa: N812 - as scripts for pycaffe call it
from blobfeed.trainer.pycaffe import params as P  # noqa: N812
from google.protobuf import text_format


def small() -> NetSpec:
    net = NetSpec()
    net.data, net.label = L.DummyData(shape=[{"dim": [2, 1, 8, 8]}, {"dim": [2]}], ntop=2)
    weights = {"weight_filler": {"type": "xavier"}, "param": [{"lr_mult": 1}, {"lr_mult": 2}]}
    net.conv = L.Convolution(net.data, kernel_size=3, num_output=4, **weights)
    net.pool = L.Pooling(net.conv, kernel_size=2, stride=2, pool=P.Pooling.AVE)
    net.relu = L.ReLU(net.pool, in_place=True)
    net["ip"] = L.InnerProduct(net.relu, num_output=3, name="fc")
    net.loss = L.SoftmaxWithLoss(net.ip, net.label, include={"phase": caffe_pb2.TRAIN})
    net.silence = L.Silence(net.label, ntop=0)
    return net


def test_a_net_written_in_python_is_a_prototxt_that_runs(tmp_path: Path) -> None:
    text = str(small().to_proto())
    parsed = text_format.Parse(text, caffe_pb2.NetParameter())
    assert [(layer.name, layer.type, *layer.bottom, "→", *layer.top) for layer in parsed.layer] == [
        ("data", "DummyData", "→", "data", "label"),
        ("conv", "Convolution", "data", "→", "conv"),
        ("pool", "Pooling", "conv", "→", "pool"),
        ("relu", "ReLU", "pool", "→", "pool"),
        ("fc", "InnerProduct", "pool", "→", "ip"),
        ("loss", "SoftmaxWithLoss", "ip", "label", "→", "loss"),
        ("silence", "Silence", "label", "→"),
    ]
    conv, pool = parsed.layer[1], parsed.layer[2]
    assert [spec.lr_mult for spec in conv.param] == [1, 2]
    assert list(conv.convolution_param.kernel_size) == [3]
    assert conv.convolution_param.weight_filler.type == "xavier"
    assert pool.pooling_param.pool == 1
    (tmp_path / "net.prototxt").write_text(text)
    assert set(Net(tmp_path / "net.prototxt", 0).forward()) == {"loss"}


def test_layers_without_names_are_numbered_by_type() -> None:
    data = L.Input(shape={"dim": [2, 3]})
    branches = [L.InnerProduct(data, num_output=2) for _ in range(2)]
    net = to_proto(L.Eltwise(*branches, operation=P.Eltwise.MAX))
    assert [layer.name for layer in net.layer] == ["Input1", "InnerProduct1", "InnerProduct2", "Eltwise1"]
    assert str(branches[0].to_proto()) in str(net)


@pytest.mark.parametrize(("message", "value", "named"), [("Pooling", "MEDIAN", "MEDIAN"), ("Pool", "MAX", "Pool")])
def test_a_choice_that_caffe_has_not_is_named(message: str, value: str, named: str) -> None:
    with pytest.raises(AttributeError, match=named):
        getattr(getattr(P, message), value)


def test_messages_fit_into_each_other() -> None:
    net = caffe_pb2.NetParameter(layer=[caffe_pb2.LayerParameter(name="a")])
    solver = caffe_pb2.SolverParameter(net_param=net)
    assert solver.net_param.layer[0].name == "a"
