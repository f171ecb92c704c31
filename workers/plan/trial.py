"""Makes one sample or batch in this process the way a loader does: for tests of hooks, and for a debugger."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from ..api import AnyArray, AnySource, allocate_rows
from ..base import BlobfeedError, ParameterError, PipelineStalled, SampleError, SampleShapeError, SourceError
from ..loading import RowDecoder, location_of
from ..order import globals_kept
from ..transport import summary_of
from .plan import Plan

_Made = TypeVar("_Made")

_log = logging.getLogger("blobfeed")


def decoded_sample(plan: Plan, index: int, epoch: int) -> dict[str, AnyArray]:
    """Return sample `index` by name, after decode, crop and mirror, before postprocess, mean and scale.

    For a stream, `index` counts the samples of its first shard. Raises IndexError for a sample that does not exist, and
    any exception of reading and decode.
    """
    decoded: RowDecoder = plan.decoded.value
    rows = allocate_rows(decoded.rows.slot_specs, 1)
    with globals_kept():
        decoded.try_on([index], epoch, rows, plan.supply, plan.parameters)
    return {name: next(iter(rows[name])) for name in decoded.rows.specs}


def make_one_sample(plan: Plan) -> None:
    """Make a sample of the run, as setup does; raises the exceptions of reading and decode."""
    may_be_bad = plan.parameters.on_error == "replace"
    on_trial(lambda index: decoded_sample(plan, index, 0), plan.source, plan.tried, may_be_bad=may_be_bad)


def on_trial(make: Callable[[int], _Made], source: AnySource, first: int, *, may_be_bad: bool) -> _Made:
    """Return `make(first)`; raises its exception with the sample's name.

    `may_be_bad`: a bad sample is no error, because of `on_error: replace` or because a sampler may never draw it. Then
    it is enough if one of three samples is good; a stream has only the first one.
    """
    known = source.known_samples
    others = [known // 2, known - 1] if known and may_be_bad else []
    *candidates, last = dict.fromkeys([first, *others])
    for index in candidates:
        try:
            return make(index)
        except (ParameterError, PipelineStalled):
            raise
        except Exception as error:  # the run will report it at its own position
            _log.debug("sample %d cannot be tried in setup: %s", index, summary_of(error))
    try:
        return make(last)
    except PipelineStalled:
        raise
    except Exception as error:
        where = location_of(source, last)
        named = f"sample {last} ({where})"
        if isinstance(error, SourceError):
            raise SourceError(f"{named}: {error}") from error
        if isinstance(error, SampleShapeError):  # as of a picture that is smaller than the crop
            raise SampleError(f"{named}: {error}", source=source.kind, index=last, path=where) from None
        if not isinstance(error, BlobfeedError):
            error.add_note(f"raised in setup, by {named}")
        raise
