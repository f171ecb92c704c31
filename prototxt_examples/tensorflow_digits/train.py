"""TensorFlow on the digits: a tf.data.Dataset whose batches are made in other processes."""

from pathlib import Path
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped]

from blobfeed import TensorFlowDataset

DIGITS = Path(__file__).parent.parent / "digits"


def digits(part: str, **how: Any) -> tf.data.Dataset:
    source = {"hdf5": {"path": f"digits_{part}.h5"}}
    return TensorFlowDataset(source, base_dir=DIGITS, batch_size=64, transform={"scale": 1 / 16}, **how)


tf.random.set_seed(1)
first, second = (tf.Variable(tf.random.normal(shape, stddev=0.1)) for shape in ((64, 128), (128, 10)))
train, test = digits("train", shuffle=True, seed=1), digits("test")


def model(images: tf.Tensor) -> tf.Tensor:
    return tf.nn.relu(tf.reshape(images, (-1, 64)) @ first) @ second


for epoch in range(1, 21):
    for batch in train:
        with tf.GradientTape() as tape:
            labels = tf.cast(batch["label"], tf.int32)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(batch["data"])))
        for weights, gradient in zip((first, second), tape.gradient(loss, (first, second)), strict=True):
            weights.assign_sub(0.3 * gradient)
    right = [tf.argmax(model(batch["data"]), 1) == tf.cast(batch["label"], tf.int64) for batch in test]
    print(f"epoch {epoch}: {tf.reduce_mean(tf.cast(tf.concat(right, 0), tf.float32)):.1%} of the test digits right")
