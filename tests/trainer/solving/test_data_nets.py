"""Nets as Caffe's users have them, data layer and all, train without a change to the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from blobfeed.trainer.solving.solver import Solver
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

from tests.support.datums import encoded_datum, raw_datum, write_lmdb
from tests.support.pictures import encoded

NET = """
name: "LeNet"
layer {
  name: "digits" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  transform_param { scale: 0.00390625 }
  data_param { source: "train_lmdb" batch_size: 64 backend: LMDB }
}
layer {
  name: "digits" type: "Data" top: "data" top: "label" include { phase: TEST }
  transform_param { scale: 0.00390625 }
  data_param { source: "test_lmdb" batch_size: 100 backend: LMDB }
}
layer {
  name: "conv1" type: "Convolution" bottom: "data" top: "conv1" param { lr_mult: 1 } param { lr_mult: 2 }
  convolution_param { num_output: 16 kernel_size: 3 weight_filler { type: "xavier" } bias_filler { type: "constant" } }
}
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer {
  name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1" pooling_param { pool: MAX kernel_size: 2 stride: 2 }
}
layer {
  name: "ip1" type: "InnerProduct" bottom: "pool1" top: "ip1" param { lr_mult: 1 } param { lr_mult: 2 }
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } bias_filler { type: "constant" } }
}
layer { name: "accuracy" type: "Accuracy" bottom: "ip1" bottom: "label" top: "accuracy" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip1" bottom: "label" top: "loss" }
"""

SOLVER = """
net: "net.prototxt" test_iter: 4 test_interval: 1000 base_lr: 0.05 momentum: 0.9 weight_decay: 0.0005
lr_policy: "inv" gamma: 0.0001 power: 0.75 max_iter: 150 random_seed: 1 solver_mode: CPU
"""


@pytest.mark.parametrize("stored", ["raw", "png"])
def test_digits_from_an_lmdb_are_learnt(tmp_path: Path, stored: str) -> None:
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order] * 15).astype(np.uint8)
    labels = digits.target[order].tolist()
    if stored == "raw":
        records = [raw_datum(image[np.newaxis], label) for image, label in zip(images, labels, strict=True)]
    else:
        records = [encoded_datum(encoded(image, ".png"), label) for image, label in zip(images, labels, strict=True)]
    write_lmdb(tmp_path / "train_lmdb", records[:-400])
    write_lmdb(tmp_path / "test_lmdb", records[-400:])
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    with Solver.from_file(tmp_path / "solver.prototxt", device="cpu") as solver:
        for _ in range(150):
            solver.step()
        (results,) = solver.test()
    assert results["accuracy"] >= 0.9
