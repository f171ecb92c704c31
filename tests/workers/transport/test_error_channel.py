"""Exceptions on their way from a loader to the trainer: as themselves where that is possible, else as text."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest
from blobfeed.workers.transport import ErrorInbox, RemoteError, describe, send_exception, sendable, summary_of
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import SampleError, TooManyBadSamples
from tests.support.part import examples
from tests.support.pipelines import HoldsALock, NeedsTwoArguments, WithoutText


@pytest.fixture
def channel() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The loader's end and the trainer's, as a pipeline makes them."""
    loaders, trainers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield loaders, trainers
    loaders.close()
    trainers.close()


Channel = tuple[socket.socket, socket.socket]


class Plain(Exception):
    pass


class WithState(Exception):
    def __init__(self, text: str, place: int) -> None:
        super().__init__(text, place)
        self.place = place


class CannotBeMade(Exception):
    """Refuses to be pickled, in a way of its own."""

    def __reduce__(self) -> NoReturn:
        raise ZeroDivisionError("no")


class NotEvenAnException(Exception):
    """Comes out of the pickle as something else."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (int, (7,))


@dataclass(frozen=True)
class Frozen(Exception):
    """Nothing can be noted on it."""

    code: int


def raised(error: BaseException) -> BaseException:
    """`error` with a traceback and a cause, as it would come out of a decode hook."""
    try:
        try:
            raise KeyError("the root of it")
        except KeyError as cause:
            raise error from cause
    except BaseException as caught:
        return caught


def brought_over(channel: Channel, error: BaseException) -> BaseException:
    loaders, trainers = channel
    return ErrorInbox(trainers).take(send_exception(loaders, error), describe(error))


# ---- as themselves


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a value"),
        KeyError("key"),
        OSError(2, "No such file or directory", "a.png"),
        UnicodeDecodeError("utf-8", b"\x80", 0, 1, "invalid start byte"),
        Plain("plain", 1, (2, 3)),
        WithState("at a place", 7),
        KeyboardInterrupt(),
        SystemExit(3),
        MemoryError(),
        ExceptionGroup("several", [ValueError(1), TypeError(2)]),
        SampleError("bad", source="hdf5", index=3, path="a.h5"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_arrives_with_its_type_arguments_and_attributes(channel: Channel, error: BaseException) -> None:
    arrived = brought_over(channel, raised(error))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    state = {name: value for name, value in vars(arrived).items() if name != "__notes__"}
    assert state == vars(error)


def test_the_loaders_traceback_is_noted_on_it(channel: Channel) -> None:
    arrived = brought_over(channel, raised(ValueError("a value")))
    (note,) = arrived.__notes__
    assert note.startswith("raised in a loader:\n")
    assert "the root of it" in note
    assert 'raise KeyError("the root of it")' in note
    assert "The above exception was the direct cause" in note


def test_notes_of_its_own_stay(channel: Channel) -> None:
    error = ValueError("a value")
    error.add_note("while decoding")
    assert brought_over(channel, raised(error)).__notes__[0] == "while decoding"


# ---- as text


@pytest.mark.parametrize(
    "error",
    [
        NeedsTwoArguments("it is broken", "so"),
        TooManyBadSamples("it is broken", [1, 2]),
        HoldsALock("it is broken"),
        CannotBeMade("it is broken"),
        NotEvenAnException("it is broken"),
        Plain("it is broken", lambda: 7),
        Plain("it is broken", bytes(10_000_000)),
    ],
    ids=["breaks unpickling", "ours", "unpicklable", "refuses", "becomes a number", "holds a function", "too large"],
)
def test_what_cannot_be_pickled_arrives_all_the_same(channel: Channel, error: Exception) -> None:
    arrived = brought_over(channel, raised(error))
    text = "\n".join([str(arrived), *getattr(arrived, "__notes__", [])])
    assert type(arrived) in (RemoteError, type(error))
    assert "it is broken" in text
    assert "the root of it" in text


def test_an_exception_whose_text_cannot_be_had_arrives(channel: Channel) -> None:
    arrived = brought_over(channel, raised(WithoutText()))
    assert isinstance(arrived, WithoutText)
    assert "WithoutText: <exception str() failed>" in arrived.__notes__[0]
    assert summary_of(WithoutText()).endswith("WithoutText: <exception str() failed>")


def test_an_exception_on_which_nothing_can_be_noted_arrives(channel: Channel) -> None:
    error = Frozen(7)
    arrived = ErrorInbox(channel[1]).take(send_exception(channel[0], error), describe(error))
    assert isinstance(arrived, Frozen | RemoteError)
    assert "7" in str(arrived)


def test_a_full_channel_means_text_and_not_waiting(channel: Channel) -> None:
    loaders, trainers = channel
    numbers: list[int] = []
    while number := send_exception(loaders, ValueError(len(numbers))):
        numbers.append(number)
        assert len(numbers) < 100_000
    inbox = ErrorInbox(trainers)
    assert isinstance(inbox.take(0, "the text"), RemoteError)
    assert inbox.take(numbers[0], "its traceback").args == (0,)
    assert send_exception(loaders, ValueError("there is room again"))


def test_a_trainer_that_is_gone_means_text_and_no_signal(channel: Channel) -> None:
    loaders, trainers = channel
    trainers.close()
    assert send_exception(loaders, ValueError()) == 0


def test_an_exception_that_never_comes_is_told_by_its_text(channel: Channel) -> None:
    loaders, trainers = channel
    inbox = ErrorInbox(trainers)
    arrived = inbox.take(17, "Traceback: it was so")
    assert (type(arrived), str(arrived)) == (RemoteError, "Traceback: it was so")
    loaders.close()
    assert str(inbox.take(17, "the loaders are gone")) == "the loaders are gone"


def test_those_before_the_one_that_is_asked_for_are_passed_over(channel: Channel) -> None:
    loaders, trainers = channel
    numbers = [send_exception(loaders, ValueError(number)) for number in range(5)]
    assert ErrorInbox(trainers).take(numbers[3], "").args == (3,)


@pytest.mark.parametrize(
    "packet",
    [
        b"no pickle",
        pickle.dumps(7),
        pickle.dumps((1, 2, 3)),
        pickle.dumps((17, "no exception")),
        pickle.dumps((17, ValueError("cut short")))[:-5],
        b"cno_such_module\nThing\n.",
    ],
    ids=["junk", "a number", "too many parts", "no exception", "cut short", "unknown module"],
)
def test_what_cannot_be_unpickled_here_does_not_stand_in_the_way(channel: Channel, packet: bytes) -> None:
    loaders, trainers = channel
    loaders.send(packet)
    number = send_exception(loaders, ValueError("behind it"))
    assert ErrorInbox(trainers).take(number, "text").args == ("behind it",)


# ---- classes of the user's own script

TRAINER = """
import sys
from pathlib import Path
import numpy as np
from blobfeed.workers.base import SampleError
from blobfeed.workers.api import Hooks
from blobfeed.workers.api import Parameters
from blobfeed.readers.opening import open_pipeline
from blobfeed.workers.pipeline import Pipeline

