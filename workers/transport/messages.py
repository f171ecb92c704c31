"""The messages between the processes: named, typed, of some tens of bytes."""

from __future__ import annotations

import msgspec

MAX_FRAME_BYTES = 64 << 20
"""Longer frames are refused by the receiving socket; the longest of ours has a line for each bad sample of a task."""


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Encoded as an array: the tag, then the fields in order."""


# trainer → assembler
class Release(Message, frozen=True, tag="release"):
    """The trainer is done with all batches below `upto` but for `loans`, which it will give back in any order."""

    upto: int
    loans: tuple[int, ...] = ()


class Give(Message, frozen=True, tag="give"):
    """The batch may be made: the trainer's request for it lies in the ring. `shard`: see Run; -1 for none."""

    batch: int
    epoch: int
    rows: int
    shard: int = -1


class Stop(Message, frozen=True, tag="stop"):
    """The trainer closes the pipeline."""


# assembler → trainer
class Run(Message, frozen=True):
    """The `rows` rows from `row` on: the samples of `epoch` from its `position` on.

    Rows count from the beginning of the message's batch, and go on into the batches behind it. `offset`: where the
    shared file has the epoch, if a sampler drew it; else -1. `shard`: that of a stream, in which positions count.
    `of`: the number of samples in the epoch, if a sampler drew it.
    """

    row: int
    rows: int
    epoch: int
    position: int
    offset: int = -1
    shard: int = 0
    of: int = 0


class End(Message, frozen=True, tag="end"):
    """No batch follows those that were announced."""


Replaced = tuple[tuple[int, int], ...]
"""(row, sample index) of each sample that was put in for a bad one; rows count as in Run."""


class Announce(Message, frozen=True, tag="announce"):
    """All batches up to those of `runs` are complete; `batch` lies in `slot`, the batches behind it in those behind.

    `replaced`: the samples put in for bad ones. `ends`: the epoch and item at which the round behind each batch begins,
    unless that is computed. `indices`: int64, the sample of each row, if a sampler drew them.
    """

    batch: int
    slot: int
    replaced: Replaced = ()
    runs: tuple[Run, ...] = ()
    ends: tuple[tuple[int, int], ...] = ()
    indices: bytes = b""


class Failure(Message, frozen=True, tag="failure"):
    """The pipeline cannot go on; `error` names a class of errors.py.

    If one sample is to blame it is sample `index` of `epoch`; `path`: where it is stored, if that is known.
    `advice`: what to do, if it is not to repair or leave out the sample. `cause` names an exception on the
    inherited error channel, `traceback` is its text. `details`: what the class carries besides its message.
    """

    error: str
    text: str
    epoch: int = -1
    index: int = -1
    path: str = ""
    cause: int = 0
    traceback: str = ""
    details: tuple[str, ...] = ()
    advice: str = ""


# assembler → loader
class Fill(Message, frozen=True, tag="fill"):
    """Make `rows` rows from `first_row` of `batch` on, which lies in `slot`; they may go on into the batches behind it.

    `skip`: so many candidates for the row are known to be bad. `runs`: the samples of these rows. A stream's shard is
    counted over all ranks. `finishes`: all other rows of the batches are there, so that they are postprocessed behind
    these; then `runs` has all of their rows, and `replaced` says which of the others were replaced.
    """

    task: int
    batch: int
    slot: int
    first_row: int
    rows: int
    skip: int = 0
    runs: tuple[Run, ...] = ()
    finishes: bool = False
    replaced: Replaced = ()


class Draw(Message, frozen=True, tag="draw"):
    """Draw `epoch`, and put its indices at `offset` of the shared file."""

    task: int
    epoch: int
    offset: int


# loader → assembler
class Ready(Message, frozen=True, tag="ready"):
    """The loader has started and waits for tasks."""

    loader: int


class BadRow(Message, frozen=True):
    """Sample `index` of `epoch`, wanted in `row` (see Run), could not be made; `replacement` took its place, or is -1.

    `index` is -1 if the whole batch that begins with `row` could not be postprocessed. `text`: the exception in a
    line; `traceback`: the whole; `cause` names it on the inherited error channel, 0 if it could not be pickled.
    `advice`: as in Failure.
    """

    row: int
    epoch: int
    index: int
    replacement: int
    path: str
    text: str
    cause: int = 0
    traceback: str = ""
    advice: str = ""


class Drawn(Message, frozen=True):
    """The file holds `indices` of an epoch, and behind them the sizes of `batches`, if the sampler gave batches.

    `failure`: the reason why the epoch could not be drawn; `cause`, `traceback`: see Failure.
    """

    indices: int = 0
    batches: int = 0
    failure: str = ""
    cause: int = 0
    traceback: str = ""


class WorkDone(Message, frozen=True):
    """The result of a task: its rows are in their slot, but for the bad ones without a replacement.

    `stream_rows`: how many a stream's shard had for the batch, fewer than were asked for if it ended. `drawn`: the
    answer to Draw. `hook_ns`: the time for postprocessing.
    """

    bad: tuple[BadRow, ...] = ()
    stream_rows: int = -1
    drawn: Drawn | None = None
    hook_ns: int = 0


class Done(Message, frozen=True, tag="done"):
    """The task is done, in `elapsed_ns` for all of it."""

    loader: int
    task: int
    elapsed_ns: int
    work: WorkDone = WorkDone()


class StartFailed(Message, frozen=True, tag="start_failed"):
    """The loader could not start: user code or the source raised while it was set up."""

    loader: int
    text: str
    cause: int
    traceback: str


# bridge to a cluster → assembler, over an inherited socket pair; the nursery's side makes the same of its records
class LoaderStarted(Message, frozen=True, tag="loader_started"):
    """`loader` has a process, which must be ready in time from now on: a cluster may find a node for it late."""

    loader: int


class LoaderEnded(Message, frozen=True, tag="loader_ended"):
    """`loader` is gone, and nothing is written into a slot on its behalf any more; `how` says so in words.

    `crashed`: by itself, or it could not be forked; else its node was lost, or somebody ended it.
    """

    loader: int
    how: str
    crashed: bool


class ClusterCapacity(Message, frozen=True, tag="cluster_capacity"):
    """The bridge has joined the cluster, whose nodes can run `loaders` loaders."""

    loaders: int


ToAssembler = Release | Give | Stop
ToTrainer = Announce | Failure | End
ToLoader = Fill | Draw
FromLoader = Ready | Done | StartFailed
