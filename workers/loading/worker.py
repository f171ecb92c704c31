"""The workers of a loader: find the samples of a task, make its rows, replace bad samples.

The loader itself moves messages; a worker makes rows. The worker for streams is in supplies/stream_rows.py; here:

    source.read → raw arrays → decode hook (if any) → crop and mirror (if any) → the slot's rows

Without hook and crop, the source reads directly into the slot. Otherwise raw samples pass through a small scratch
memory, allocated once, a block of rows at a time. Some sources offer views on samples in memory, such as the decoded
cache or a picture just decoded; a crop is then copied directly from the view.
"""

from __future__ import annotations

import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from operator import is_not
from typing import Any

import msgspec
import numpy as np

from ..api import (
    AnyArray,
    AnySource,
    Boxes,
    Hooks,
    IndexArray,
    NamedRows,
    Needs,
    Parameters,
    Rows,
    Sample,
    Source,
    allocate_rows,
)
from ..base import SourceError, text_digest
from ..order import Seed, Supply, between, globals_kept, part_of, replacements
from ..transport import (
    Activity,
    BadRow,
    Draw,
    Drawn,
    Fill,
    LoaderStatus,
    Run,
    SendError,
    SharedFile,
    ToLoader,
    WorkDone,
    describe,
    sendable,
    summary_of,
    trial_copy,
)
from .postprocessing import BatchSamples, Postprocessor
from .row_converter import RowConverter
from .row_maker import RowMaker

_log = logging.getLogger("blobfeed")

_LONGEST = 200
"""Characters of one part of an identity."""

Begins = Callable[[Activity, int, int], object]
"""Records the start of a step: (activity, sample index, number of rows). LoaderStatus.write is one."""

_SCRATCH_BYTES = 1 << 20
"""The approximate size of a block of raw samples: large enough for batched reads to pay off, small enough to be still
in the processor's cache when it is decoded."""

_MOST_SCRATCH_ROWS = 64
_MOST_CHARACTERS = 300
_MOST_OF_FAILURE = 2000
_KILLED_ITS_LOADERS = "loaders died on this sample again and again"


class Workplace(msgspec.Struct, frozen=True):
    """The resources of a loader. `rows`: those of all slots by name; slot s has rows s * batch_size … of each top.

    `drawn`: the file with a sampler's draws. `guard`: a context manager around each call of user code. `converter`:
    converts rows on their way into a slot.
    """

    rows: NamedRows
    status: LoaderStatus
    send_error: SendError
    drawn: SharedFile
    guard: Callable[[], AbstractContextManager[None]] = nullcontext
    converter: RowConverter | None = None


