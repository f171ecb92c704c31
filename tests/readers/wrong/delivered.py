"""Arrays that batches are put into, and what becomes of values on the way."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.catalogue import Scenario, scenario
from tests.support.reader_data import IMAGE

from ..delivery.test_mean_image import MEAN, floats, legacy_shape, new_shape, npy
from .parameters import ARRAYS, IMAGES, asked, read


def into(**given: Any) -> Scenario:
    """Arrays for the tops, of which some do not fit."""
    fitting = {"data": np.zeros((4, *IMAGE), np.float32), "label": np.zeros(4, np.int64)}
    return asked(lambda reader: reader.into(fitting | given))


@scenario
def into_tensor(folder: Path, /, **options: Any) -> Any:
    torch = pytest.importorskip("torch")
    kind = {name: getattr(torch, value) if name == "dtype" else value for name, value in options.items()}
    return into(data=torch.zeros(4, *IMAGE, **kind))(folder)


@scenario
def mean(folder: Path, /, content: bytes | Callable[[Path], object], shape: tuple[int, ...] = MEAN.shape) -> Any:
    """A mean file of such content, for samples of such a shape."""
    write = content if callable(content) else lambda path: path.write_bytes(content)
    write(folder / "mean")
    samples = {"arrays": {"data": np.zeros((2, *shape), np.uint8)}}
    return read(samples, transform={"mean_file": "mean"})(folder)


def uneven(make: Callable[[int], dict[str, Any]], largest: list[int], **parameters: Any) -> Scenario:
    """A hook that makes samples of several sizes."""
    return read(
        ARRAYS, decode=lambda sample, _: make(1 + int(sample["label"])), max_shapes={"data": largest}, **parameters
    )


def put(stored: Any, into: str, **transform: Any) -> Scenario:
    """Samples of one type for an array of another one."""
    return asked(
        lambda reader: reader.into({"data": np.zeros(4, into)}), {"arrays": {"data": stored}}, transform=transform
    )


def _of_objects(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.array([[[print]]], object), allow_pickle=True)


_TWICE = np.zeros(4 * 24, np.float32)
_FIXED = np.zeros((4, *IMAGE), np.float32)
_FIXED.flags.writeable = False
INTO = {
    "a misspelt top": into(dat=_TWICE),
    "nothing": into(label=None),
    "a row too many": into(data=np.zeros((5, *IMAGE), np.float32)),
    "not contiguous": into(data=np.zeros((4, 2, 3, 8), np.float32)[..., ::2]),
    "read-only": into(data=_FIXED),
    "whole numbers for fractions": into(data=np.zeros((4, *IMAGE), np.int64)),
    "one memory for two tops": into(data=_TWICE.reshape(4, *IMAGE), label=_TWICE[:4]),
    "a top without an array": asked(lambda reader: reader.into({"data": _TWICE.reshape(4, *IMAGE)})),
    "a list": asked(lambda reader: reader.into([])),  # type: ignore[arg-type]
    "text that would be cut": asked(lambda reader: reader.into({"name": np.zeros(4, "S3")}), "names.h5", tops=["name"]),
    "meta": into_tensor(device="meta"),
}
_MEAN_BEFORE = npy(np.zeros((2, 6, 7), np.float32))
DELIVERED = {
    "a batch by its number": asked(lambda reader: reader[0]),
    "mean file, text": mean(b"no such thing"),
    "mean file, another shape than its numbers": mean(legacy_shape(1, 2, 3, 5) + floats(MEAN)),
    "mean file, two axes": mean(new_shape(2, 12) + floats(MEAN)),
    "mean file, a cut array": mean(npy(MEAN)[:-1]),
    "mean file, complex": mean(npy(np.zeros((1, 2, 3), "c16"))),
    "mean file, no number": mean(npy(np.full((1, 2, 3), np.nan))),
    "mean file, objects": mean(_of_objects),
    "mean file, absent": mean(lambda path: None),
    "mean file, a FIFO": mean(os.mkfifo),
    "mean file, samples of more channels": mean(_MEAN_BEFORE, (3, 4, 4)),
    "mean file, single numbers": mean(_MEAN_BEFORE, ()),
    "mean file, samples of several sizes": uneven(
        lambda rows: {"data": np.zeros((3, rows, 4))}, [3, 8, 4], pad={}, transform={"mean_file": "mean.npy"}
    ),
    "five means, of the last axis": read(IMAGES, transform={"mean_value": [1, 2, 3, 4, 5]}),
    "a scale of text": read("names.h5", tops=["name"], transform={"scale": 0.5}),
    "pad, a misspelt top": uneven(lambda rows: {"data": np.zeros(rows)}, [8], pad={"value": {"dat": 1}}),
    "pad, a top of one size": uneven(
        lambda rows: {"data": np.zeros(rows), "label": rows}, [8], pad={"value": {"label": 1}}
    ),
    "pad, times": uneven(lambda rows: {"data": np.zeros(rows, "M8[s]")}, [8], pad={}),
    "pad, a top that is called like its lengths": uneven(
        lambda rows: {"data": np.zeros(rows), "data_lengths": rows}, [8], pad={}
    ),
    "no pad": uneven(lambda rows: {"data": np.zeros((rows, 4))}, [8, 4]),
    "pad, a grey image among those with a mean for each colour": uneven(
        lambda rows: {"data": np.zeros((1 if rows == 2 else 3, rows, 4))},
        [3, 8, 4],
        pad={},
        transform={"mean_value": [1, 2, 3]},
    ),
    "into, whole numbers for what is scaled": put(np.arange(8, dtype=np.uint8), "int64", scale=0.5),
    "into, real numbers for complex ones": put(np.zeros(8, np.complex64), "float32"),
}


SCENARIOS: dict[str, Scenario] = {**{f"into, {name}": scenario for name, scenario in INTO.items()}, **DELIVERED}
