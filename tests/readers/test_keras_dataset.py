"""KerasDataset: `fit`, `evaluate` and `predict` over batches made ahead of time, every epoch whole and reordered."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.workers.api import AnyArray

from blobfeed import ParameterError

from .faces import Face, every_law

os.environ["KERAS_BACKEND"] = "torch"
sys.modules["tensorflow"] = None  # type: ignore[assignment]  # or Keras takes it along wherever it is installed
keras: Any = pytest.importorskip("keras", reason="no Keras, or not its backend", exc_type=ImportError)
from blobfeed import KerasDataset  # noqa: E402

# Keras turns torch tensors into NumPy arrays in a way that NumPy 2 does not like.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SAMPLES, FEATURES = 50, 4


class Recorder:
    """A model whose first layer writes down the first feature, the number of the sample, of all it is shown."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        recorder = self

        class Look(keras.layers.Layer):  # type: ignore[misc]
            def call(self, x: Any, training: bool = False) -> Any:
                if not isinstance(x, keras.KerasTensor) and str(getattr(x, "device", "")) != "meta":
                    recorder.seen.append([int(number) for number in keras.ops.convert_to_numpy(x)[:, 0]])
                return x

        self.model = keras.Sequential([Look(), keras.layers.Dense(1)])
        self.model.compile(loss="mse", optimizer="sgd", run_eagerly=True)

    def numbers(self) -> list[int]:
        return [number for batch in self.seen for number in batch]


@pytest.fixture
def source(tmp_path: Path) -> dict[str, Any]:
    return write_pair(tmp_path, SAMPLES)


def write_pair(folder: Path, samples: int) -> dict[str, Any]:
    numbers = np.arange(samples, dtype=np.float32)
    features: AnyArray = np.stack([numbers, *np.random.default_rng(0).normal(size=(3, samples))], axis=1)
    np.save(folder / "x.npy", features.astype(np.float32))
    np.save(folder / "y.npy", (features @ [0, 1, -2, 3]).astype(np.float32))
    return {"npy": {"x": str(folder / "x.npy"), "y": str(folder / "y.npy")}}


def feed_of(source: dict[str, Any], **parameters: Any) -> KerasDataset:
    return KerasDataset(source, **{"batch_size": 8, "num_loaders": 0, **parameters})


