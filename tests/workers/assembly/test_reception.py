"""Which of the assembler's messages the trainer still wants."""

from __future__ import annotations

import pickle

import pytest
from blobfeed.workers.assembly import Reception
from blobfeed.workers.transport import Announce, End, Failure


def test_what_is_new_is_wanted_until_it_is_accepted_and_then_counted_as_dropped() -> None:
    reception, announce = Reception(), Announce(0, 0)
    assert reception.wants(announce) is announce
    assert reception.wants(announce) is announce
    assert reception.accept(0)
    assert not reception.accept(0)
    assert reception.held == {0}
    assert reception.wants(announce) is None
    assert reception.wants(announce) is None
    assert reception.dropped == 2


def test_of_groups_with_gaps_those_up_to_the_last_accepted_one_are_known() -> None:
    """Of a shard that had ended already, the trainer is told nothing."""
    reception = Reception()
    assert [reception.accept(group) for group in (0, 3, 3, 0, 4, 9)] == [True, True, False, False, True, True]
    assert reception.held == {0, 3, 4, 9}
    assert reception.wants(Announce(10, 0)) is not None
    assert [reception.wants(Announce(group, 0)) for group in range(10)] == [None] * 10


@pytest.mark.parametrize("step", [1, 3], ids=["every group", "every third group"])
def test_as_much_is_kept_of_100000_groups_as_of_none(step: int) -> None:
    """Even if groups are left out, as where a stream's shards end."""
    reception = Reception()
    for group in range(0, 100_000, step):
        assert reception.accept(group)
        reception.release(group)
    assert len(pickle.dumps(reception)) < len(pickle.dumps(Reception())) + 50


def test_an_end_is_wanted_if_it_is_that_of_the_present_loop() -> None:
    reception = Reception()
    reception.ends = 1
    assert [reception.wants(End(number)) for number in range(3)] == [None, End(1), None]
    assert reception.dropped == 2


@pytest.mark.parametrize("last", [End(), Failure("SampleError", "broken")], ids=["end", "failure"])
def test_the_last_message_is_wanted(last: End | Failure) -> None:
    assert Reception().wants(last) is last
