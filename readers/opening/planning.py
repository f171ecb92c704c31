"""Makes the plan of a run from parameters. Opens and checks, makes one sample on trial; starts no process."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from ...sources import color_of, lists_tops, open_source, with_any_size
from ...sources.files.roles import decide_order, is_input
from ...sources.mixed import open_mix
from ...sources.stream import StreamSource
from ...supplies.choose import Chosen, make_supply
from ...workers.api import (
    AnySource,
    ArraySpec,
    Hooks,
    Parameters,
    Sample,
    Source,
    Transform,
    allocate_rows,
    chosen,
    shown,
)
from ...workers.base import ParameterError, RingAllocationError, SourceError, deadline, in_folder, moving, need
from ...workers.loading import (
    BatchSamples,
    CropMirror,
    Postprocessor,
    RowDecoder,
    RowMaker,
    copy_row,
)
from ...workers.order import At, Supply, globals_kept
from ...workers.plan import Plan, max_loaders, on_trial, raise_unordered
from ...workers.transport import Packed, available_memory, hook_name, trial_copy, unsendable
from .limits import limits_kept

_log = logging.getLogger("blobfeed")

_TRIAL_BATCH = 2
"""Rows of the batch on which a postprocess hook is tried: enough to distinguish the axis of rows from others."""

_OUTLIER = 100
_LARGE_BATCH_BYTES = 16 << 20
"""Setup names a sample of so many times the median's items, if batches have at least so many bytes."""

_MOST_SENT_BYTES = 1 << 30
"""The most memory of a source that is sent to a remote loader: 30,000,000 lines of an image list, or small arrays."""

_TRIAL_ROWS = 32
_TRIAL_S = 0.02
_MANY_ROWS = 256
_MANY_S = 0.001
_DECODED_ROWS = 8
_DECODED_S = 0.002
_AGAIN_S = 0.2
_TRIAL_BYTES = 1 << 20
"""The bound on trial rows in bytes. Setup makes a few rows to measure their time, without a noticeable delay."""


def make_plan(parameters: Parameters, hooks: Hooks, base_dir: Path, train: bool, source: AnySource | None) -> Plan:
    """Open the source, make one sample, lay out the batches.

    Raises ParameterError, SourceError, the exceptions of hooks, and PipelineStalled if that hangs for `timeout_s`.
    """
    source = open_declared(parameters, hooks, base_dir) if source is None else source  # bool() would call its __len__
    _check_remote_loaders(parameters, source)
    _check_specs(source)
    # Samples that vary touch only as much memory as they fill, and a hook may make them smaller.
    # Of what a crop is cut out of where it is stored, no whole sample is ever read.
    is_cut = bool(parameters.transform.crop_size) and hooks.decode is None
    cuts = source.cuts if is_cut else ()
    first = (parameters.tops or parameters.fields or tuple(source.specs))[0]
    cut = {first, *parameters.transform.crop_beside} & {*cuts}
    _check_memory((name, spec) for name, spec in source.specs.items() if not spec.varies and name not in cut)
    chosen(source.specs, parameters.fields, f"parameter 'fields': source {source.kind!r}")
    with deadline(parameters.timeout_s):
        moving("making a sample on trial")
        plan = _made_plan(parameters, hooks, base_dir, train, source)
        if parameters.has_loaders:
            plan.decoded.require_sendable(to_all=True)
            plan.supply.require_sendable()
        return plan


def _made_plan(parameters: Parameters, hooks: Hooks, base_dir: Path, train: bool, source: AnySource) -> Plan:
    if parameters.transform.force_gray and color_of(parameters.source or parameters.mix) == "rgb":
        raise ParameterError(
            "'transform.force_gray' takes the channels as blue, green, red, and the source's pictures are RGB: say "
            "is_color: false in the source, which is faster, too, or color: bgr"
        )
    crop_mirror = CropMirror(parameters.transform, train=train)
    transform = crop_mirror if crop_mirror.active else None

    chosen = make_supply(parameters, hooks, source, base_dir, lambda field: _open(parameters, (field,), base_dir))
    supply = chosen.supply
    supply.cut(parameters).require()
    if parameters.on_error == "raise" and supply.is_computed:
        source.check_samples()
    hooks = replace(hooks, sampler=None, batch_sampler=None)  # no loader needs them
    with globals_kept(), limits_kept(), _reading_undone(parameters, source):
        plan = _tried_plan(parameters, hooks, source, transform, base_dir, chosen)
    plan = replace(plan, start=_begin(plan))
    if rest := plan.cut.unequal_rest:
        _log.warning(
            "last_batch is 'partial', and an epoch's last round has a sample for %d of %d ranks: the others end the "
            "epoch a batch earlier; where ranks wait for each other in each step, use last_batch 'wrap' or 'drop'",
            *(rest, parameters.ranks),
        )
    return plan


