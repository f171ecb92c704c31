from __future__ import annotations

import json
from collections import UserDict, UserList
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml
from blobfeed.workers.base.checks import check_options
from blobfeed.workers.base.errors import ParameterError
from blobfeed.workers.base.param_str import parse_param_str
from blobfeed.workers.base.parameters import Parameters, check_parameters
from hypothesis import given, settings
from hypothesis import strategies as st

_LISTED = UserDict({"mean_value": UserList([1, 2, 3])})
_LEAST = {"source": {"hdf5": {"path": "train.h5"}}, "batch_size": 4}


def _message(**values: object) -> str:
    with pytest.raises(ParameterError) as caught:
        check_parameters({**_LEAST, **values}, "param_str")
    return str(caught.value)


def test_the_least_that_is_needed_gives_every_default() -> None:
    parameters = check_parameters(_LEAST)
    assert (parameters.batch_size, parameters.shuffle, parameters.last_batch) == (4, False, "wrap")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"batch_size": "4"}, "'batch_size' is '4': expected a whole number >= 1"),
        ({"batch_size": True}, "'batch_size' is True: expected a whole number >= 1"),
        ({"batch_size": 0}, "'batch_size' is 0: expected a whole number >= 1"),
        ({"num_loaders": "many"}, "'num_loaders' is 'many': expected a whole number >= 0 or 'auto'"),
        ({"shuffle": "chunks"}, "'shuffle' is 'chunks': expected true or false or 'chunk'"),
        ({"last_batch": "keep"}, "'last_batch' is 'keep': expected 'drop' or 'partial' or 'wrap'"),
        ({"timeout_s": 0}, "'timeout_s' is 0: expected a number > 0"),
        ({"rand_skip": 10**30}, f"'rand_skip' is {10**30}: expected at most"),
        ({"rank": 0, "world_size": 10**20}, f"'world_size' is {10**20}: expected at most"),
        ({"seed_globals": "yes"}, "'seed_globals' is 'yes': expected true or false"),
        ({"tops": 3}, "'tops' is 3: expected a list, each item text"),
        ({"source": 3}, "'source' is 3: expected a mapping of names to values"),
        ({"transform": {"scale": "x"}}, "'transform.scale' is 'x': expected a number"),
        ({"transform": {"mean_value": [1, "x"]}}, "'transform.mean_value[1]' is 'x': expected a number"),
        ({"max_shapes": {"data": [3, "x"]}}, "'max_shapes' is {'data': [3, 'x']}: expected a mapping of names"),
        ({"cache": {"path": "c"}}, "'cache.size_limit' is missing: expected a whole number >= 1"),
        ({"transform": {"scale": float("nan")}}, "'transform.scale' has nan: expected finite numbers"),
        ({"transform": {"mean_value": [1, float("inf")]}}, "'transform.mean_value' has inf: expected finite numbers"),
        ({"tops": []}, "'tops' is []: expected one name or more"),
        ({"tops": ["data", "data"]}, "'tops' is ['data', 'data']: expected each name once"),
        ({"tops": ["x", "x_lengths"], "pad": {}}, "'tops' has 'x_lengths', and 'pad' makes a top of that name: leave"),
        (
            {"tops": ["x_samples"], "concatenate": ["x"]},
            "'tops' has 'x_samples', and 'concatenate' makes a top of that",
        ),
        ({"pad": 3}, "'pad' is 3: expected a mapping with keys among value, to_multiple_of"),
    ],
)
def test_a_wrong_value_is_named_with_its_key_and_what_is_allowed(values: dict[str, Any], expected: str) -> None:
    message = _message(**values)
    assert expected in message
    assert message.startswith("param_str: ")


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


def test_an_unknown_key_is_named_with_the_nearest_five_or_all_that_are_known() -> None:
    message = _message(batchsize=3)
    assert (
        "unknown parameter 'batchsize' (did you mean 'batch_size'?); the nearest known ones are batch_size, " in message
    )
    listed = message.rpartition("are ")[2].split(", ")
    assert len(listed) == 5
    assert set(listed) < set(Parameters.__struct_fields__)
    message = _message(xyzzy=3)
    assert all(name in message for name in Parameters.__struct_fields__)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("crop_size", "(it belongs in transform: transform={'crop_size': …})"),
        ("mean_file", "(it belongs in transform: transform={'mean_file': …})"),
        ("drop_last", "(here it is last_batch='drop')"),
        ("num_workers", "(here it is num_loaders)"),
        ("collate_fn", "(here a postprocess hook gets the whole batch)"),
        ("worker_init_fn", "(not needed: loaders are seeded"),
        ("pin_memory", "(not needed: a CUDA device gets"),
    ],
)
def test_a_name_from_elsewhere_is_explained(name: str, hint: str) -> None:
    assert f"unknown parameter {name!r} {hint}" in _message(**{name: 1})


