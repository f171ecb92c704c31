"""`num_loaders: 0`: errors are those of loaders, and Ctrl-C in the midst of a batch loses none."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.readers.opening import open_pipeline
from blobfeed.workers.api import Hooks, IndexArray, NamedRows, Parameters

from blobfeed import BatchReader, Sample, SampleError
from tests.support.interrupting import interrupts_in

from .in_process import SAMPLES, Broken, BrokenRows, check_labels, large, sources

__all__ = ["sources"]


@pytest.mark.parametrize("kind", [Broken, BrokenRows])
def test_an_error_is_the_same_and_its_cause_is_the_exception_itself(kind: type[Broken]) -> None:
    told = []
    for number in (0, 2):
        with BatchReader(kind(), batch_size=4, num_loaders=number, epochs=1) as reader:
            batches = iter(reader)
            good = [next(batches).indices.tolist() for _ in range(7)]
            with pytest.raises(SampleError) as raised:
                next(batches)
            with pytest.raises(SampleError):
                next(batches)
            state = reader.state_dict()
        error = raised.value
        told.append((good, str(error), error.index, error.path, repr(error.__cause__), state))
        if not number:
            assert isinstance(error.__cause__, ValueError)
            frames = list(iterate_traceback(error.__cause__))
            assert frames[-1] == "read"  # a debugger gets to the user's own frame
    assert told[0] == told[1]


class Picky(Exception):
    """Cannot be made by its `args` alone."""

    def __new__(cls, *args: object, place: int) -> Picky:
        return super().__new__(cls, *args, place)

    def __init__(self, *args: object, place: int) -> None:
        super().__init__(*args, place)


@pytest.mark.parametrize(
    ("kind", "args", "given", "text"),
    [
        (Picky, ("odd",), {"place": 1}, "odd"),
        (UnicodeDecodeError, ("ascii", b"a", 0, 1, "odd"), {}, "byte 0x61 in position 0: odd"),
        (FileNotFoundError, (2, "no", "a.npy"), {}, "a.npy"),
    ],
)
def test_an_error_comes_again_with_the_text_of_its_cause(kind: Any, args: Any, given: Any, text: str) -> None:
    def decode(sample: Sample, rng: np.random.Generator) -> Sample:
        if sample.index:
            raise kind(*args, **given)
        return sample

    with BatchReader({"arrays": {"data": np.arange(8.0)}}, batch_size=4, num_loaders=0, decode=decode) as reader:
        batches = iter(reader)
        for _ in range(3):
            with pytest.raises(SampleError, match="sample 1 ") as raised:
                next(batches)
            assert text in str(raised.value.__cause__)


def iterate_traceback(error: BaseException) -> Iterator[str]:
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame.f_code.co_name
        traceback = traceback.tb_next


# ---- Ctrl-C


class Interrupted(Broken):
    """Ctrl-C falls into the reading of sample 11, once."""

    def __init__(self) -> None:
        super().__init__()
        self.interrupts = 1

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        for row, index in enumerate(indices.tolist()):
            if index == 11 and self.interrupts:
                self.interrupts = 0
                signal.raise_signal(signal.SIGINT)
            out["data"][row], out["label"][row] = index, index  # type: ignore[index]


def test_after_ctrl_c_the_same_batch_comes() -> None:
    with BatchReader(Interrupted(), batch_size=4, num_loaders=0, epochs=1) as reader:
        batches, seen = iter(reader), []
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                seen += check_labels(next(batches))
        assert len(seen) < 12
        for batch in batches:
            seen += check_labels(batch)
    assert seen == [*range(SAMPLES)]


def test_a_loop_begun_anew_after_ctrl_c_has_the_next_epoch_alone() -> None:
    settings: dict[str, Any] = {"batch_size": 4, "num_loaders": 0, "epochs": 1, "last_batch": "partial"}
    with BatchReader(Interrupted(), **settings) as reader:
        with pytest.raises(KeyboardInterrupt):
            list(reader)
        again = list(reader)
        assert [label for batch in again for label in check_labels(batch)] == [*range(SAMPLES)]
        assert {batch.epoch for batch in again} == {1}
        assert reader.state_dict()["position"] == 2 * SAMPLES


def twice(batch: Any) -> None:
    batch["data"] *= 2


def test_after_ctrl_c_in_a_hook_that_changes_batches_in_place_none_is_changed_again(sources: dict[str, Any]) -> None:
    interrupts = [1]

    def postprocess(batch: Any) -> None:
        twice(batch)
        if batch["label"][0] == 12 and interrupts:
            interrupts.clear()
            signal.raise_signal(signal.SIGINT)

    with BatchReader(sources["arrays"], postprocess=postprocess, batch_size=4, num_loaders=0, epochs=1) as reader:
        loop, got = iter(reader), list[Any]()
        with pytest.raises(KeyboardInterrupt):
            got.extend(loop)
        got.extend(loop)
    for number, batch in enumerate(got):
        assert batch.number == number
        np.testing.assert_array_equal(batch["data"], 2 * large(SAMPLES)[batch["label"]])
    assert len(got) == 11


@pytest.mark.parametrize(("hooks", "factor"), [(Hooks(), 1), (Hooks(postprocess=twice), 2)])
def test_ctrl_c_at_any_line_loses_no_batch_and_spoils_none(sources: dict[str, Any], hooks: Hooks, factor: int) -> None:
    given = {
        "source": sources["arrays"],
        "batch_size": 4,
        "num_loaders": 0,
        "epochs": 8,
        "last_batch": "partial",
    }
    expected = factor * large(SAMPLES)
    with open_pipeline(Parameters(**given), hooks) as pipeline:
        from blobfeed.readers.delivery import NamedBatches, make_tops

        batches = NamedBatches(pipeline, make_tops(pipeline.specs, pipeline.parameters, Path()))
        assert (pipeline.peek().make is not None) is (factor == 1)
        for number in range(80):
            interrupts_in(number + 1, batches.next, "pipeline", "delivery")
            batch = batches.next()
            batches.delivery.before = None
            assert batch.number == number
            np.testing.assert_array_equal(batch["data"], expected[batch["label"]])
