"""Checks a state that a user wants to go on from."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ..base import ParameterError

State = dict[str, int | str]


def check_state(state: Mapping[str, object], ours: State, fixed: tuple[str, ...], changed_data: str) -> State:
    """Check that `state` has the names and types of `ours` and its values of `fixed`, and return it.

    Raises ParameterError, also for other `data`, unless `changed_data` is "accept".
    """
    given = dict(state) if isinstance(state, Mapping) else {}
    version, expected = given.get("version"), int(ours["version"])
    if isinstance(version, int) and 0 < version < expected:
        raise ParameterError(
            f"the state has version={version}, as an earlier blobfeed saved it; this one reads version={expected}: "
            "go on with the blobfeed that saved it, or start without the state"
        )
    if "weights" in given and "weights" not in ours and given.pop("weights"):
        raise ParameterError(
            "the state holds weights that set_weights gave, as an earlier blobfeed saved them; this one names a "
            "digest: go on with the blobfeed that saved it, or start without the state"
        )
    theirs, own = (next((name for name in _WAYS if name in of), "") for of in (given, ours))
    if theirs and theirs != own:
        raise ParameterError(
            f"the state was saved with {_WAYS[theirs]} ({theirs}={given[theirs]!r}), this pipeline has {_WAYS[own]} "
            f"({own}={ours[own]!r}): the same batches cannot follow; use the same source and order, or start without "
            "the state"
        )
    if given.keys() != ours.keys() or version != expected:
        raise ParameterError(
            f"this is no state of such a pipeline: {state!r}; expected the names {', '.join(ours)} "
            f"and version {expected}"
        )
    checked: State = {}
    for name, value in given.items():
        if not isinstance(value, int | str) or type(value) is not type(ours[name]) or str(value).startswith("-"):
            raise ParameterError(f"the state's {name} is {value!r}: expected a value such as {ours[name]!r}")
        checked[name] = value
    for name in fixed:
        if checked[name] != ours[name]:
            raise ParameterError(
                f"the state was saved with {name}={checked[name]!r}, this pipeline has {name}={ours[name]!r}: "
                "the same batches cannot follow; use the same source and order, or start without the state"
            )
    if changed_data == "refuse" and "data" in checked and checked["data"] != ours["data"]:
        raise ParameterError(
            f"the data have changed since the state was saved: {_changes(str(checked['data']), str(ours['data']))}; "
            "give changed_data='accept' to go on in the same order with the data as they are, or start without it"
        )
    return checked


def _changes(then: str, now: str) -> str:
    """The parts of two identities that differ, in words."""
    try:
        before, after = dict(json.loads(then)), dict(json.loads(now))
    except (ValueError, TypeError):
        return f"it has data={then!r}, expected {now!r}"
    names = [name for name in dict.fromkeys((*before, *after)) if before.get(name) != after.get(name)]
    source = f"source {after.get('source')!r}: "
    return source + "; ".join(f"{name}: {before.get(name)} then, {after.get(name)} now" for name in names)


_WAYS = {"sampler": "a sampler", "shards": "a stream", "shuffle": "no sampler"}
"""The kind of a supply, by a name that occurs only in states of that kind."""
