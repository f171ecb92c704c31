"""User code in a loader raises what is no Exception: the error names it, and the loader lives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from blobfeed import BatchReader, SampleError, SourceError
from tests.support.part import some_of

ROWS = {"arrays": {"data": np.arange(16.0, dtype=np.float32)}}


class Enough(BaseException):
    """Of the user's own, as frameworks have them to leave deep calls."""


def _strike(error: type[BaseException]) -> None:
    if os.environ.get("BLOBFEED_ROLE") == "loader":
        raise error("no more of these")


def _hook(name: str, error: type[BaseException] = Enough) -> dict[str, Any]:
    def decode(sample: Any, rng: object) -> object:
        if sample.index == 5:
            _strike(error)
        return sample["data"]

    def sampler(epoch: int, samples: int, rng: np.random.Generator) -> Iterator[int]:
        if epoch:
            _strike(error)
        return iter(range(samples))

    return {name: {"decode": decode, "postprocess": lambda _: _strike(error), "sampler": sampler}[name]}


@pytest.mark.parametrize(
    ("hook", "error"),
    some_of(
        [
            ("decode", KeyboardInterrupt),
            ("decode", GeneratorExit),
            ("postprocess", Enough),
            ("decode", Enough),
            ("sampler", Enough),
        ],
        2,
    ),
)
def test_the_hook_and_its_line_are_named(hook: str, error: type[BaseException]) -> None:
    with (
        BatchReader(ROWS, batch_size=4, num_loaders=1, epochs=2, **_hook(hook, error)) as reader,
        pytest.raises(SourceError if hook == "sampler" else SampleError) as caught,
    ):
        list(reader)
    if hook == "decode":
        assert caught.value.index == 5  # type: ignore[attr-defined]
    text, cause = str(caught.value), caught.value.__cause__
    assert f"{error.__name__}: no more of these" in text
    assert "died" not in text
    assert "in _strike" in "".join(note for each in (caught.value, cause) for note in getattr(each, "__notes__", ()))


def test_a_sample_that_does_so_is_replaced_if_bad_ones_are() -> None:
    with BatchReader(ROWS, batch_size=4, num_loaders=1, epochs=1, on_error="replace", **_hook("decode")) as reader:
        rows = np.concatenate([batch["data"] for batch in reader])
    (changed,) = np.flatnonzero(rows != ROWS["arrays"]["data"])
    assert changed == 5
