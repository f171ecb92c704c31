"""The readers' parameters as keyword arguments: what a type checker, an editor and `help` know of them."""

from __future__ import annotations

import inspect
import pydoc
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import mypy.api
import pytest
from blobfeed.readers.async_reader import AsyncReaderOptions, AsyncReaderParameters
from blobfeed.workers.api import FOR_LAYERS, Parameters, ReaderParameters, SharedParameters

from blobfeed import BatchReader, JaxDataset

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("struct", "keywords", "different"),
    [
        (Parameters, ReaderParameters, {"source", *FOR_LAYERS}),
        (AsyncReaderOptions, AsyncReaderParameters, set(SharedParameters.__annotations__)),
    ],
)
def test_the_keywords_are_the_parameters(struct: type, keywords: type, different: set[str]) -> None:
    checked, known = get_type_hints(struct, include_extras=True), get_type_hints(keywords)
    assert set(checked) ^ set(known) == different
    for name in set(checked) & set(known):
        wanted, given = _members(checked[name]), _members(known[name])
        assert wanted <= given or Any in wanted, f"{name}: {checked[name]} is checked, {known[name]} is promised"


def _members(kind: Any) -> set[Any]:
    """The members of a union, as what a user writes: a mapping for a struct, a sequence for a tuple."""
    if get_origin(kind) in (Union, types.UnionType):
        return set().union(*map(_members, get_args(kind)))
    if get_origin(kind) is Annotated:
        return _members(get_args(kind)[0])
    if get_origin(kind) in (tuple, Sequence):
        return {Sequence}
    if get_origin(kind) in (dict, Mapping) or (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return {Mapping}
    if get_origin(kind) is Literal:
        return {Literal[value] for value in get_args(kind)}
    return {kind}


@pytest.mark.parametrize("reader", [BatchReader, JaxDataset])
def test_help_shows_every_parameter_with_its_default(reader: Callable[..., object]) -> None:
    shown = inspect.signature(reader).parameters
    assert set(ReaderParameters.__annotations__) <= set(shown)
    assert shown["batch_size"].default is inspect.Parameter.empty
    assert [shown[name].default for name in ("num_loaders", "epochs", "last_batch")] == ["auto", 1, "partial"]
    one_screen, _, _ = pydoc.plain(pydoc.render_doc(reader)).partition("Method resolution order")
    assert one_screen.count("\n") <= 40
    assert "batch_size, num_loaders='auto'" in one_screen


_PROGRAM = """
import numpy as np
from typing import Any
from blobfeed import AsyncReader, BatchReader, JaxDataset, MultiProcessInputLayer, Sample

reader = BatchReader({"npy": {"data": "x.npy"}}, batch_size=4, transform={"scale": 0.5}, tops="data")
for batch in reader:
    mean: float = (batch["data"] / 255).mean()

class Noisy(MultiProcessInputLayer):
    extra_parameters = {"strength": 0.1}

    def decode(self, sample: Sample, rng: np.random.Generator) -> object:
        noise = rng.normal(0, self.extra["strength"], sample["data"].shape)
        return {"data": (sample["data"] / 255 + noise).astype("float32"), "label": sample["label"] * 2}
"""

_WRONG = {
    'BatchReader({"npy": {"data": "x.npy"}}, batchsize=4)': "batchsize",
    'JaxDataset({"npy": {"data": "x.npy"}}, batch_size=4, shufle=True)': "shufle",
    'BatchReader({"npy": {"data": "x.npy"}}, batch_size=4, last_batch="keep")': "last_batch",
    'BatchReader({"npy": {"data": "x.npy"}})': 'Missing named argument "batch_size"',
    'AsyncReader(hdf5_path="x.h5", njobs=2)': "njobs",
}


@pytest.mark.integration
@pytest.mark.timeout(900)  # as long as `make types` takes on a busy machine, if that has left no cache
def test_mypy_takes_what_is_right_and_refuses_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM + "\n".join(_WRONG) + "\n")
    monkeypatch.chdir(tmp_path)
    # With the options and the cache of `make types`: what that has read is not read again, which takes 20 s.
    shared = [f"--config-file={CHECKOUT / 'pyproject.toml'}", f"--cache-dir={CHECKOUT / '.mypy_cache'}"]
    said, failed, _ = mypy.api.run([*shared, "--no-color-output", str(program)])
    assert not failed
    errors = [line for line in said.splitlines() if ": error:" in line]
    first = _PROGRAM.count("\n") + 1
    assert [int(line.split(":")[1]) for line in errors] == list(range(first, first + len(_WRONG))), said
    for line, word in zip(errors, _WRONG.values(), strict=True):
        assert word in line
