"""Parses a layer's `param_str`.

Only layers and commands need this, so it is apart from parameters.py, which every process imports: importing PyYAML
takes 10 ms, a twentieth of the time to the first batch.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import yaml

from ..workers.base import ParameterError


class _Loader(yaml.SafeLoader):
    """Safe YAML that also accepts the numbers and None of JSON and Python, and rejects a repeated key.

    PyYAML itself reads 1e-3 and None as text, and keeps the last of two values with the same key.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        _check_once([key.value for key, _ in node.value if key.tag == "tag:yaml.org,2002:str"])
        for key, value in node.value:
            is_plain = isinstance(key, yaml.ScalarNode) and key.style is None
            if is_plain and ":" in key.value and (value.tag, value.value) == ("tag:yaml.org,2002:null", ""):
                raise ValueError(f"{key.value!r} is one word: write a space after its colon")
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile("None$"), ["N"])


def parse_param_str(text: str | Mapping[str, Any], what: str = "param_str") -> dict[str, Any]:
    """Parse a layer's `param_str`: YAML, hence also JSON, or a Python dict of plain values.

    The harness may pass the mapping itself. Raises ParameterError for anything else; `what`: its name in the message.
    """
    if isinstance(text, Mapping):
        return dict(text)
    value = _json_or_python(text)
    if value is None:
        try:
            value = yaml.load(text, _Loader)
        except Exception as error:  # a tag with a wrong value makes PyYAML raise KeyError and others
            raise ParameterError(f"{what} is not valid YAML: {error}; it reads {text!r}") from None
    if not isinstance(value, dict):
        raise ParameterError(
            f"{what}: expected a mapping such as {{source: {{hdf5: {{path: train.h5}}}}, batch_size: 64}}, got {text!r}"
        )
    return value


def _json_or_python(text: str) -> object:
    # Before YAML, which reads the tuple in {'mean_value': (104, 117)} as two keys without an error, and accepts no
    # tabs. JSON before Python, which reads some of JSON's escapes differently.
    if not text.lstrip().startswith("{"):
        return None
    with suppress(ValueError, RecursionError):
        return json.loads(text, object_pairs_hook=_dict_of)
    try:
        tree = ast.parse(text.strip(), mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict):
                _check_once([ast.dump(key) for key in node.keys if key is not None])
        return ast.literal_eval(tree)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # TypeError: {{'a': 1}}
        return None


def _dict_of(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    _check_once([key for key, _ in pairs])
    return dict(pairs)


def _check_once(keys: Sequence[str]) -> None:
    """Raises ValueError for a key that occurs twice."""
    if twice := [key for key in dict.fromkeys(keys) if keys.count(key) > 1]:
        raise ValueError(f"the key {twice[0]!r} is given twice: leave out all but one")
