"""The TensorFlow face: tf.data over batches made ahead of time, and the queue pipeline that it takes the place of.

The documents' blocks of TensorFlow, and its example, run here too: it takes seconds to import.
"""

from __future__ import annotations

import gc
import os
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.workers.api import Parameters

from blobfeed import BatchReader, ParameterError, StreamSource
from tests.support.documents import BLOCKS, EXAMPLES, Block, documents_files, right_in_percent
from tests.support.reader_data import IMAGE, boxes, records

from .faces import Face, every_law

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"
tf: Any = pytest.importorskip("tensorflow")
from blobfeed import TensorFlowDataset  # noqa: E402

__all__ = ["documents_files"]

# TensorFlow's own: what it imports warns, and it leaves the iterators of datasets to be collected.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

SAMPLES = 10
SETTINGS: dict[str, Any] = {"batch_size": 4, "num_loaders": 1, "epochs": 1}


@pytest.mark.parametrize(("last_batch", "rows"), [("partial", None), ("drop", 4), ("wrap", 4)])
def test_names_shapes_and_types_are_known(source: dict[str, Any], last_batch: Any, rows: int | None) -> None:
    dataset = TensorFlowDataset(source, last_batch=last_batch, **SETTINGS)
    assert dataset.element_spec == {
        "data": tf.TensorSpec((rows, *IMAGE), tf.float32),
        "label": tf.TensorSpec((rows,), tf.int64),
    }
    assert dataset.cardinality() == {"partial": 3, "drop": 2, "wrap": 3}[last_batch]


class Mapped(Face):
    raises = tf.errors.UnknownError

    def make(self, source: dict[str, Any], **settings: Any) -> Any:
        reader = BatchReader(source, **settings)
        self.dataset = TensorFlowDataset(reader)
        return reader

    def loop(self) -> Iterator[tuple[Any, Any]]:
        yield from ((batch["data"].numpy(), batch["label"].numpy()) for batch in self.dataset)

    def cause(self, error: Exception) -> Exception | None:
        return self.reader.error  # type: ignore[no-any-return]


@every_law
def test_it_keeps_the_contract_of_all_faces(law: Any, tmp_path: Path) -> None:
    law(Mapped, tmp_path)


