"""Messages arrive as they were sent, and nothing else arrives: by property over all kinds of frames."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import NoneType
from typing import Any, get_args, get_origin

import msgspec
import pytest
from blobfeed.cluster import messages as bridge_messages
from blobfeed.cluster.messages import FromBridge, ToBridge
from blobfeed.workers.transport import FromLoader, ToAssembler, ToLoader, ToTrainer, messages
from blobfeed.workers.transport.links import Decoder, frame_of
from hypothesis import given
from hypothesis import strategies as st

from tests.support.part import examples

pytestmark = pytest.mark.pure


def kinds(carried: Any) -> tuple[Any, ...]:
    """The kinds of message that a link carries."""
    return get_args(carried) or (carried,)


LINKS: dict[str, Any] = {
    "releases": ToAssembler,
    "batches": ToTrainer,
    "tasks": ToLoader,
    "results": FromLoader,
    "to the bridge": ToBridge,
    "from the bridge": FromBridge,
}


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Whatever a field of this type can hold: integers of 64 bits, as MessagePack has them."""
    if annotation is bool:
        return st.booleans()
    if annotation is int:
        return st.integers(-(2**63), 2**63 - 1)
    if annotation is bytes:
        return st.binary(max_size=20)
    if annotation is str:
        return st.text(max_size=20)
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return instances(annotation)
    if get_origin(annotation) is tuple:
        parts = get_args(annotation)
        return st.lists(values(parts[0]), max_size=3).map(tuple) if ... in parts else st.tuples(*map(values, parts))
    return either([st.none() if part is NoneType else values(part) for part in get_args(annotation)])


def either(choices: Iterable[st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    return st.one_of(*choices)


def instances(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    return st.builds(kind, *(values(field.type) for field in msgspec.structs.fields(kind)))


MESSAGES = {link: either(map(instances, kinds(carried))) for link, carried in LINKS.items()}
LINK_AND_MESSAGE = either(st.tuples(st.just(link), message) for link, message in MESSAGES.items())


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + body


def decoder(link: str) -> Decoder[Any]:
    return Decoder(LINKS[link])


def assert_dropped(link: str, *frames: bytes) -> None:
    """Each of them is dropped and counted, and what comes behind them is not disturbed."""
    receiver = decoder(link)
    for number, frame in enumerate(frames):
        assert receiver.decode(frame) is None
        assert receiver.dropped == number + 1


@examples(300)
@given(sent=LINK_AND_MESSAGE)
def test_every_message_arrives_as_it_was_sent(sent: tuple[str, Any]) -> None:
    link, message = sent
    receiver = decoder(link)
    arrived = receiver.decode(frame_of(message))
    assert arrived == message
    assert type(arrived) is type(message)
    assert receiver.dropped == 0


def test_every_kind_of_message_travels_on_exactly_one_link() -> None:
    named = [*inspect.getmembers(messages, inspect.isclass), *inspect.getmembers(bridge_messages, inspect.isclass)]
    structs = [kind for _, kind in named if issubclass(kind, msgspec.Struct)]
    tagged = {kind for kind in structs if kind.__struct_config__.tag is not None}
    carried = [kind for link in LINKS.values() for kind in kinds(link)]
    assert len(carried) == len(set(carried))
    assert {*carried} == tagged


def test_the_messages_of_an_undisturbed_batch_are_tens_of_bytes() -> None:
    far = 10**9
    for message in (
        messages.Fill(far, far, 7, 1000, 64),
        messages.Done(12, far, far),
        messages.Announce(far, 7),
        messages.Release(far, (far,)),
    ):
        assert len(frame_of(message)) < 64


@st.composite
def foreign(draw: st.DrawFn) -> tuple[str, bytes]:
    """A link, and a frame that is no message of it."""
    link, message = draw(LINK_AND_MESSAGE)
    frame = frame_of(message)
    way = draw(st.sampled_from(("noise", "nonsense", "a part", "more", "a link")))
    if way == "noise":
        return link, draw(st.binary(max_size=200))
    if way == "nonsense":
        return link, framed(draw(st.binary(max_size=80)))
    if way == "a part":
        return link, frame[: draw(st.integers(0, len(frame) - 1))]
    if way == "more":
        return link, frame + draw(st.binary(min_size=1, max_size=12))
    return draw(st.sampled_from(sorted(LINKS.keys() - {link}))), frame


@examples(1000)
@given(frames=st.lists(foreign(), min_size=1, max_size=3))
def test_what_is_no_message_of_the_link_is_dropped_and_counted(frames: list[tuple[str, bytes]]) -> None:
    for link, frame in frames:
        assert_dropped(link, frame, frame)


def test_deep_nesting_and_false_lengths_are_dropped() -> None:
    nested = b"\x91" * 100_000  # an array in an array in an array …
    giant = b"\xdd\xff\xff\xff\xff"  # an array of 2**32 - 1 items, said to follow
    text = b"\x92\xdb\xff\xff\xff\xff"
    surplus = b"\x94" + msgspec.msgpack.encode("release") + b"\x01\x02" + nested
    for link in LINKS:
        assert_dropped(link, *map(framed, (nested, giant, text, surplus)))
