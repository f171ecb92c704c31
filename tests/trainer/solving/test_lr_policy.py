"""Learning-rate policies where no golden run shows them: at the ends of their range, and with fields missing."""

from __future__ import annotations

import math

import pytest
from blobfeed.trainer.prototxt import SolverParameter, message_class
from blobfeed.trainer.solving import learning_rate

BASE, GAMMA, POWER, LAST = 0.5, 0.75, 2.0, 1000


def solver(policy: str, **fields: object) -> SolverParameter:
    message: SolverParameter = message_class(SolverParameter)(
        lr_policy=policy, base_lr=BASE, gamma=GAMMA, power=POWER, max_iter=LAST, **fields
    )
    return message


def test_the_rate_is_0_where_the_formula_has_no_number() -> None:
    assert learning_rate(solver("sigmoid", stepsize=100_000), 0) == pytest.approx(0)
    past_the_end = solver("poly")
    past_the_end.power = 0.9
    assert learning_rate(past_the_end, LAST + 1) == 0


def test_a_rate_that_grows_past_all_numbers_is_infinite_as_in_caffe() -> None:
    growing = solver("exp")
    growing.gamma = 2.0
    assert learning_rate(growing, 1023) == BASE * 2.0**1023
    assert learning_rate(growing, 1024) == math.inf
