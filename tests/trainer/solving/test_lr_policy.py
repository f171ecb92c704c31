"""Learning-rate policies where no golden run shows them: at the ends of their range, and with fields missing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from blobfeed.trainer.prototxt.errors import PrototxtError
from blobfeed.trainer.prototxt.prototxt import read_prototxt
from blobfeed.trainer.prototxt.schema import SolverParameter, message_class
from blobfeed.trainer.solving.lr_policy import check_policy, learning_rate

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


def refusal(folder: Path, text: str) -> str:
    (folder / "solver.prototxt").write_text("base_lr: 1\n" + text)
    with pytest.raises(PrototxtError) as caught:
        check_policy(read_prototxt(folder / "solver.prototxt", SolverParameter))
    assert caught.value.line == 2
    return str(caught.value)


def test_an_unknown_policy_is_named_with_the_nearest(tmp_path: Path) -> None:
    assert "lr_policy 'stepp' is not supported (did you mean 'step'?)" in refusal(tmp_path, 'lr_policy: "stepp"')


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ('lr_policy: "step" gamma: 0.1', "needs stepsize"),
        ('lr_policy: "inv"', "needs gamma and power"),
        ('lr_policy: "multistep" gamma: 0.1', "needs stepvalue"),
        ('lr_policy: "poly"', "needs power"),
        ('lr_policy: "step" gamma: 1 stepsize: 0', "stepsize must be at least 1"),
        ('lr_policy: "multistep" gamma: 1 stepvalue: [5, 3]', "stepvalue must rise"),
    ],
)
def test_what_a_policy_needs_is_asked_for(tmp_path: Path, text: str, missing: str) -> None:
    assert missing in refusal(tmp_path, text)
