"""The learning rate as a function of the iteration: Caffe's policies."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable

from ..prototxt import Document, SolverParameter, not_supported

_Policy = Callable[[SolverParameter, int], float]


def _power(base: float, exponent: float) -> float:
    """Return the power as C's pow, which Caffe calls: infinite where Python's overflows."""
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return math.inf


POLICIES: dict[str, tuple[tuple[str, ...], _Policy]] = {
    "fixed": ((), lambda solver, iteration: 1.0),
    "step": (("gamma", "stepsize"), lambda solver, iteration: _power(solver.gamma, iteration // solver.stepsize)),
    "exp": (("gamma",), lambda solver, iteration: _power(solver.gamma, iteration)),
    "inv": (("gamma", "power"), lambda solver, iteration: _power(1 + solver.gamma * iteration, -solver.power)),
    "multistep": (
        ("gamma", "stepvalue"),
        lambda solver, iteration: _power(solver.gamma, bisect.bisect_right(solver.stepvalue, iteration)),
    ),
    # Past max_iter the rate stays 0; Caffe's is then negative, not a number, or grows again.
    "poly": (
        ("power", "max_iter"),
        lambda solver, iteration: _power(max(0.0, 1 - iteration / solver.max_iter), solver.power),
    ),
    "sigmoid": (
        ("gamma", "stepsize"),
        # math.exp overflows above 709; so small a factor is 0 anyway.
        lambda solver, iteration: 1 / (1 + math.exp(min(-solver.gamma * (iteration - solver.stepsize), 700.0))),
    ),
}
"""By name: the fields that it needs, and the factor of base_lr."""


def learning_rate(solver: SolverParameter, iteration: int) -> float:
    """The rate for the update that follows `iteration` updates."""
    _, policy = POLICIES[solver.lr_policy]
    return float(solver.base_lr) * policy(solver, iteration)


def current_step(solver: SolverParameter, iteration: int) -> int:
    """Count how often the policy has lowered the rate after `iteration` updates, as Caffe's .solverstate counts it."""
    last = max(iteration - 1, 0)
    if solver.lr_policy == "step":
        return last // int(solver.stepsize)
    return bisect.bisect_right(solver.stepvalue, last) if solver.lr_policy == "multistep" else 0


def check_policy(solver: Document[SolverParameter]) -> None:
    """Raises PrototxtError for an unknown policy, or one whose fields are missing."""
    message = solver.message
    if message.lr_policy not in POLICIES:
        raise solver.error(not_supported("lr_policy", message.lr_policy, POLICIES), "lr_policy")
    given = {field.name for field, _ in message.ListFields()}
    missing = [field for field in POLICIES[message.lr_policy][0] if field not in given]
    if missing:
        raise solver.error(f"lr_policy {message.lr_policy!r} needs {' and '.join(missing)}", "lr_policy")
    if message.lr_policy == "step" and message.stepsize < 1:
        raise solver.error("stepsize must be at least 1", "stepsize")
    if list(message.stepvalue) != sorted(message.stepvalue):
        raise solver.error(f"stepvalue must rise, got {list(message.stepvalue)}", "stepvalue")
