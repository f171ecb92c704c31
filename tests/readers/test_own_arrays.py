"""BatchReader.into: batches that are put into a user's own arrays."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobfeed import BatchReader, ParameterError, PipelineClosed, Sample, Table
from tests.support.interrupting import interrupts_in
from tests.support.reader_data import IMAGE, boxes, images

SAMPLES = 10


def read(source: object, **parameters: Any) -> BatchReader:
    told = {"batch_size": 4, "num_loaders": 0, "shuffle": True, "epochs": 1, "last_batch": "partial", **parameters}
    return BatchReader(source, **told)  # type: ignore[arg-type]


def arrays(dtype: Any = np.float32) -> dict[str, Any]:
    return {"data": np.full((4, *IMAGE), -1, dtype), "label": np.full(4, -1, np.int64)}


def narrowed(sample: Sample, rng: np.random.Generator) -> dict[str, Any]:
    """A decode hook: images of one to three rows."""
    return {"data": sample["data"][:, : 1 + int(sample["label"]) % 3], "label": sample["label"]}


def test_a_partial_batch_leaves_the_rest_of_the_arrays_as_it_was(source: dict[str, Any]) -> None:
    own = arrays()
    with read(source, shuffle=False) as reader:
        *_, batch = reader.into(own)
    np.testing.assert_array_equal(own["label"], [8, 9, 6, 7])
    np.testing.assert_array_equal(batch["label"], [8, 9])


def test_rows_are_read_straight_into_an_array_of_their_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "data.npy", np.random.default_rng(0).random((SAMPLES, 3, 128, 128), np.float32))
    own, read_rows, read_into = {"data": np.zeros((4, 3, 128, 128), np.float32)}, Table.read, []

    def noting(self: Table, indices: Any, out: Any) -> None:
        read_into.append(out["data"])
        read_rows(self, indices, out)

    monkeypatch.setattr(Table, "read", noting)
    with read({"npy": {"data": str(tmp_path / "data.npy")}}) as reader:
        for _ in reader.into(own):
            pass
    assert [np.shares_memory(rows, own["data"]) for rows in read_into[-3:]] == [True] * 3


@pytest.mark.parametrize("device", ["", "cpu"])
def test_tensors_are_filled_too(source: dict[str, Any], device: str) -> None:
    torch = pytest.importorskip("torch")
    own = {"data": torch.zeros(4, *IMAGE, requires_grad=True), "label": np.zeros(4, np.int32)}
    with read(source, device=device) as reader:
        for batch in reader.into(own):
            assert batch["data"].data_ptr() == own["data"].data_ptr()
            assert tuple(batch["data"].shape) == (batch.rows, *IMAGE)
            np.testing.assert_array_equal(batch["data"].detach().numpy(), images(SAMPLES)[batch.indices])
            np.testing.assert_array_equal(batch["label"], batch.indices)


def test_padded_samples_lie_at_the_start_of_the_memory(source: dict[str, Any]) -> None:
    padded: dict[str, Any] = {"decode": narrowed, "max_shapes": {"data": list(IMAGE)}, "pad": {"value": -3}}
    with read(source, **padded) as plain:
        expected = [dict(batch) for batch in plain]
    with read(source, **padded) as reader:
        own = arrays() | {"data_lengths": np.zeros((4, 2), np.int32)}
        for batch, wanted in zip(reader.into(own), expected, strict=True):
            for name in own:
                np.testing.assert_array_equal(batch[name], wanted[name])
                assert batch[name].ctypes.data == own[name].ctypes.data
                assert batch[name].flags.c_contiguous


def test_concatenated_samples_lie_at_the_start_of_the_memory(source: dict[str, Any]) -> None:
    own = {"boxes": np.zeros((8, 4), np.float32), "boxes_samples": np.zeros(8, np.int32)}
    with read(source, decode=boxes, concatenate=["boxes"], max_rows=2) as reader:
        for batch in reader.into(own):
            counts = batch.indices % 3
            assert batch["boxes"].shape == (counts.sum(), 4)
            np.testing.assert_array_equal(batch["boxes_samples"], np.repeat(np.arange(batch.rows), counts))


def test_batches_are_tuples_of_the_arrays_if_they_are_asked_for(source: dict[str, Any]) -> None:
    own = arrays()
    with read(source, tuples=True) as reader:
        data, label = next(iter(reader.into(own)))
    assert data is own["data"]
    assert label is own["label"]


# ---- loops, states, Ctrl-C, the end


@pytest.mark.parametrize("transform", [{}, {"scale": 0.5}])
def test_loops_of_both_kinds_follow_each_other_and_end_each_other(
    source: dict[str, Any], transform: dict[str, Any]
) -> None:
    with read(source, epochs=None, shuffle=False, transform=transform) as reader:
        into = reader.into(own := arrays())
        assert next(into)["label"].tolist() == [0, 1, 2, 3]
        assert len(own["label"]) == 4
        plain = iter(reader)
        batch = next(plain)
        assert batch["label"].tolist() == [4, 5, 6, 7]
        np.testing.assert_array_equal(batch["data"], images(SAMPLES)[4:8] * transform.get("scale", 1))
        with pytest.raises(PipelineClosed):
            next(into)
        with pytest.raises(ParameterError):
            reader.into({})
        assert next(plain)["label"].tolist() == [8, 9]


@pytest.mark.parametrize(("then_plain", "transform"), [(False, {}), (True, {}), (True, {"scale": 1.5})])
def test_ctrl_c_loses_no_batch_whichever_loop_goes_on(
    source: dict[str, Any], then_plain: bool, transform: dict[str, Any]
) -> None:
    """Without epochs the next loop continues: a plain one gets memory of its own, not the user's arrays."""
    own, step, interrupted = arrays(), 0, True
    with read(source, epochs=None, shuffle=False, last_batch="wrap", transform=transform) as reader:
        next(reader.into(own))  # what is imported and opened the first time is no part of a step
        number = 1
        while interrupted:
            step += 1
            loop = reader.into(own)
            interrupted = interrupts_in(step, lambda: next(loop), "readers/delivery")  # noqa: B023
            if not interrupted or int(reader.state_dict()["batches"]) > number:
                number += 1
                continue
            batch = next(iter(reader) if then_plain else loop)
            assert batch["label"].tolist() == [row % SAMPLES for row in range(4 * number, 4 * number + 4)]
            assert np.shares_memory(batch["label"], own["label"]) is not then_plain
            number += 1
    assert step > 20
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_a_tuple_is_made_loses_no_batch(source: dict[str, Any]) -> None:
    got: list[Any] = []
    with read(source, tuples=True, shuffle=False) as reader:
        loop = iter(reader)
        for step in range(1, 4):
            interrupts_in(step, lambda: got.append(next(loop)), "typing.py")
        got += loop
    assert [label.tolist() for _, label in got] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_text_is_put_into_arrays_of_its_length(tmp_path: Path) -> None:
    np.save(tmp_path / "text.npy", np.array(["train", "valid"]))
    with read({"npy": {"text": str(tmp_path / "text.npy")}}, batch_size=2, shuffle=False) as reader:
        assert next(reader.into({"text": np.zeros(2, "U5")}))["text"].tolist() == ["train", "valid"]
