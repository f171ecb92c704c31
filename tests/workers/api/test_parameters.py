from __future__ import annotations

import json
from collections import UserDict, UserList

import numpy as np
import pytest
import yaml
from blobfeed.layers.param_str import parse_param_str
from blobfeed.workers.api import check_parameters
from hypothesis import given
from hypothesis import strategies as st

from tests.support.part import examples

_LISTED = UserDict({"mean_value": UserList([1, 2, 3])})
_LEAST = {"source": {"hdf5": {"path": "train.h5"}}, "batch_size": 4}


def test_the_least_that_is_needed_gives_every_default() -> None:
    parameters = check_parameters(_LEAST)
    assert (parameters.batch_size, parameters.shuffle, parameters.last_batch) == (4, False, "wrap")


def test_numpys_numbers_and_lists_are_as_good_as_pythons() -> None:
    given = check_parameters(
        {
            "source": {"arrays": {"data": (data := np.zeros((4, 3))), "one": (one := np.ones(1))}},
            "batch_size": np.int64(32),
            "shuffle": np.bool_(True),
            "tops": np.array(["data", "one"]),
            "transform": {"mean_value": np.array([1, 2, 3.0]), "scale": np.float32(0.5)},
            "max_shapes": {"data": np.array([3, 4]), "one": (np.int64(1),)},
        }
    )
    assert (given.batch_size, given.shuffle, given.tops) == (32, True, ("data", "one"))
    assert type(given.batch_size) is int
    assert (given.transform.mean_value, given.transform.scale) == ((1, 2, 3), 0.5)
    assert given.max_shapes == {"data": (3, 4), "one": (1,)}
    assert given.source is not None
    assert given.source["arrays"]["data"] is data
    assert given.source["arrays"]["one"] is one
    assert check_parameters({**_LEAST, "transform": {"mean_value": np.float32(2)}}).transform.mean_value == (2,)
    assert check_parameters({**_LEAST, "sampler": data}).sampler is data


def test_mappings_and_lists_of_another_type_as_omegaconfs_are_as_good_as_pythons() -> None:
    sources = UserList([UserDict({"npy": {"data": UserList(["a.npy", "b.npy"])}})])
    given = check_parameters(
        UserDict({"source": {"concat": sources}, "batch_size": 4, "tops": UserList(["data"]), "transform": _LISTED})
    )
    assert given.source == {"concat": [{"npy": {"data": ["a.npy", "b.npy"]}}]}
    assert (given.tops, given.transform.mean_value) == (("data",), (1, 2, 3))


def test_a_torch_device_is_as_good_as_its_text() -> None:
    device = type("device", (), {"__module__": "torch", "__str__": lambda self: "cuda:1"})
    assert check_parameters({**_LEAST, "device": device()}).device == "cuda:1"


def test_one_top_and_one_mean_need_no_list_around_them() -> None:
    parameters = check_parameters({**_LEAST, "tops": "data", "transform": {"mean_value": 128}})
    assert parameters.tops == ("data",)
    assert parameters.transform.mean_value == (128.0,)


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.floats(-1e6, 1e6) | st.text("abcN: ', 10", max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
    max_leaves=6,
)
_MAPPINGS = st.dictionaries(st.text("abcdef", min_size=1), _PLAIN, max_size=4)


@examples(60)
@given(_MAPPINGS)
def test_yaml_json_and_a_python_dict_say_the_same(values: dict[str, object]) -> None:
    assert parse_param_str(json.dumps(values)) == values
    assert parse_param_str(repr(values)) == values
    assert parse_param_str(yaml.safe_dump(values)) == values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a: 1e-3}", 1e-3),
        ("a: 1e-3", 1e-3),
        ("a: .5E+2", 50.0),
        ("a: None", None),
        ("{'a': (1, 2)}", (1, 2)),
        ("{'a': True}", True),
        ('{"a": true}', True),
        ('{\n\t"a": true\n}', True),
        ('{"a": "\\ud83d\\ude00"}', "\U0001f600"),
        ("a: 1e", "1e"),
        ("a: Nonesuch", "Nonesuch"),
    ],
)
def test_plain_values_are_read_as_their_writer_meant_them(text: str, value: object) -> None:
    assert parse_param_str(text) == {"a": value}


def test_a_bare_path_is_an_hdf5_source_as_caffes_own_layer_takes_it() -> None:
    assert check_parameters({"source": "train.txt", "batch_size": 1}).source == {"hdf5": {"path": "train.txt"}}


def test_a_key_may_replace_one_that_is_merged() -> None:
    merged = parse_param_str("a: &a {x: 1, y: 2}\nb: &b {<<: *a, x: 3}\nc: {<<: *b, y: 4}")
    assert (merged["b"], merged["c"]) == ({"x": 3, "y": 2}, {"x": 3, "y": 4})
