"""Images, means and samples as scripts for pycaffe handle them, and nets that classify images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.sources.lmdb.datum import datum_class
from blobfeed.trainer.prototxt import read_blob
from blobfeed.trainer.pycaffe import Classifier, Net, caffe_pb2, io

from tests.support.trainer_nets import with_inputs

DATUM: Any = caffe_pb2.Datum
IMAGE = np.random.default_rng(0).integers(0, 256, (12, 10, 3), np.uint8)


def test_a_datum_is_the_message_that_sources_read() -> None:
    assert caffe_pb2.Datum is datum_class()


def write_image(path: Path, image: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Path:
    cv2 = pytest.importorskip("cv2")
    assert cv2.imwrite(str(path), image)
    return path


def test_an_image_is_rgb_between_0_and_1(tmp_path: Path) -> None:
    path = write_image(tmp_path / "image.png", IMAGE)  # BGR for OpenCV
    np.testing.assert_array_equal(io.load_image(path), IMAGE[:, :, ::-1].astype(np.float32) / 255)
    assert io.load_image(str(path), color=False).shape == (12, 10, 1)


def test_a_linear_resize_is_opencvs() -> None:
    cv2 = pytest.importorskip("cv2")
    image = IMAGE.astype(np.float32)
    for size in ((20, 15), (7, 6)):
        np.testing.assert_allclose(io.resize_image(image, size), cv2.resize(image, size[::-1]), rtol=1e-3, atol=1e-2)
    assert io.resize_image(image, (24, 20), interp_order=0)[::2, ::2].tolist() == image.tolist()


def test_a_transformer_prepares_an_image_and_gives_it_back() -> None:
    transformer = io.Transformer({"data": (1, 3, 12, 10)})
    transformer.set_transpose("data", (2, 0, 1))
    transformer.set_channel_swap("data", (2, 1, 0))
    transformer.set_raw_scale("data", 255)
    transformer.set_mean("data", np.array([104, 117, 123]))
    transformer.set_input_scale("data", 0.5)
    image = IMAGE.astype(np.float32) / 255
    row = transformer.preprocess("data", image)
    bgr = IMAGE.astype(np.float32).transpose(2, 0, 1)[::-1]
    np.testing.assert_allclose(row, (bgr - [[[104]], [[117]], [[123]]]) / 2, atol=1e-4)
    np.testing.assert_allclose(transformer.deprocess("data", row), image, atol=1e-5)
    assert transformer.preprocess("data", np.ones((6, 5, 3))).shape == (3, 12, 10)
    assert (transformer.mean["data"] == [[[104]], [[117]], [[123]]]).all()  # scripts that enlarge images read it
    assert transformer.raw_scale["data"] == 255
    assert transformer.input_scale["data"] == 0.5
    assert (transformer.transpose["data"], transformer.channel_swap["data"]) == ((2, 0, 1), (2, 1, 0))


def test_arrays_become_messages_and_come_back() -> None:
    array = IMAGE.transpose(2, 0, 1)
    blob = io.array_to_blobproto(array[np.newaxis], diff=array[np.newaxis] + 0.5)
    np.testing.assert_array_equal(read_blob(blob.SerializeToString()), array[np.newaxis])
    np.testing.assert_array_equal(io.blobproto_to_array(blob), array[np.newaxis])
    np.testing.assert_array_equal(io.blobproto_to_array(blob, return_diff=True), array[np.newaxis] + 0.5)
    for stored in (array, array.astype(np.float32) / 3):
        datum = DATUM.FromString(io.array_to_datum(stored, 7).SerializeToString())
        assert datum.label == 7
        assert io.datum_to_array(datum).dtype == stored.dtype
        np.testing.assert_array_equal(io.datum_to_array(datum), stored)


def test_ten_crops_are_four_corners_the_center_and_their_mirrors() -> None:
    crops = io.oversample([IMAGE, IMAGE + 1], (4, 6))
    assert crops.shape == (20, 4, 6, 3)
    for crop, (top, left) in zip(crops, [(0, 0), (0, 4), (8, 0), (8, 4), (4, 2)], strict=False):
        np.testing.assert_array_equal(crop, IMAGE[top : top + 4, left : left + 6])
    np.testing.assert_array_equal(crops[5:10], crops[:5, :, ::-1])


def write_net(folder: Path) -> Net:
    """A net that classifies images of 8×8, whose weights are saved beside it."""
    text = """
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
        inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""
    model = folder / "net.prototxt"
    model.write_text(with_inputs(text, data=(3, 3, 8, 8)))
    net = Net(model, 1)
    net.save(folder / "w.caffemodel")
    return net


def test_a_classifier_gives_the_mean_over_crops_or_the_center(tmp_path: Path) -> None:
    net = write_net(tmp_path)
    files = tmp_path / "net.prototxt", tmp_path / "w.caffemodel"
    classifier = Classifier(*files, image_dims=(12, 10), raw_scale=2, mean=np.ones(3))
    images = [IMAGE / 255.0, IMAGE[::-1] / 255.0]
    center = classifier.predict(images, oversample=False)
    rows = [(2 * image[2:10, 1:9].transpose(2, 0, 1) - 1) for image in images]
    np.testing.assert_allclose(center, net.forward_all(data=np.stack(rows))["prob"], rtol=1e-4)
    many = classifier.predict(images)
    assert many.shape == (2, 4)
    np.testing.assert_allclose(many.sum(1), 1, rtol=1e-5)
    assert not np.allclose(many, center)
