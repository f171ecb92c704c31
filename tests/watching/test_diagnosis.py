"""One sentence for every interval, with the right one to blame."""

from __future__ import annotations

import pytest
from blobfeed.watching import STALL_SHARE, Blame, Interval, PresentSample, diagnose
from blobfeed.workers.transport import Activity
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

pytestmark = pytest.mark.pure

CORES = 8


def spent(**seconds: float) -> tuple[float, ...]:
    return tuple(seconds.get(activity.name.lower(), 0.0) for activity in Activity)


STARVED = Interval(
    seconds=10.0,
    batches=100,
    samples=6400,
    stall_s=5.0,
    waiting_s=0.1,
    begun=True,
    loaders=2,
    slots=5,
    slots_full=0,
    deaths=0,
    last_death="",
    spent_s=spent(reading=1.6, decoding=18.4),
    measured_s=19.0,
    cpu_s=18.9,
    delay_s=0.05,
    median_s=0.003,
    slowest=PresentSample(0.01, 3, 1, "a.jpg", 1, Activity.DECODING),
    present=PresentSample(0.002, 7, 1, "", 2, Activity.DECODING),
    in_process=False,
)
SLOW = PresentSample(0.6, 4711, 1, "big.jpg", 1, Activity.DECODING)


@pytest.mark.parametrize(
    ("seen", "blame", "words"),
    [
        (STARVED, Blame.LOADERS, ["decode takes 92 % of their time", "waits 50 % of the time", "2 more loaders"]),
        (
            replace(STARVED, stall_s=0.2, slots_full=4),
            Blame.TRAINER,
            ["the net is the bottleneck: it waits 2.0 % of the time (4 of 5 slots", "so faster data gain nothing"],
        ),
        (
            replace(STARVED, stall_s=0.05, in_process=True),
            Blame.TRAINER,
            ["the net is the bottleneck: reading takes 0.5 % of each step, so faster data gain nothing"],
        ),
        (
            replace(STARVED, stall_s=4.2, in_process=True),
            Blame.LOADERS,
            ["the trainer makes its batches itself, which takes 42 % of the time: loaders would do that beside it"],
        ),
        (
            replace(STARVED, spent_s=spent(reading=18.0, decoding=2.0), cpu_s=3.8),
            Blame.STORAGE,
            ["storage is the bottleneck", "80 % of read is waiting", "more loaders"],
        ),
        (replace(STARVED, cpu_s=3.8), Blame.STORAGE, ["decode waits for something else"]),
        (replace(STARVED, cpu_s=9.0, delay_s=9.0), Blame.CORES, ["get no core 47 % of their time"]),
        (replace(STARVED, slowest=SLOW), Blame.SAMPLE, ["takes 200 times the median", "index 4711, big.jpg"]),
        (replace(STARVED, slowest=replace(SLOW, rows=8, where="")), Blame.SAMPLE, ["one of 8 from index 4711 on"]),
        (replace(STARVED, deaths=3, last_death="loader 4, killed"), Blame.DEATHS, ["3 in 10 s", "loader 4, killed"]),
        (
            replace(STARVED, present=replace(SLOW, seconds=9.0), waiting_s=8.0),
            Blame.STUCK,
            ["loader 1 is stuck", "9.0 s, 3,000 times the median", "index 4711, big.jpg"],
        ),
        (replace(STARVED, spent_s=spent(waiting=16.0, decoding=4.0)), Blame.PREFETCH, ["no task 80 %"]),
        (
            replace(STARVED, spent_s=spent(waiting=8.0, sampling=8.0, decoding=4.0)),
            Blame.SAMPLER,
            ["takes 80 % of the time to draw epochs"],
        ),
        (replace(STARVED, begun=False, seconds=0.5), Blame.STARTING, ["no batch yet", "2 loaders"]),
    ],
)  # fmt: skip
def test_the_one_to_blame_is_named_with_its_reason(seen: Interval, blame: Blame, words: list[str]) -> None:
    found = diagnose(seen, CORES)
    assert found.blame is blame
    for text in words:
        assert text in found.sentence


def test_no_more_loaders_are_advised_than_cores_are_free() -> None:
    assert "1 more loader," in diagnose(STARVED, 4).sentence
    assert "no core is free of 2" in diagnose(STARVED, 2).sentence


seconds = st.floats(0, 1e6)
slow_samples = st.none() | st.builds(
    PresentSample, seconds, st.integers(-1, 10**9), st.integers(1, 64), st.text(max_size=20), st.integers(1, 99),
    st.sampled_from(list(Activity)[3:6]),
)  # fmt: skip


@given(
    st.builds(
        Interval,
        seconds=seconds, batches=st.integers(0, 10**6), samples=st.integers(0, 10**9), stall_s=seconds,
        waiting_s=seconds, begun=st.booleans(), loaders=st.integers(0, 1000), slots=st.integers(1, 99),
        slots_full=st.integers(0, 99), deaths=st.integers(0, 50), last_death=st.text(max_size=20),
        spent_s=st.tuples(*[seconds] * len(Activity)),
        measured_s=seconds, cpu_s=seconds, delay_s=seconds, median_s=seconds, slowest=slow_samples,
        present=slow_samples,
    ),
    st.integers(1, 256),
)  # fmt: skip
def test_every_interval_gets_one_line_and_a_trainer_that_does_not_wait_is_never_told_to_mend_its_data(
    seen: Interval, cores: int
) -> None:
    seen = replace(seen, last_death=seen.last_death.replace("\n", ""))
    found = diagnose(seen, cores)
    assert found.sentence.strip()
    assert "nan" not in found.sentence
    if found.blame is Blame.TRAINER:
        assert seen.stall_share < STALL_SHARE
    elif found.blame not in (Blame.DEATHS, Blame.STUCK, Blame.STARTING):
        assert seen.stall_share >= STALL_SHARE
    if found.blame is Blame.STUCK:
        assert seen.waiting_s
