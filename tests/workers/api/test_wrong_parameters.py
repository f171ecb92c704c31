"""Parameters that are wrong: errors.txt has the words, which name the key, its value and what is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]  # noqa: F401 - not within a test: its import starts a process, uname
import msgspec
import numpy as np
import pytest
from blobfeed.layers.param_str import parse_param_str
from blobfeed.sources import open_source
from blobfeed.workers.api import Parameters, check_options, check_parameters, shown

from tests.support.catalogue import Catalogue, Scenario

_LEAST = {"source": {"hdf5": {"path": "train.h5"}}, "batch_size": 4}


def given(values: dict[Any, Any]) -> Scenario:
    return lambda _: check_parameters({**_LEAST, **values}, "param_str")


def text(param_str: str) -> Scenario:
    return lambda _: parse_param_str(param_str)


class _Nested(msgspec.Struct, forbid_unknown_fields=True):
    places: dict[str, tuple[int, ...]] | tuple[int, ...] = ()


VALUES: dict[str, dict[Any, Any]] = {
    "a number as text": {"batch_size": "4"},
    "true for a number": {"batch_size": True},
    "zero": {"batch_size": 0},
    "a word for a number": {"num_loaders": "many"},
    "a misspelt choice": {"shuffle": "chunks"},
    "an unknown choice": {"last_batch": "keep"},
    "no time": {"timeout_s": 0},
    "a huge number": {"rand_skip": 10**30},
    "yes": {"seed_globals": "yes"},
    "a number for names": {"tops": 3},
    "a number for a source": {"source": 3},
    "a word within a mapping": {"transform": {"scale": "x"}},
    "a word within a list": {"transform": {"mean_value": [1, "x"]}},
    "a word within a shape": {"max_shapes": {"data": [3, "x"]}},
    "a limit is missing": {"cache": {"path": "c"}},
    "nan": {"transform": {"scale": float("nan")}},
    "infinite": {"transform": {"mean_value": [1, float("inf")]}},
    "no names": {"tops": []},
    "a name twice": {"tops": ["data", "data"]},
    "a top that pad makes": {"tops": ["x", "x_lengths"], "pad": {}},
    "a top that concatenate makes": {"tops": ["x_samples"], "concatenate": ["x"]},
    "a number for a mapping": {"pad": 3},
    "a misspelt name": {"batchsize": 3},
    "an unknown name": {"xyzzy": 3},
    "a misspelt name within": {"transform": {"mirrored": 1}},
    "a name of transform within pad": {"pad": {"scale": 1}},
    "a number for a name": {3: 4},
    **{
        f"{name}, a name from elsewhere": {name: 1}
        for name in (
            *("crop_size", "mean_file", "drop_last", "num_workers", "collate_fn", "worker_init_fn", "pin_memory"),
        )
    },
    "a rank without a world": {"rank": 0},
    "a world without a rank": {"world_size": 2},
    "a rank beyond its world": {"rank": 2, "world_size": 2},
    "source and mix": {"mix": [{"hdf5": {"path": "x"}}]},
    "no source": {"source": None},
    "two means": {"transform": {"mean_value": [1], "mean_file": "mean.npy"}},
    "colour and gray": {"transform": {"force_color": True, "force_gray": True}},
}

TEXTS = {
    "nothing": "",
    "a list in brackets": "[1, 2]",
    "an open bracket": "a: [1",
    "two colons": "a: b: c",
    "a tab": "\t",
    "a Python object": "!!python/object/apply:os.getcwd []",
    "an unknown anchor": "{a: *b}",
    "a mapping as key": "{{'a': 1}}",
    "maybe": "{a: !!bool maybe}",
    "no space behind a colon": "{batch_size:4}",
    "no space behind a colon within": "{a: {batch_size:4}}",
    "a key twice": "{batch_size: 8, batch_size: 4}",
    "a key twice in JSON": '{"batch_size": 8, "a": true, "batch_size": 4}',
    "a key twice in lines": "batch_size: 8\nbatch_size: 4",
    "a key twice in Python": "{'batch_size': 8, 'mean': (104, 117), 'batch_size': 4}",
    "a key twice within": "source: {hdf5: {batch_size: 8, batch_size: 4}}",
}

ARRAY = np.random.default_rng(0).random((30, 30))


class _Pairs:
    """A map-style dataset, as torch has it."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, index


class _Streamed(_Pairs):
    """torch's IterableDataset has `__getitem__`, too."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


# What is given in the place of a source: the messages hold a few of the numbers, or none.
SOURCES: dict[str, Any] = {
    "an array": ARRAY,
    "two arrays": (ARRAY, ARRAY),
    "a list of numbers": ARRAY.tolist(),
    "a list of both": [ARRAY, list(range(1000))],
    "a dataset": _Pairs(),
    "a stream": _Streamed(),
}
OPTIONS: dict[str, Any] = {
    "a path": {"hdf5": {"path": ARRAY}},
    "a file of a top": {"npy": {"data": ARRAY}},
    "files of a top": {"npy": {"data": [ARRAY]}},
    "all options": {"hdf5": ARRAY},
    "kinds of sources": {"data": ARRAY, "label": ARRAY},
    "a list of sources": [ARRAY],
}

ERRORS = Catalogue(
    Path(__file__).with_name("errors.txt"),
    {
        **{name: given(values) for name, values in VALUES.items()},
        **{f"param_str, {name}": text(param_str) for name, param_str in TEXTS.items()},
        **{f"{name} as the source": given({"source": source}) for name, source in SOURCES.items()},
        **{
            f"an array as {name}": lambda _, source=source: open_source(source, tops=None, base_dir=Path())  # type: ignore[misc]
            for name, source in OPTIONS.items()
        },
        "data as a path": lambda _: open_source({"hdf5": {"path": "1.5," * 30_000}}, tops=None, base_dir=Path()),
        "no batch size": lambda _: check_parameters({"source": {"hdf5": {"path": "x"}}}),
        "options that are no mapping": lambda _: check_options(3, Parameters, "parameters"),
        "a wrong value below a key of the user's own": lambda _: check_options(
            {"places": {"data": ["h"]}}, _Nested, "source x"
        ),
    },
)


@pytest.mark.parametrize("name", ERRORS.scenarios)
def test_the_error_is_the_one_in_the_catalogue(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    ERRORS.check(name, tmp_path, update=pytestconfig.getoption("--update"))


def test_the_catalogue_has_these_scenarios_and_no_others() -> None:
    ERRORS.check_names()


def test_what_is_short_is_shown_as_it_is() -> None:
    for value in ("train.h5", 3, -1.5, None, True, ["a", "b"], {"limit": 3, "path": "a.h5"}, (1, 2), b"x"):
        assert shown(value) == repr(value)