def _check_specs(source: AnySource) -> None:
    """Raises ParameterError if a user's source describes its arrays by anything but ArraySpecs."""
    what = f"source {source.kind!r} ({type(source).__name__}): its specs"
    if not isinstance(source.specs, Mapping):
        raise ParameterError(
            f"{what} are {shown(source.specs)}: expected a mapping of the arrays' names to their ArraySpecs; a method "
            "that gives it needs the line @property above it"
        )
    if not source.specs:
        raise ParameterError(f"{what} are empty: expected the name of an array and its ArraySpec, at least one")
    for name, spec in source.specs.items():
        said = repr(spec) if isinstance(spec, ArraySpec) else shown(spec)
        if not isinstance(spec, ArraySpec) or not _describes_an_array(spec):
            raise ParameterError(
                f"{what} say of {name!r} {said}: expected an ArraySpec such as ArraySpec((3, 32, 32), "
                "np.dtype(np.uint8)): a tuple of whole numbers from 0 on, and a type in this machine's byte order that "
                "holds no objects"
            )


def _describes_an_array(spec: ArraySpec) -> bool:
    shape, dtype = spec.shape, spec.dtype
    whole = isinstance(shape, tuple) and all(isinstance(extent, int | np.integer) and extent >= 0 for extent in shape)
    return whole and isinstance(dtype, np.dtype) and dtype.isnative and not dtype.hasobject


def _check_memory(specs: Iterable[tuple[str, ArraySpec]]) -> None:
    """Raises RingAllocationError for a sample larger than the available memory: the kernel would kill the trainer."""
    have = available_memory()
    for name, spec in specs:
        if spec.nbytes > have:
            raise RingAllocationError(
                f"one sample of {name!r}, {spec}, takes {spec.nbytes:,} bytes, and {have:,} bytes are available: the "
                "first axis of a stored array counts the samples; if sizes vary, declare a smaller one as the largest"
            )


@contextmanager
def _reading_undone(parameters: Parameters, source: AnySource) -> Iterator[None]:
    """Restore a user's source after the block if it opened a handle that it does not close and that cannot be sent.

    An index or array that it has loaded meanwhile is kept and sent: otherwise each loader would load it again.
    """
    own = source.without_close()
    before = trial_copy(own) if parameters.has_loaders else own
    try:
        yield
    finally:
        if before is not own and unsendable({"": own}) is not None:
            for part, copy in zip(own, before, strict=True):
                vars(part).clear()
                vars(part).update(vars(copy))


def _check_remote_loaders(parameters: Parameters, source: AnySource) -> None:
    """Raises ExtraMissing without Ray, and ParameterError for a source that only this host's loaders can read."""
    if parameters.remote_loaders is None:
        return
    need("ray", "remote_loaders")
    if (size := sum(os.fstat(memory).st_size for memory in source.descriptors)) > _MOST_SENT_BYTES:
        raise ParameterError(
            f"remote_loaders: {size:,} bytes of the source {source.kind!r} lie in this host's memory, and at most "
            f"{_MOST_SENT_BYTES:,} are sent to each loader: write them to a file that all hosts can read"
        )


def open_declared(parameters: Parameters, hooks: Hooks, base_dir: Path) -> AnySource:
    """Open the source that `source` or `mix` declares; raises ParameterError, SourceError, PipelineStalled.

    Without `fields` the tops are read. With a hook the tops are the hook's results: if the source lacks one of them, or
    if it is a stream, its default fields are read.
    """
    fields, hooked = parameters.fields or parameters.tops, (hooks.decode, hooks.postprocess) != (None, None)
    with deadline(parameters.timeout_s):
        moving("opening the source")
        if parameters.fields is not None or not hooked:
            return _open(parameters, fields, base_dir)
        if fields is not None and StreamSource.kind not in (parameters.source or {}):
            with suppress(ParameterError, SourceError):
                return _open(parameters, fields, base_dir)
        return _open(parameters, None, base_dir)