class Worker(ABC):
    """Makes rows in the slots and reports bad ones."""

    def __init__(
        self,
        source: AnySource,
        supply: Supply,
        parameters: Parameters,
        postprocessor: Postprocessor | None,
        place: Workplace,
    ) -> None:
        self.locate = partial(location_of, source)
        self.supply = supply
        self.parameters = parameters
        self.rows = postprocessor.decoded_rows(place.rows) if postprocessor else place.rows
        self.status = place.status
        self.status.locate = self.locate
        self._postprocessor = postprocessor
        self._all_rows = place.rows
        self._send_error = place.send_error
        self._converter = place.converter
        self.guard = place.guard

    def announce(self, task: Fill) -> None:  # noqa: B027 - a stream is read as it comes
        """Prepare for `task`, which will come later."""

    def work(self, message: ToLoader, rows: NamedRows | None = None) -> WorkDone:
        """Do the task `message`; a sample that raises becomes a bad row, not an exception. `rows`: see `fill`."""
        match message:
            case Fill():
                done = self._converted(message, rows)
                return self._finish(message, done) if message.finishes else done
            case Draw():
                return WorkDone(drawn=self.draw(message))

    def _converted(self, task: Fill, rows: NamedRows | None) -> WorkDone:
        if self._converter is None:
            return self.fill(task, rows)
        first = task.slot * self.parameters.batch_size + task.first_row
        out = _cut_rows(self.rows, first, task.rows) if rows is None else rows
        return self._converter.fill(out, task.rows, partial(self.fill, task))

    def draw(self, task: Draw) -> Drawn:
        """Draw an epoch into the file that all loaders read; an exception of the sampler becomes a failure."""
        self.status.write(Activity.SAMPLING, task.epoch)
        try:
            with self.guard(), globals_kept():
                return self.supply.draw(task, self.parameters)
        except SourceError as error:
            return Drawn(failure=sendable(str(error), _MOST_OF_FAILURE))
        except Exception as error:
            text = f"{self.supply.name}, epoch {task.epoch}: it raised {summary_of(error)}"
            return Drawn(failure=text, cause=self._send_error(error), traceback=describe(error))

    @abstractmethod
    def fill(self, task: Fill, rows: NamedRows | None = None) -> WorkDone:
        """Make the task's rows in `rows`, which begin with the task's first row; without it in the task's slot."""

    @abstractmethod
    def samples_of(self, task: Fill, first: int, rows: int) -> BatchSamples:
        """Return the samples of the batch of `rows` rows that begins with row `first`."""

    def rows_made(self, task: Fill, done: WorkDone) -> int:
        """Return the number of rows from the first one of the task's batch on that are for the trainer."""
        return task.first_row + task.rows

    def _finish(self, task: Fill, done: WorkDone) -> WorkDone:
        """Postprocess the batches of `task`, but none with a bad row or behind it; a hook's exception is such a row."""
        if self._postprocessor is None:
            raise RuntimeError(f"batch {task.batch} is to be postprocessed, but there is no such hook")
        begun, size = time.monotonic_ns(), self.parameters.batch_size
        bad, end = list(done.bad), self.rows_made(task, done)
        end = min([end, *(row.row // size * size for row in bad if row.replacement < 0)])
        replaced = dict(task.replaced) | {row.row: row.replacement for row in bad}
        for first in range(0, end, size):
            samples = self.samples_of(task, first, min(size, end - first))
            for row, index in replaced.items():
                if first <= row < first + len(samples.indices):
                    samples.indices[row - first] = index
            self.status.write(Activity.POSTPROCESSING)
            try:
                with self.guard():
                    self._postprocessor.run(self._all_rows, task.slot * size + first, samples)
            except Exception as error:
                text = f"postprocess of the batch that begins with it raised {summary_of(error)}"
                where = self.locate(int(samples.indices[0]))
                bad.append(self.with_cause(BadRow(first, -1, -1, -1, where, text), error))
                break
        return msgspec.structs.replace(done, bad=tuple(bad), hook_ns=time.monotonic_ns() - begun)

    def with_cause(self, bad: BadRow, error: Exception) -> BadRow:
        """Add `error` and its traceback to `bad`, because the run ends with it."""
        return msgspec.structs.replace(bad, cause=self._send_error(error), traceback=describe(error))


def location_of(source: AnySource, index: int) -> str:
    """Return the location of sample `index`. An error of `source.where` must not hide the error of the sample."""
    try:
        return sendable(source.where(index), _MOST_CHARACTERS)
    except Exception as error:
        return f"at a location that its source cannot name: {summary_of(error)}"


class RowDecoder(ABC):
    """Makes rows from the samples of a source, through the hooks. Setup runs it on trial, then each loader runs it."""

    source: AnySource

    def __init__(self, source: Any, rows: RowMaker, postprocessor: Postprocessor | None = None) -> None:
        self.source = source
        self.rows = rows
        self.postprocessor = postprocessor

    @classmethod
    @abstractmethod
    def read(cls, source: Any, index: int, supply: Supply, given: Parameters) -> Sample:
        """Return the raw sample `index` of epoch 0, in new memory; raises IndexError if there is no such sample."""

    @classmethod
    def trial_copy(cls, source: Any, hooks: Hooks) -> tuple[Any, Hooks]:
        """Return copies for a trial, of what keeps what the trial does."""
        return source, trial_copy(hooks)

    @property
    def identity(self) -> str:
        """The identity of the source as JSON, for states; "" if they say nothing of it."""
        return ""

    @abstractmethod
    def try_on(
        self, indices: Sequence[int] | IndexArray, epoch: int, out: NamedRows, supply: Supply, given: Parameters
    ) -> None:
        """Make row i of every top of `out` from sample indices[i]; raises IndexError if there is no such sample."""

    @abstractmethod
    def worker(self, supply: Supply, given: Parameters, place: Workplace) -> Worker:
        """Return the worker of one loader."""


class SampleDecoder(RowDecoder):
    """The decoder of samples by index."""

    source: Source

    def __init__(self, source: Source, rows: RowMaker, postprocessor: Postprocessor | None = None) -> None:
        super().__init__(source, rows, postprocessor)
        self._scratch: dict[str, Rows] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_scratch": {}}

    @classmethod
    def read(cls, source: Source, index: int, supply: Supply, given: Parameters) -> Sample:
        return read_one(source, index)

    def try_on(
        self, indices: Sequence[int] | IndexArray, epoch: int, out: NamedRows, supply: Supply, given: Parameters
    ) -> None:
        samples, wanted = len(self.source), np.array(indices, np.int64)
        for index in wanted.tolist():
            if not 0 <= index < samples:
                raise IndexError(f"sample {index} of a source of {samples} samples")
        self.make(wanted, np.full(len(indices), epoch, np.int64), out, lambda *_: None)

    def worker(self, supply: Supply, given: Parameters, place: Workplace) -> Worker:
        return IndexedWorker(self, supply, given, place)

    @cached_property
    def identity(self) -> str:
        """The identity of the source as JSON."""
        parts = self.source.identity().items()
        short = {
            name: text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… {text_digest(text)[:12]}"
            for name, text in parts
        }
        return json.dumps(short, ensure_ascii=False)

    def make(
        self,
        indices: IndexArray,
        epochs: IndexArray,
        out: NamedRows,
        begins: Begins,
        numbers: IndexArray | None = None,
    ) -> None:
        """Make row i of every top of `out` from sample indices[i] in epochs[i]; raises the exceptions of samples.

        `numbers`: the number of each sample (see Sample) if it is not the index.
        """
        if self.rows.changes_nothing:
            begins(Activity.READING, int(indices[0]), len(indices))
            _read(self.source, indices, out)
            return
        each = indices.tolist(), epochs.tolist(), (indices if numbers is None else numbers).tolist()
        parts = self.rows.parts(self.source.cuts, *each[1:])
        put = self.rows.into(out, is_cut=bool(parts))
        if self.rows.hooks.decode is not None:
            keys, block = list(zip(*each[1:], strict=True)), self._block_rows(parts)
            for first in range(0, len(indices), block):
                some = slice(first, first + block)
                self._decode(first, indices[some], keys[some], _of(parts, some), put, begins)
            return
        needs = None if parts else self.rows.needs(*each[1:])
        samples = self._raw_samples(indices, begins, needs, parts)
        for row, (arrays, *sample) in enumerate(zip(samples, *each, strict=True)):
            begins(Activity.DECODING, sample[0], 1)
            put(Sample(arrays, *sample), row)

    def _decode(
        self,
        first: int,
        indices: IndexArray,
        keys: Sequence[tuple[int, int]],
        parts: Mapping[str, Boxes],
        put: Callable[[Sample, int], None],
        begins: Begins,
    ) -> None:
        """Make rows from `first` on by the decode hook, of one block of raw samples; `keys`: their epoch and number."""
        samples = list(enumerate(zip(indices.tolist(), keys, strict=True)))

        def decode(seed: Seed) -> None:
            begins(Activity.READING, int(indices[0]), len(indices))
            raw = self._read_block(indices, parts)  # each time: a hook may write to its sample
            for arrays, (row, (index, key)) in zip(_samples_in(raw), samples, strict=True):
                begins(Activity.DECODING, index, 1)
                seed(row)
                put(Sample(arrays, index, *key), first + row)

        self.rows.seeds.make(keys, decode)

    def announce(self, wanted: WantedRows) -> None:
        """Have the source read ahead what these rows need."""
        if parts := self.rows.parts(self.source.cuts, wanted.epochs.tolist(), wanted.numbers.tolist()):
            self.source.will_need_parts(wanted.indices, parts)
        else:
            self.source.will_need(wanted.indices)

    def _raw_samples(
        self,
        indices: IndexArray,
        begins: Begins,
        needs: Needs | None,
        parts: Mapping[str, Boxes],
    ) -> Iterator[Mapping[str, AnyArray]]:
        """Yield the raw samples, each valid until the next one; of a top in `parts` that box alone."""
        if not parts:
            begins(Activity.READING, int(indices[0]), len(indices))
            source = self.source
            views = source.lend(indices) if needs is None else source.lend_needed(indices, needs)
            if views is not None:
                yield from views if isinstance(views, Sequence) else _said_each(views, indices.tolist(), begins)
                return
        block = self._block_rows(parts)
        for first in range(0, len(indices), block):
            some = slice(first, first + block)
            if first or parts:
                begins(Activity.READING, int(indices[first]), len(indices[some]))
            yield from _samples_in(self._read_block(indices[some], _of(parts, some)))

    def _block_rows(self, parts: Mapping[str, Boxes]) -> int:
        """Return the number of raw samples in a block, whose memory is there afterwards."""
        if not self._scratch:
            specs = {
                name: replace(spec, shape=parts[name].shape) if name in parts else spec
                for name, spec in self.source.specs.items()
            }
            sample_bytes = max(1, sum(spec.nbytes for spec in specs.values()))
            rows_at_once = min(max(1, _SCRATCH_BYTES // sample_bytes), _MOST_SCRATCH_ROWS)
            self._scratch = allocate_rows(specs, rows_at_once)
        return len(next(iter(self._scratch.values())))

    def _read_block(self, indices: IndexArray, parts: Mapping[str, Boxes]) -> Mapping[str, Rows]:
        """Read a block of raw samples into its memory."""
        raw = {name: rows[: len(indices)] for name, rows in self._scratch.items()}
        if parts:
            self.source.read_parts(indices, parts, raw)
        else:
            _read(self.source, indices, raw)
        return raw


def _of(parts: Mapping[str, Boxes], rows: slice) -> Mapping[str, Boxes]:
    return {name: boxes.of(rows) for name, boxes in parts.items()}


def _said_each(
    views: Iterable[Mapping[str, AnyArray]], indices: Sequence[int], begins: Begins
) -> Iterator[Mapping[str, AnyArray]]:
    """Yield the samples of `views` and record each before it is read, so that a hang or crash names its sample."""
    samples = iter(views)
    for index in indices:
        begins(Activity.READING, index, 1)
        yield next(samples)
    next(samples, None)  # behind the last one the source sees whether what it read was changed


def read_one(source: Source, index: int) -> Sample:
    """Read sample `index` as stored, for epoch 0, into new memory."""
    raw = allocate_rows(source.specs, 1)
    _read(source, np.array([index], np.int64), raw)
    return Sample(next(_samples_in(raw)), index, 0)


def _read(source: Source, indices: IndexArray, out: NamedRows) -> None:
    """Read into `out`. Raises TypeError if a user's source did not write there: the slot would keep older samples."""
    given = tuple(out.values())
    returned: Any = source.read(indices, out)  # it may be a user's
    if (replaced := any(map(is_not, given, out.values()))) or (returned is not None and _are_others(returned, given)):
        what = "replaced an array of 'out'" if replaced else f"returned a {type(returned).__name__}"
        raise TypeError(
            f"{type(source).__name__}.read {what}, which reaches no batch: expected it to write into the arrays of "
            "'out', as in out[name][...] = values"
        )


def _are_others(returned: object, given: tuple[Rows, ...]) -> bool:
    """Return true for arrays outside `given`. NumPy's functions with `out=` return arrays of `given`."""
    if isinstance(returned, Mapping):
        returned = list(returned.values())
    items = returned if isinstance(returned, tuple | list) else [returned]
    return isinstance(returned, tuple | list | np.ndarray) and not any(one is each for one in items for each in given)


def _samples_in(raw: Mapping[str, Rows]) -> Iterator[dict[str, AnyArray]]:
    return (dict(zip(raw, arrays, strict=True)) for arrays in zip(*raw.values(), strict=True))


def _cut_rows(rows: NamedRows, first: int, count: int) -> dict[str, Rows]:
    """Return views on rows first … first+count-1 of every top."""
    return {name: top[first : first + count] for name, top in rows.items()}


class WantedRows(msgspec.Struct, frozen=True):
    """The samples of `runs`, whose rows adjoin: index, epoch and number (see Sample) of each, shape (rows,)."""

    runs: Sequence[Run]
    indices: IndexArray
    epochs: IndexArray
    numbers: IndexArray

    @property
    def row(self) -> int:
        """The first row."""
        return self.runs[0].row

    def alone(self, offset: int) -> WantedRows:
        """Return one of the rows."""
        row, here = self.row + offset, slice(offset, offset + 1)
        run = list(between(self.runs, row, row + 1))
        return WantedRows(run, self.indices[here], self.epochs[here], self.numbers[here])


class IndexedWorker(Worker):
    """Makes rows from samples by index, which `supply` finds."""

    def __init__(self, decoded: SampleDecoder, supply: Supply, parameters: Parameters, place: Workplace) -> None:
        super().__init__(decoded.source, supply.with_file(place.drawn), parameters, decoded.postprocessor, place)
        self._decoded = decoded
        self._cache_counts = decoded.source.cache_counts
        self._announced: dict[int, WantedRows | None] = {}
        """The samples of announced tasks, by task number."""

    def wanted(self, task: Fill) -> WantedRows | None:
        """Return the samples of the task's rows; None for a task without rows."""
        runs = list(between(task.runs, task.first_row, task.first_row + task.rows))
        return WantedRows(runs, *self._samples_of(runs)) if runs else None

    def _samples_of(self, runs: Sequence[Run]) -> tuple[IndexArray, IndexArray, IndexArray]:
        if len(runs) == 1:
            return self.supply.samples_of(runs[0])
        indices, epochs, numbers = map(np.concatenate, zip(*map(self.supply.samples_of, runs), strict=True))
        return indices, epochs, numbers

    def samples_of(self, task: Fill, first: int, rows: int) -> BatchSamples:
        runs = list(between(task.runs, first, first + rows))
        key = self.supply.batch_key(runs[0], self.parameters.batch_size)
        return BatchSamples(self._samples_of(runs)[0], runs[0].epoch, key)

    def announce(self, task: Fill) -> None:
        try:
            self._announced[task.task] = wanted = self.wanted(task)
            if wanted is not None:
                with self.guard():
                    self._decoded.announce(wanted)
        except Exception as error:  # reading meets it again, and names the sample
            _log.info("samples could not be announced to their source: %s", summary_of(error))

    def fill(self, task: Fill, rows: NamedRows | None = None) -> WorkDone:
        """Make the task's rows; reports those with bad samples."""
        wanted = self._announced.pop(task.task, None) or self.wanted(task)
        if wanted is None:
            return WorkDone()
        rows, first = (self.rows, -task.slot * self.parameters.batch_size) if rows is None else (rows, task.first_row)
        out = _cut_rows(rows, wanted.row - first, len(wanted.indices))
        if task.skip:  # loaders died on the sample itself and on its first `skip - 1` replacements
            bad = [self._bad(wanted, out, _KILLED_ITS_LOADERS, task.skip - 1)]
        else:
            bad = list(self._make(wanted, out))
        if (counts := self._decoded.source.cache_counts) != self._cache_counts:
            self.status.note_cache_counts(counts, self._cache_counts)
            self._cache_counts = counts
        return WorkDone(tuple(bad))

    def _make(self, wanted: WantedRows, out: NamedRows) -> Iterator[BadRow]:
        """Make all rows at once; if that raises, make them one by one to find the bad ones.

        A single row is tried again, too: the treatment of an error that occurs only once must not depend on the size of
        tasks.
        """
        try:
            self._attempt(wanted, out)
            return
        except Exception as error:
            _log.debug("a task's rows are tried one by one: %s", summary_of(error))
        for offset in range(len(wanted.indices)):
            one, row = wanted.alone(offset), _cut_rows(out, offset, 1)
            try:
                self._attempt(one, row)
            except Exception as error:
                bad = self._bad(one, row, summary_of(error))
                if bad.replacement < 0:
                    yield self.with_cause(bad, error)
                    return
                yield bad

    def _attempt(self, wanted: WantedRows, out: NamedRows) -> None:
        with self.guard():
            self._decoded.make(wanted.indices, wanted.epochs, out, self.status.write, wanted.numbers)

    # ---- bad samples

    def _bad(self, one: WantedRows, out: NamedRows, text: str, skipped: int = 0) -> BadRow:
        """Report the bad sample `one`; with `on_error: replace` another sample is put into its row."""
        index = int(one.indices[0])
        replacement = self._put_replacement(one, out, skipped) if self.parameters.on_error == "replace" else -1
        return BadRow(one.row, int(one.epochs[0]), index, replacement, self.locate(index), text)

    def _put_replacement(self, one: WantedRows, out: NamedRows, skipped: int) -> int:
        """Put the first good candidate behind those `skipped` into the row; returns its index, -1 if all are bad."""
        for candidate in islice(self._candidates(one), skipped, None):
            try:
                self._attempt(candidate, out)
            except Exception:
                # The candidate is bad itself. It will be reported at its own position.
                continue
            return int(candidate.indices[0])
        return -1

    def _candidates(self, one: WantedRows) -> Iterator[WantedRows]:
        """Yield what may replace the bad sample `one`: other samples of its epoch, each as it comes at its place."""
        (run,), seed = one.runs, self.parameters.seed
        for position in replacements(seed, run.epoch, run.position, self.supply.among(run)):
            indices, _, numbers = self.supply.samples_of(part_of(run, position - run.position, 1))
            if indices[0] != one.indices[0]:  # a sampler may have drawn it again
                yield WantedRows(one.runs, indices, one.epochs, numbers)
