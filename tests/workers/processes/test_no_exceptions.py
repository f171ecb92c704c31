"""User code in a loader raises what is no Exception: the error names it, and the loader lives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from blobfeed.workers.base.errors import SampleError, SourceError

from blobfeed import BatchReader

ROWS = {"arrays": {"data": np.arange(16.0, dtype=np.float32)}}


class Enough(BaseException):
    """Of the user's own, as frameworks have them to leave deep calls."""


def _strike(error: type[BaseException]) -> None:
    if os.environ.get("BLOBFEED_ROLE") == "loader":
        raise error("no more of these")


def _decode(error: type[BaseException]) -> Callable[..., object]:
    def decode(sample: dict[str, object], rng: object) -> object:
        if sample.index == 5:  # type: ignore[attr-defined]
            _strike(error)
        return sample["data"]

    return decode


RAISED = [KeyboardInterrupt, GeneratorExit, Enough]


def _assert_named(caught: pytest.ExceptionInfo[BaseException], error: type[BaseException]) -> None:
    text = str(caught.value)
    assert f"{error.__name__}: no more of these" in text
    assert "died" not in text
    told, cause = "".join(getattr(caught.value, "__notes__", ())), caught.value.__cause__
    assert cause is not None
    told += "".join(getattr(cause, "__notes__", ()))
    assert "in _strike" in told


@pytest.mark.parametrize("error", RAISED)
def test_a_decode_hook(error: type[BaseException]) -> None:
    with (
        BatchReader(ROWS, batch_size=4, num_loaders=1, epochs=1, decode=_decode(error)) as reader,
        pytest.raises(SampleError) as caught,
    ):
        list(reader)
    assert caught.value.index == 5
    _assert_named(caught, error)


def test_a_sample_that_does_so_is_replaced_if_bad_ones_are() -> None:
    decode = _decode(Enough)
    with BatchReader(ROWS, batch_size=4, num_loaders=1, epochs=1, decode=decode, on_error="replace") as reader:
        rows = np.concatenate([batch["data"] for batch in reader])
    (changed,) = np.flatnonzero(rows != ROWS["arrays"]["data"])
    assert changed == 5


def test_a_postprocess_hook() -> None:
    with (
        BatchReader(ROWS, batch_size=4, num_loaders=1, epochs=1, postprocess=lambda _: _strike(Enough)) as reader,
        pytest.raises(SampleError) as caught,
    ):
        list(reader)
    _assert_named(caught, Enough)


def test_a_sampler() -> None:
    def sampler(epoch: int, samples: int, rng: np.random.Generator) -> Iterator[int]:
        if epoch:
            _strike(Enough)
        return iter(range(samples))

    with (
        BatchReader(ROWS, batch_size=4, num_loaders=1, epochs=2, sampler=sampler) as reader,
        pytest.raises(SourceError) as caught,
    ):
        list(reader)
    _assert_named(caught, Enough)