def _open(parameters: Parameters, fields: tuple[str, ...] | None, base_dir: Path) -> AnySource:
    declared = parameters.source
    if declared is None:
        return open_mix(parameters.mix, tops=fields, base_dir=base_dir)
    if set(declared) == {StreamSource.kind}:
        return StreamSource.from_options(declared[StreamSource.kind], tops=fields)
    if parameters.transform.crop_size or parameters.transform.random_resized_crop:
        declared = with_any_size(declared)
    return open_source(declared, tops=fields, base_dir=base_dir)


def _common(parameters: Parameters, hooks: Hooks, source: AnySource, decoded: RowDecoder) -> dict[str, Any]:
    """Return the arguments common to all kinds of plans; user code is packed with its name for messages.

    The run gets the user's own `hooks`. Setup has tried a copy, and whatever the copy stored is discarded.
    """
    decoded.rows.hooks = hooks
    if decoded.postprocessor is not None and hooks.postprocess is not None:
        decoded.postprocessor.hook = hooks.postprocess
    given = {"decode": hooks.decode, "postprocess": hooks.postprocess}
    named = {f"{name} hook {hook_name(hook)!r}": hook for name, hook in given.items() if hook is not None}
    users = {f"source {source.kind!r} ({type(source).__name__})": source} if source.runs_user_code else {}
    made = decoded.postprocessor or decoded.rows
    return {
        "parameters": parameters,
        "is_ordered": _is_ordered(parameters, decoded.rows, made.specs),
        "decoded": Packed(decoded, decoded.source.modules, {**named, **users}, maps=parameters.remote_loaders is None),
        "specs": made.specs,
        "slot_specs": made.slot_specs,
        "postprocesses": hooks.postprocess is not None,
        "max_loaders": max_loaders(parameters),
    }


def _is_ordered(parameters: Parameters, rows: RowMaker, specs: Mapping[str, ArraySpec]) -> bool:
    """Return true if the user, or the names, say in which order the tops come.

    Raises ParameterError where a part of setup has taken them by position, and nothing says it.
    """
    listed = parameters.tops or parameters.fields or rows.names_tops
    if listed or lists_tops(parameters.source or parameters.mix) or decide_order(tuple(specs)):
        return True
    first = next(iter(specs))
    if parameters.transform != Transform() and not is_input(first):
        raise_unordered("'transform' changes the first top", specs)
    if rows.hooks.decode is not None:
        raise_unordered("decode returned a tuple, whose arrays get the names of what is read", specs)
    return False


# ---- on trial


def _tried_plan(
    parameters: Parameters,
    hooks: Hooks,
    plain: AnySource,
    transform: CropMirror | None,
    base_dir: Path,
    chosen: Chosen,
) -> Plan:
    """Return the plan, from a sample that is made on trial."""
    (supply, decoder, first), source, cached_samples = chosen, plain, 0
    if parameters.cache is not None:
        need("lmdb", "parameter 'cache'")
        from ...sources.cache import CachedSource  # few runs have one

        source = cached = CachedSource(
            cast("Source", plain), in_folder(base_dir, parameters.cache.path), parameters.cache.size_limit
        )
        cached_samples = cached.cached_samples
    trial_source, trial_hooks = decoder.trial_copy(source, hooks)

    def read(index: int) -> Sample:
        return decoder.read(trial_source, index, supply, parameters)

    def tried(index: int) -> tuple[int, RowMaker, float]:
        rows = RowMaker(trial_hooks, source.specs, partial(read, index), parameters, transform)
        _check_memory(rows.slot_specs.items())
        if supply.parts:  # read from its start each time; and each batch is a task anyway
            return index, rows, 0.0
        # The trial sample has just been cached, so its time would not be typical of the other samples.
        timed = decoder(plain if cached_samples < plain.known_samples else source, rows)
        return index, rows, _seconds_per_row(partial(_make_again, timed, index, supply, parameters), rows)

    with closing(source):
        may_be_bad = first is None or parameters.on_error == "replace"
        index, rows, seconds = on_trial(tried, source, first or 0, may_be_bad=may_be_bad)
        postprocessor, per_row = _postprocessor(trial_hooks, parameters, rows, partial(read, index))
    plan = Plan(
        **_common(parameters, hooks, plain, decoder(source, rows, postprocessor)),
        seconds_per_row=seconds + per_row,
        rows_at_once=source.rows_at_once,
        tried=index,
        supply=supply,
    ).sized()
    _warn_of_outliers(plan, plain)
    return plan