def test_keras_trains_on_it_and_sees_each_sample_once_an_epoch(source: dict[str, Any]) -> None:
    keras: Any = pytest.importorskip("keras")
    seen: list[int] = []
    settings = {**SETTINGS, "shuffle": True, "last_batch": "partial"}
    with BatchReader(source, **settings) as reader:
        # Left to itself TensorFlow would convert the lambda, by way of a temporary file that it forgets.
        pair = tf.autograph.experimental.do_not_convert(lambda batch: (batch["data"], batch["label"]))
        dataset = TensorFlowDataset(reader).map(pair)

        class Look(keras.layers.Layer):  # type: ignore[misc]
            def call(self, x: Any) -> Any:
                if not isinstance(x, keras.KerasTensor) and str(getattr(x, "device", "")) != "meta":
                    seen.extend(int(first) // 24 for first in keras.ops.convert_to_numpy(x)[:, 0, 0, 0])
                return keras.ops.reshape(x, (-1, 24))

        model = keras.Sequential([Look(), keras.layers.Dense(1)])
        model.compile(loss="mse", optimizer="sgd", run_eagerly=True)
        model.fit(dataset, epochs=3, shuffle=False, verbose=0)
    shown = [seen[-3 * SAMPLES :][begin : begin + SAMPLES] for begin in range(0, 3 * SAMPLES, SAMPLES)]
    assert all(sorted(epoch) == list(range(SAMPLES)) for epoch in shown)
    assert len({tuple(epoch) for epoch in shown}) == 3


def test_after_resuming_every_pass_has_the_promised_length(source: dict[str, Any]) -> None:
    settings = {**SETTINGS, "shuffle": True, "last_batch": "partial"}
    with BatchReader(source, **settings) as whole:
        expected = [batch["label"].tolist() for batch in [*whole, *whole]]
    with BatchReader(source, **settings) as reader:
        next(iter(reader))
        state = reader.state_dict()
    for passes_before in (None, 0, 1):
        with BatchReader(source, **settings) as resumed:
            if passes_before is None:
                resumed.load_state_dict(state)
            dataset = TensorFlowDataset(resumed)
            if passes_before is not None:
                assert sum(1 for _ in dataset.repeat(passes_before)) == 3 * passes_before
                resumed.load_state_dict(state)
            assert [batch["label"].numpy().tolist() for batch in dataset] == expected[1:4]
            assert sum(1 for _ in dataset) == 3


def test_a_state_counts_what_the_loop_has_got_and_nothing_that_is_drawn_ahead(source: dict[str, Any]) -> None:
    with BatchReader(source, last_batch="partial", **SETTINGS) as reader:
        dataset = TensorFlowDataset(reader)
        # Else a thread of TensorFlow's draws one batch ahead, which the positions may show or not.
        assert dataset.options().experimental_optimization.inject_prefetch is False
        assert [reader.state_dict()["position"] for _ in dataset] == [4, 8, 10]


def test_two_passes_at_a_time_are_an_error(source: dict[str, Any]) -> None:
    dataset = TensorFlowDataset(source, **SETTINGS)
    with pytest.raises(tf.errors.UnknownError, match="TensorFlowDataset"):
        list(tf.data.Dataset.zip((dataset, dataset)))


def test_a_loop_over_the_reader_between_passes_ends_no_later_one(source: dict[str, Any]) -> None:
    with BatchReader(source, last_batch="drop", **SETTINGS) as reader:
        dataset = TensorFlowDataset(reader)
        for _ in range(2):
            next(iter(reader))
            assert [batch["label"].numpy().tolist() for batch in dataset] == [[0, 1, 2, 3], [4, 5, 6, 7]]


# ---- the documents


def run(program: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    runpy.run_path(str(program), run_name="__main__")
    gc.collect()  # the program's datasets, and their processes


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.is_of_tensorflow], ids=str)
def test_a_block_of_the_documents_runs_as_it_is_written(
    documents_files: Path, block: Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(block.write(documents_files), documents_files, monkeypatch)


def test_the_example_tells_digits_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(EXAMPLES / "tensorflow_digits" / "train.py", tmp_path, monkeypatch)
    assert right_in_percent(capsys.readouterr().out)[-1] > 94


# ---- the queue pipeline


def queue(**settings: Any) -> Any:
    stream = StreamSource(records, names=("features", "labels", "name"), shards=1, capacity=20, string_bytes=16)
    return TensorFlowDataset(
        stream, **{"batch_size": 8, "num_loaders": 1, "epochs": 1, "last_batch": "partial", **settings}
    )


def test_a_queue_of_named_components_is_drained_in_random_order() -> None:
    dataset = queue(seed=1)
    assert dataset.element_spec["name"] == tf.TensorSpec((None,), tf.string)
    batches = list(dataset.as_numpy_iterator())
    assert [len(batch["labels"]) for batch in batches] == [8, 8, 8, 8, 8, 8, 8, 4]
    numbers = [int(number) for batch in batches for number in batch["features"][:, 0]]
    names = [name for batch in batches for name in batch["name"].tolist()]
    assert sorted(numbers) == list(range(60))
    assert names == [f"record {number}".encode() for number in numbers]
    assert numbers != sorted(numbers)
    # What leaves the buffer when the n-th element is taken was among the first n + capacity ones.
    assert all(number < place + 20 for place, number in enumerate(numbers))


def test_rows_that_are_put_end_to_end_are_as_many_as_they_are(source: dict[str, Any]) -> None:
    dataset = TensorFlowDataset(source, decode=boxes, concatenate=["boxes"], max_rows=2, **SETTINGS)
    assert dataset.element_spec["boxes"].shape == (None, 4)
    assert [len(batch["boxes"]) for batch in dataset] == [3, 4, 2]


def test_batches_of_a_batch_sampler_have_as_many_rows_as_it_says(source: dict[str, Any]) -> None:
    def sampler(epoch: int, samples: int, rng: np.random.Generator) -> Iterator[list[int]]:
        yield from ([0, 1, 2], [3], [4, 5, 6, 7])

    dataset = TensorFlowDataset(source, batch_sampler=sampler, **SETTINGS)
    assert dataset.element_spec["data"].shape == (None, *IMAGE)
    assert [batch["label"].numpy().tolist() for batch in dataset] == [[0, 1, 2], [3], [4, 5, 6, 7]]


# ---- bad arguments


@pytest.mark.parametrize(
    ("given", "named"),
    [({"batch_size": 3, "seed": 2}, "batch_size, seed"), ({"base_dir": ".", "train": False}, "base_dir, train")],
)
def test_parameters_beside_a_reader_are_an_error(source: dict[str, Any], given: dict[str, Any], named: str) -> None:
    with BatchReader(source, **SETTINGS) as reader, pytest.raises(ParameterError, match=named):
        TensorFlowDataset(reader, **given)


def test_a_reader_of_tensors_is_an_error(source: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with BatchReader(source, **SETTINGS) as reader:
        # Said to be so: a reader of tensors would bring torch into this process.
        monkeypatch.setattr(reader, "parameters", Parameters(**SETTINGS, device="cpu"))
        with pytest.raises(ParameterError, match="device"):
            TensorFlowDataset(reader)