def test_a_name_from_elsewhere_is_not_explained_where_the_hint_would_be_wrong() -> None:
    assert "(it belongs" not in _message(pad={"scale": 1})


def test_an_unknown_key_inside_a_parameter_is_named_with_its_place() -> None:
    assert "transform: unknown parameter 'mirrored' (did you mean 'mirror'?)" in _message(transform={"mirrored": 1})


def test_a_missing_batch_size_says_what_is_expected() -> None:
    with pytest.raises(ParameterError, match="'batch_size' is missing: expected a whole number >= 1"):
        check_parameters({"source": {"hdf5": {"path": "x"}}})


@pytest.mark.parametrize(
    "values",
    [
        {"rank": 0},
        {"world_size": 2},
        {"rank": 2, "world_size": 2},
        {"mix": [{"hdf5": {"path": "x"}}]},
        {"source": None},
        {"transform": {"mean_value": [1], "mean_file": "mean.npy"}},
        {"transform": {"force_color": True, "force_gray": True}},
        {3: 4},
    ],
)
def test_values_that_do_not_go_together_are_refused(values: dict[Any, Any]) -> None:
    with pytest.raises(ParameterError, match=r"^here: "):
        check_parameters({**_LEAST, **values}, "here")


def test_one_top_and_one_mean_need_no_list_around_them() -> None:
    parameters = check_parameters({**_LEAST, "tops": "data", "transform": {"mean_value": 128}})
    assert parameters.tops == ("data",)
    assert parameters.transform.mean_value == (128.0,)


def test_options_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(ParameterError, match="expected a mapping of names to values, got 3"):
        check_options(3, Parameters, "parameters")


class _Nested(msgspec.Struct, forbid_unknown_fields=True):
    places: dict[str, tuple[int, ...]] | tuple[int, ...] = ()


def test_a_wrong_value_below_a_key_of_the_users_own_is_shown_with_the_mapping_it_is_in() -> None:
    with pytest.raises(ParameterError, match=r"source x: parameter 'places' is \{'data': \['h'\]\}"):
        check_options({"places": {"data": ["h"]}}, _Nested, "source x")


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.floats(-1e6, 1e6) | st.text("abcN: ', 10", max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
    max_leaves=6,
)
_MAPPINGS = st.dictionaries(st.text("abcdef", min_size=1), _PLAIN, max_size=4)


@settings(max_examples=60)
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


@pytest.mark.parametrize("text", ["", "3", "- a\n- b", "batch_size", "[1, 2]"])
def test_a_param_str_that_is_no_mapping_is_shown_with_an_example(text: str) -> None:
    with pytest.raises(ParameterError, match="expected a mapping such as"):
        parse_param_str(text)


@pytest.mark.parametrize(
    "text",
    ["a: [1", "a: b: c", "\t", "!!python/object/apply:os.getcwd []", "{a: *b}", "{{'a': 1}}", "{a: !!bool maybe}"],
)
def test_a_param_str_that_cannot_be_read_is_shown_with_the_reason(text: str) -> None:
    with pytest.raises(ParameterError, match=r"(?s)^param_str is not valid YAML: .*it reads"):
        parse_param_str(text)


@pytest.mark.parametrize("text", ["{batch_size:4}", "{a: 1, batch_size:4}", "{a: {batch_size:4}}"])
def test_a_colon_without_a_space_is_named(text: str) -> None:
    with pytest.raises(ParameterError, match="'batch_size:4' is one word: write a space after its colon"):
        parse_param_str(text)


def test_a_bare_path_is_an_hdf5_source_as_caffes_own_layer_takes_it() -> None:
    assert check_parameters({"source": "train.txt", "batch_size": 1}).source == {"hdf5": {"path": "train.txt"}}


@pytest.mark.parametrize(
    "text",
    ["{batch_size: 8, batch_size: 4}", '{"batch_size": 8, "a": true, "batch_size": 4}', "batch_size: 8\nbatch_size: 4",
     "{'batch_size': 8, 'mean': (104, 117), 'batch_size': 4}", "source: {hdf5: {batch_size: 8, batch_size: 4}}"],
)  # fmt: skip
def test_a_key_that_is_given_twice_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="the key 'batch_size' is given twice: leave out all but one"):
        parse_param_str(text)


def test_a_key_may_replace_one_that_is_merged() -> None:
    merged = parse_param_str("a: &a {x: 1, y: 2}\nb: &b {<<: *a, x: 3}\nc: {<<: *b, y: 4}")
    assert (merged["b"], merged["c"]) == ({"x": 3, "y": 2}, {"x": 3, "y": 4})