def _warn_of_outliers(plan: Plan, source: AnySource) -> None:
    """Name the sample that alone makes batches large: each row has room for the largest sample."""
    for top, outlier in source.outliers.items():
        spec, rows = plan.slot_specs.get(top), plan.parameters.batch_size
        is_alone = outlier.items >= _OUTLIER * max(1.0, outlier.median)
        if spec is not None and spec == source.specs[top] and is_alone and rows * spec.nbytes >= _LARGE_BATCH_BYTES:
            _log.warning(
                "source %s: a batch takes %d bytes for %r: each of its %d rows has room for %d items, as many as "
                "sample %d (%s) has, and half of the samples have at most %g: set max_length in the source; a larger "
                "sample is an error then, or another one comes in its place (on_error: replace)",
                *(source.kind, rows * spec.nbytes, top, rows, outlier.items, outlier.index),
                *(source.where(outlier.index), outlier.median),
            )


def _begin(plan: Plan) -> At:
    """Return where the first round begins; raises ParameterError if there is none."""
    begun = plan.from_start()
    if begun.total_batches == 0:
        given, supply = plan.parameters, plan.supply
        (epoch, item), items = supply.land(given)[1], supply.items or 0
        raise ParameterError(
            f"parameter 'rand_skip' is {given.rand_skip}, of which the seed takes {epoch * items + item}: they leave "
            f"no batch of epochs={given.epochs} with {items} samples each; use a smaller rand_skip, or more epochs"
        )
    return begun.start


def _seconds_per_row(seconds_for: Callable[[int], float], made: RowMaker) -> float:
    """Measure the seconds per row when everything is warm; `seconds_for`: makes so many rows, and measures it.

    The first run opens files and waits for the disk, so it is repeated unless it took 0.2 s. Rows in a run share the
    cost of a call. The minimum of several runs counts, since other processes can only make them longer.
    """
    seconds = seconds_for(1)
    row_bytes = sum(spec.nbytes for spec in made.specs.values())
    # The first runs of a 10 µs decode take 130 µs, which would prevent quick batches from sharing a slot.
    most, short_s = (_TRIAL_ROWS, _TRIAL_S) if made.changes_nothing else (_DECODED_ROWS, _DECODED_S)
    fit = max(1, _TRIAL_BYTES // max(1, row_bytes))
    runs = [(1, _AGAIN_S), *[(min(most, fit), short_s)] * 3]
    if made.changes_nothing:
        # Of 32 rows of 784 bytes the call is most of the time: measured by these alone, a task had 44 batches, not 64.
        runs += [(min(_MANY_ROWS, fit), _MANY_S)] * 2
    for rows, limit_s in runs:
        if seconds * rows < limit_s:
            seconds = min(seconds, seconds_for(rows) / rows)
    return seconds


def _make_again(decoded: RowDecoder, index: int, supply: Supply, given: Parameters, rows: int) -> float:
    begun = time.perf_counter()
    # Always the trial sample: another one may be bad, and the run reports that with more context.
    out = allocate_rows(decoded.rows.slot_specs, rows)
    decoded.try_on(np.full(rows, index, np.int64), 0, out, supply, given)
    return time.perf_counter() - begun


def _postprocessor(
    hooks: Hooks, parameters: Parameters, rows: RowMaker, first: Callable[[], Sample]
) -> tuple[Postprocessor | None, float]:
    """Try the postprocess hook, if there is one, on a few copies of sample `first()`; returns also the seconds per row.

    A hook that fails is tried on a whole batch: it may be written for four samples of each of 16 classes.
    """
    if hooks.postprocess is None:
        return None, 0.0
    hook, sample, row = hooks.postprocess, first(), allocate_rows(rows.slot_specs, 1)
    rows.put(sample, row, 0)
    index, count = sample.index, min(parameters.batch_size, _TRIAL_BATCH)
    while True:
        trial, samples = allocate_rows(rows.slot_specs, count), BatchSamples(np.full(count, index, np.int64), 0, ())
        for copy in range(count):
            copy_row(row, 0, trial, copy)
        begun = time.perf_counter()
        try:
            postprocessor = Postprocessor(hook, rows.slot_specs, trial, samples, parameters)
        except Exception:
            if count == parameters.batch_size:
                raise
            count = parameters.batch_size
        else:
            return postprocessor, (time.perf_counter() - begun) / count