def test_fit_sees_every_sample_once_an_epoch_in_new_order(source: dict[str, Any]) -> None:
    recorder = Recorder()
    with feed_of(source, shuffle=True) as feed:
        recorder.model.fit(feed, epochs=3, verbose=0)
    per_epoch = len(feed)
    shown = recorder.seen[-3 * per_epoch :]
    epochs = [list(chain(*shown[begin : begin + per_epoch])) for begin in range(0, len(shown), per_epoch)]
    assert all(sorted(epoch) == list(range(SAMPLES)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


class Indexed(Face):
    def make(self, source: dict[str, Any], **settings: Any) -> Any:
        return KerasDataset(source, **settings)

    def loop(self) -> Iterator[tuple[Any, Any]]:
        yield from (self.reader[index] for index in range(len(self.reader)))


@every_law
def test_it_keeps_the_contract_of_all_faces(law: Any, tmp_path: Path) -> None:
    law(Indexed, tmp_path)


def test_a_model_learns_and_is_validated_every_epoch(tmp_path: Path) -> None:
    source = write_pair(tmp_path, 400)
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer=keras.optimizers.Adam(0.05))
    with feed_of(source, shuffle=True, batch_size=20) as train, feed_of(source, batch_size=50) as valid:
        history = model.fit(train, validation_data=valid, epochs=4, verbose=0).history
        evaluated = model.evaluate(valid, verbose=0)
        predicted = model.predict(valid, verbose=0)
    assert len(history["val_loss"]) == 4
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert evaluated == pytest.approx(history["val_loss"][-1], rel=1e-4)
    # In the file's order, whatever was done with the feed before.
    np.testing.assert_allclose(predicted, model.predict(np.load(tmp_path / "x.npy"), verbose=0), rtol=1e-4, atol=1e-5)


def test_prediction_begins_with_the_first_sample_after_an_evaluation_that_was_cut_short(source: dict[str, Any]) -> None:
    recorder = Recorder()
    with feed_of(source) as feed:
        recorder.model.evaluate(feed, steps=4, verbose=0)
        recorder.seen.clear()
        recorder.model.predict(feed, verbose=0)
    assert recorder.numbers() == list(range(SAMPLES))


@pytest.mark.parametrize(("lasting", "steps"), [({"epochs": 1}, 1), ({"epochs": None}, 2)])
def test_steps_per_epoch_cuts_the_epochs_without_loss(
    source: dict[str, Any], lasting: dict[str, Any], steps: int
) -> None:
    recorder = Recorder()
    with feed_of(source, batch_size=10, shuffle=True, **lasting) as feed:
        recorder.model.fit(feed, epochs=10 // steps, steps_per_epoch=steps, shuffle=False, verbose=0)
    numbers = recorder.numbers()[-10 * 10 :]
    assert sorted(numbers[:SAMPLES]) == sorted(numbers[SAMPLES:]) == list(range(SAMPLES))


@pytest.mark.parametrize("at", [5, 8])
def test_a_state_that_is_loaded_within_a_pass_loses_no_batch(source: dict[str, Any], at: int) -> None:
    with feed_of(source, batch_size=5) as feed:
        start, first = feed.state_dict(), []
        for features, _ in feed:  # ten batches
            first.append(int(features[0, 0]))
            if len(first) == at:
                feed.load_state_dict(start)
        second = [int(features[0, 0]) for features, _ in feed]
    assert first == [*range(0, 5 * at, 5), *range(0, 5 * (10 - at), 5)]
    assert second == [5 * (number % 10) for number in range(10 - at, 20 - at)]


def test_to_ask_for_the_number_of_batches_begins_no_pass(source: dict[str, Any]) -> None:
    index, shown = 0, []
    with feed_of(source, batch_size=10) as feed:
        while index < (feed.num_batches or 0):
            shown.append(int(feed[index][0][0, 0]))
            index += 1
    assert shown == [0, 10, 20, 30, 40]


def test_a_generator_feeds_fit_for_ever(source: dict[str, Any]) -> None:
    recorder = Recorder()
    with feed_of(source, shuffle=True, last_batch="partial") as feed:
        recorder.model.fit(feed.generator(), epochs=2, steps_per_epoch=len(feed), shuffle=False, verbose=0)
    numbers = recorder.numbers()[-2 * SAMPLES :]
    assert sorted(numbers[:SAMPLES]) == sorted(numbers[SAMPLES:]) == list(range(SAMPLES))


def test_tops_get_the_roles_that_they_are_given(source: dict[str, Any]) -> None:
    with feed_of(source, inputs=["y", "x"], targets="y", weights="y") as feed:
        inputs, targets, weights = feed[0]
    assert {name: array.shape for name, array in inputs.items()} == {"y": (8,), "x": (8, FEATURES)}
    np.testing.assert_array_equal(targets, inputs["y"])
    np.testing.assert_array_equal(weights, inputs["y"])


def test_the_lengths_of_what_is_padded_are_no_weights_but_may_be_an_input(source: dict[str, Any]) -> None:
    padded: dict[str, Any] = {"max_shapes": {"x": [FEATURES]}, "pad": {}}
    with feed_of(source, **padded) as feed:
        assert [array.shape for array in feed[0]] == [(8, FEATURES), (8,)]
    with feed_of(source, inputs=["x", "x_lengths"], targets="y", **padded) as feed:
        assert feed[0][0]["x_lengths"].tolist() == [[FEATURES]] * 8


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"targets": "y"}, "'targets'.*'y'.*'inputs'"),
        ({"inputs": "x", "weights": "y"}, "'weights'.*'y'.*'targets'"),
        ({"inputs": "z"}, "'inputs'.*'z'.*x, y"),
        ({"inputs": ["x", "yy"]}, "'inputs'.*'yy'.*'y'"),
        ({"input": "data"}, "KerasDataset.*'input'.*'inputs'"),
        ({"delivery": "view"}, "'delivery'.*'view'.*for layers"),
    ],
)
def test_arguments_that_make_no_sense_are_an_error(source: dict[str, Any], given: dict[str, Any], names: str) -> None:
    with pytest.raises(ParameterError, match=names):
        feed_of(source, **given)