class MyError(Exception):
    def __init__(self, index):
        super().__init__(index)
        self.index = index

def decode(sample, rng):
    if sample.index == 3:
        raise MyError(sample.index)
    return sample["data"]

np.save("data.npy", np.zeros((8, 2)))
if __name__ == "__main__":
    parameters = Parameters(source={"npy": {"data": "data.npy"}}, batch_size=2, num_loaders=1)
    with open_pipeline(parameters, Hooks(decode=decode)) as pipeline:
        try:
            while True:
                pipeline.release(pipeline.take())
        except SampleError as error:
            assert type(error.__cause__) is MyError, type(error.__cause__)
            print("caught", error.__cause__.index)
"""


def test_an_exception_class_of_the_users_own_script_is_the_same_class_when_it_comes_back(tmp_path: Any) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINER)
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.stdout == "caught 3\n", done.stderr


# ---- texts


@examples(200)
@given(text=st.text(st.characters(codec=None), max_size=400), most=st.integers(2, 100))
def test_any_text_can_be_sent_and_is_not_endless(text: str, most: int) -> None:
    sent = sendable(text, most)
    assert len(sent) <= most + len(" … 400000 characters … ")
    assert sent.encode().decode() == sent


@examples(100)
@given(text=st.text(max_size=100))
def test_a_short_text_is_sent_as_it_is(text: str) -> None:
    assert sendable(text, 100) == text


def test_a_long_text_is_shortened_between_words() -> None:
    assert sendable("first words, and the last words", 20) == "first … 21 characters … words"


@pytest.mark.parametrize(
    "make",
    [lambda: ValueError("x" * 10**7), lambda: ValueError("\udc80 a file's name"), WithoutText, Plain],
    ids=["endless", "no Unicode", "no text", "empty"],
)
def test_a_description_can_always_be_sent(make: Callable[[], Exception]) -> None:
    for text in (describe(raised(make())), summary_of(make())):
        assert len(text.encode()) < 100_000
        assert "\n" not in summary_of(make())
