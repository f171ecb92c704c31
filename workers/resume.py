"""Where a run stands, in a few plain values, and whether another run can go on from there. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from .errors import ParameterError
from .plan import Plan

State = dict[str, int | str]

_VERSION = 1


def make_state(plan: Plan, taken: int, first_number: int) -> State:
    """The state after `taken` batches of `plan`; `first_number`: batches taken before the plan began."""
    return {
        "version": _VERSION,
        "batches": first_number + taken,
        "position": plan.batches.round_start(taken),
        "samples": plan.recipe.order.samples,
        "seed": plan.parameters.seed,
        "shuffle": str(plan.parameters.shuffle),
        "world_size": plan.parameters.world_size or 1,
    }


def check_state(plan: Plan, state: Mapping[str, object]) -> State:
    """`state` where `plan` can go on from it; raises ParameterError naming what does not fit."""
    ours = make_state(plan, 0, 0)
    if set(state) != set(ours) or state["version"] != _VERSION:
        raise ParameterError(
            f"this is not a state of version {_VERSION} of a pipeline: {dict(state)!r}; expected {', '.join(ours)}"
        )
    for name in ("samples", "seed", "shuffle"):
        if state[name] != ours[name]:
            raise ParameterError(
                f"the state was saved with {name}={state[name]!r}, this pipeline has {name}={ours[name]!r}: "
                "the same batches cannot follow; use the same source and order, or start without the state"
            )
    checked: State = {}
    for name, value in state.items():
        if not isinstance(value, int | str) or type(value) is not type(ours[name]) or str(value).startswith("-"):
            raise ParameterError(f"the state's {name} is {value!r}: expected a value such as {ours[name]!r}")
        checked[name] = value
    return checked
