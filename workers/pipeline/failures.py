"""The exception for what ended a run, as the assembly reports it."""

from __future__ import annotations

import copy
import re
import select
import sys
from collections import Counter
from collections.abc import Callable, Sequence

from ..base import (
    BlobfeedError,
    EndOfData,
    InexactValueError,
    LoaderDied,
    SampleError,
    SampleShapeError,
    SampleTooLargeError,
    SourceError,
    TooManyBadSamples,
)
from ..loading import location_of
from ..plan import Plan
from ..transport import Activity, End, Failure, LoaderState, RemoteError, describe

_NAMED = 16
_STDERR = 2

_SAYS_START_AGAIN = re.compile(r"\bstart (the training )?again\b")
"""Matches a SourceError about changed data: its text says to start again, and one repaired sample would not help."""

TakeError = Callable[[int, str], BaseException]
"""(number, traceback) → the exception that a loader has sent under that number."""


class Failed:
    """The error that ended a run, raised as often as a batch is asked for.

    A feed may not keep what was raised: its traceback, and that of a cause from this process, lead to the frames of all
    who asked, and so to the reader. A reader that is forgotten would then never be closed. So a copy is kept.
    """

    def __init__(self, error: BlobfeedError) -> None:
        self._new: BlobfeedError | None = error
        self._kept = _copied(error)

    def error(self) -> BlobfeedError:
        """The error at first, then copies of it."""
        error, self._new = self._new, None
        return error or _copied(self._kept)


def _copied(error: BlobfeedError) -> BlobfeedError:
    """The same without a traceback, of its cause's too; what a loader has sent has none."""
    copied, cause = copy.copy(error), error.__cause__
    if cause is not None and cause.__traceback__ is not None:
        cause = _without_traceback(cause)
    copied.__cause__ = cause
    return copied


def _without_traceback(cause: BaseException) -> BaseException:
    if type(cause).__module__ == "builtins":
        return copy.copy(cause)  # has more than its `args`, such as the name of a file
    try:
        bare = type(cause).__new__(type(cause), *cause.args)  # a constructor of the user's does not run again
        vars(bare).update(vars(cause))
    except Exception:  # its __new__ takes other arguments
        return RemoteError(describe(cause))
    return bare


def explain(plan: Plan, failure: Failure | End, take: TakeError) -> BlobfeedError:
    """Return the error that ended the run, with the loader's own exception as its cause."""
    if isinstance(failure, End):  # behind the last batch of a run whose length was not known
        return EndOfData(f"all batches of epochs={plan.parameters.epochs} have been delivered")
    cause = take(failure.cause, failure.traceback) if failure.traceback else None
    error = _exception_for(plan, failure, cause)
    error.__cause__ = cause
    return error


def _exception_for(plan: Plan, failure: Failure, cause: BaseException | None) -> BlobfeedError:
    if failure.error == "TooManyBadSamples":
        return TooManyBadSamples(failure.text, [int(index) for index in failure.details])
    if failure.error == "LoaderDied":
        text = failure.text
        if isinstance(cause, ModuleNotFoundError) and cause.name in sys.modules:  # made from a path, for one
            text += (
                "; it is here, but no import finds it: add its folder to sys.path, or have it sent along, by "
                f"cloudpickle.register_pickle_by_value(sys.modules[{cause.name!r}])"
            )
        return LoaderDied(text, failure.details)
    if failure.error == "SourceError":
        return SourceError(failure.text)
    path, source = failure.path, plan.source
    if not path and not source.runs_user_code:  # a user's `where` may hang, or take seconds
        path = location_of(source, failure.index)
    advice = "; repair or leave out the sample"
    if type(cause).__name__ == "BdbQuit" and plan.parameters.has_loaders:  # what breakpoint() raises there
        advice = "; a debugger cannot talk to you in a loader: set num_loaders: 0, without remote_loaders"
    elif isinstance(cause, BrokenPipeError) and _stderr_is_broken():
        advice = (
            "; this code printed, and the program that reads the trainer's standard error, which loaders share, has "
            "ended: send it to a file (2> train.log), or print nothing"
        )
    elif failure.advice:
        advice = f"; {failure.advice}"
    elif isinstance(cause, SourceError) and _SAYS_START_AGAIN.search(str(cause)):
        advice = ""
    elif isinstance(cause, InexactValueError | SampleShapeError | SampleTooLargeError):
        advice = ""  # the sample can be read; its own text says what to do
    elif plan.parameters.on_error == "raise":
        advice += ", or set on_error: replace to have another take its place"
    return SampleError(
        f"sample {failure.index} of epoch {failure.epoch}{path and f' ({path})'}: {failure.text}{advice}",
        source=source.kind,
        index=failure.index,
        path=path,
    )


def _stderr_is_broken() -> bool:
    """Return true if standard error is a pipe whose reader has gone."""
    poller = select.poll()
    poller.register(_STDERR, 0)
    return any(event & select.POLLERR for _, event in poller.poll(0))


def too_many_held(slots: int) -> str:
    """The message of PipelineStalled if the trainer itself keeps all slots."""
    return (
        f"all {slots} slots of the ring are held by batches that were taken and not released: "
        "release them, or raise prefetch_batches"
    )


def what_loaders_do(states: Sequence[LoaderState]) -> str:
    """In words; if there are many, those that have been busy the longest, and how many others do what."""
    if not states:
        return "no loader has started"
    if len(states) <= _NAMED:
        return "; ".join(map(str, states))
    by_age = sorted(states, key=lambda state: (state.activity is Activity.WAITING, state.since))
    others = Counter(state.activity.name.lower() for state in by_age[_NAMED:])
    counts = ", ".join(f"{count} {activity}" for activity, count in others.most_common())
    return f"{'; '.join(map(str, by_age[:_NAMED]))}; and the others: {counts}"
