"""The messages between the assembler and the bridge, over an inherited socket pair."""

from __future__ import annotations

from ..workers.transport import ClusterCapacity, LoaderEnded, LoaderStarted, Message


class StartLoader(Message, frozen=True, tag="start_loader"):
    """Start `loader` somewhere in the cluster; `line` of the status board is its own."""

    loader: int
    line: int


class KillLoader(Message, frozen=True, tag="kill_loader"):
    """End `loader`, whatever it is doing."""

    loader: int


class JoinFailed(Message, frozen=True, tag="join_failed"):
    """The bridge could not join the cluster."""

    text: str


ToBridge = StartLoader | KillLoader
FromBridge = LoaderStarted | LoaderEnded | ClusterCapacity | JoinFailed
