"""Makes the sampler of a run from the parameters `sampler` and `batch_sampler` or a user's hooks; opens and checks."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..workers.api import (
    AnySource,
    Hooks,
    IndexArray,
    Parameters,
    Positive,
    Source,
    allocate_rows,
    check_options,
    nearest,
)
from ..workers.base import ParameterError, SourceError, in_folder, read_whole
from .samplers import (
    BalancedSampler,
    HookSampler,
    IterableSampler,
    Sampler,
    SubsetSampler,
    WeightedSampler,
    check_range,
    check_weights,
    samplers_in,
)

OpenField = Callable[[str], AnySource]

_LABELS_AT_ONCE = 4096
_LABELS_BYTES = 8 << 20


class SamplerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of `sampler:`: one of the first four, or draws, which also goes with weights or balance."""

    weights: Any = None
    balance: str | None = None
    indices: Any = None
    exclude: Any = None
    draws: Positive | None = None


def make_sampler(
    parameters: Parameters, hooks: Hooks, source: AnySource, base_dir: Path, open_field: OpenField
) -> Sampler | None:
    """Make the sampler; None if `shuffle` determines the order. `open_field`: opens the source for one field alone.

    Raises ParameterError, SourceError.
    """
    declared = {"sampler": parameters.sampler, "batch_sampler": parameters.batch_sampler}
    chosen = {name: value for name, value in declared.items() if value is not None}
    overridden = [name for name in declared if getattr(hooks, name) is not None]
    if not chosen and not overridden:
        return None
    if len(chosen) + len(overridden) > 1:
        raise ParameterError(
            f"several things say which samples an epoch has: {', '.join([*chosen, *(f'{n}()' for n in overridden)])}; "
            "keep one of them"
        )
    if not isinstance(source, Source):
        raise ParameterError(f"{[*chosen, *overridden][0]} needs samples that have indices, and a stream's have none")
    if overridden:
        name = overridden[0]
        sampler: Sampler = HookSampler(f"{name}()", getattr(hooks, name), gives_batches=name == "batch_sampler")
    elif isinstance(parameters.sampler, Mapping):
        options = check_options(parameters.sampler, SamplerOptions, "sampler")
        sampler = _declared(options, parameters, source, base_dir, open_field)
    else:
        sampler = _given(*next(iter(chosen.items())), parameters, len(source))
    _check_beside(parameters, may_shuffle=isinstance(sampler, SubsetSampler))
    return sampler


def _read_labels(source: Source, name: str, names: Sequence[str]) -> NDArray[Any]:
    """Read the field of every sample, shape (samples,), at the sampler's first draw. `names`: all that is read."""
    samples, specs = len(source), {each: source.specs[each] for each in names}
    sample_bytes = max(1, sum(spec.nbytes for spec in specs.values()))
    block = max(1, min(_LABELS_AT_ONCE, _LABELS_BYTES // sample_bytes, samples))
    rows = allocate_rows(specs, block)
    labels = np.empty(samples, source.specs[name].dtype)
    for first in range(0, samples, block):
        count = min(block, samples - first)
        out = {each: memory[:count] for each, memory in rows.items()}
        source.read(np.arange(first, first + count, dtype=np.int64), out)
        labels[first : first + count] = np.asarray(out[name]).reshape(count)
    source.close()
    return labels


def _declared(
    options: SamplerOptions, parameters: Parameters, source: Source, base_dir: Path, open_field: OpenField
) -> Sampler:
    samples = len(source)
    ways = [name for name in ("weights", "balance", "indices", "exclude") if getattr(options, name) is not None]
    if len(ways) > 1 or not (ways or options.draws) or (options.draws and ways in (["indices"], ["exclude"])):
        raise ParameterError(
            f"sampler is {dict(parameters.sampler)!r}: expected one of {{weights: FILE, draws: n}}, "
            "{balance: FIELD}, {indices: FILE}, {exclude: FILE}, or {draws: n} for equal weights"
        )
    if options.indices is not None:
        return _subset(options.indices, parameters, samples, base_dir, "sampler.indices")
    if options.exclude is not None:
        excluded = _indices(options.exclude, samples, base_dir, "sampler.exclude")
        left = np.setdiff1d(np.arange(samples, dtype=np.int64), excluded)
        if not len(left):
            raise ParameterError(f"sampler.exclude has all {samples} samples: expected at least one less")
        return SubsetSampler(left, shuffle=bool(parameters.shuffle))
    draws = options.draws or samples
    if options.balance is not None:
        # Otherwise it is a user's object, which cannot be opened for one field alone.
        declared = any((parameters.source or {}).values())
        opened = _for_field(options.balance, source, open_field) if declared else source
        labelled = _with_labels(opened, options.balance)
        names = [options.balance] if declared else [*labelled.specs]
        labels = partial(_read_labels, labelled, options.balance, names)
        return BalancedSampler(options.balance, labels, draws, labelled.descriptors)
    if options.weights is None:
        return WeightedSampler(None, draws)
    values = _numbers(options.weights, base_dir, "sampler.weights")
    return WeightedSampler(check_weights(values, samples, "sampler.weights"), draws)


def _for_field(field: str, source: Source, open_field: OpenField) -> AnySource:
    """Return the declared source opened for `field` alone, or `source` itself if the field is another one there.

    Options may be relative to the first top, or name several, such as `dims`, `window` or `patch`.
    """
    try:
        alone = open_field(field)
    except (ParameterError, SourceError) as error:
        if field in source.specs:
            return source
        raise ParameterError(
            f"sampler.balance is {field!r}{nearest(field, source.specs)}: expected a field of the source; {error}"
        ) from None
    if field not in source.specs or not isinstance(alone, Source):
        return alone
    is_same = len(alone) == len(source) and alone.specs.get(field) == source.specs[field]
    if not is_same:
        alone.close()
    return alone if is_same else source


def _with_labels(source: AnySource, name: str) -> Source:
    """Return `source` if its field `name` can be balanced; raises ParameterError."""
    if not isinstance(source, Source) or name not in source.specs:
        names = ", ".join(source.specs)
        raise ParameterError(
            f"sampler.balance is {name!r}{nearest(name, source.specs)}: expected a field of the source, which has "
            f"{names}"
        )
    spec = source.specs[name]
    if spec.varies or spec.items != 1 or spec.dtype.kind not in "iubfSU":
        raise ParameterError(
            f"sampler.balance is {name!r}, which is {spec}: expected one number, or one name, for each sample"
        )
    return source


def _given(name: str, value: Any, parameters: Parameters, samples: int) -> Sampler:
    gives_batches = name == "batch_sampler"
    if isinstance(value, np.ndarray | Sequence) and not isinstance(value, str) and not gives_batches:
        return _subset(value, parameters, samples, Path(), name)
    if isinstance(value, Iterator):
        raise ParameterError(
            f"{name} is {value!r}, which can be iterated over only once: give the function that makes it"
        )
    for part in samplers_in(value):
        if (getattr(part, "num_replicas", 1) or 1) > 1 and parameters.ranks > 1:
            raise ParameterError(
                f"{name} is {value!r}, which draws its rank's part ({part.num_replicas} ranks), and of what is drawn "
                f"each of world_size={parameters.world_size} ranks takes its part: leave {name} out and give "
                "shuffle=True, or keep it and give rank=0, world_size=1"
            )
    if callable(value):
        called = getattr(value, "__qualname__", type(value).__name__)  # not by hook_name: saved states have it so
        return HookSampler(f"{name} {called}", value, gives_batches=gives_batches)
    if isinstance(value, Iterable) and not isinstance(value, str | Mapping):
        sampler = IterableSampler(f"{name} {type(value).__name__}", value, gives_batches=gives_batches)
        if sampler.about.length == 0:
            raise ParameterError(f"{name} is {value!r}, which has no {sampler.about.items}: expected at least one")
        return sampler
    also = "" if gives_batches else " a mapping with weights, balance, indices, exclude or draws,"
    raise ParameterError(
        f"{name} is {value!r}: expected{also} a function of (epoch, samples, rng), or something to iterate over, such "
        "as one of torch's samplers"
    )


def _subset(value: Any, parameters: Parameters, samples: int, base_dir: Path, what: str) -> SubsetSampler:
    return SubsetSampler(_indices(value, samples, base_dir, what), shuffle=bool(parameters.shuffle))


def _indices(value: Any, samples: int, base_dir: Path, what: str) -> IndexArray:
    """A list of at least one sample index, below `samples`."""
    indices = _numbers(value, base_dir, what)
    if indices.ndim != 1 or not len(indices) or indices.dtype.kind not in "iu":
        raise ParameterError(
            f"{what} has the shape {indices.shape} and the type {indices.dtype}: expected a list of whole numbers"
        )
    check_range(indices, samples, what, ParameterError)
    return indices.astype(np.int64)


def _numbers(value: Any, base_dir: Path, what: str) -> NDArray[Any]:
    """Return an array or list as an array; read a path as a .npy file, or as text with a number on each line."""
    if not isinstance(value, str | Path):
        try:
            return np.asarray(value)
        except ValueError as error:
            raise ParameterError(f"{what}: expected a file, or a list of numbers: {error}") from None
    path = in_folder(base_dir, value)
    try:
        content = read_whole(path)
        if path.suffix == ".npy":
            return np.asarray(np.load(io.BytesIO(content)))
        words = content.decode().split()
        return np.array([int(word) if word.lstrip("-").isdigit() else float(word) for word in words])
    except (OSError, EOFError, ValueError) as error:
        raise ParameterError(
            f"{what} is {str(value)!r}: {path} cannot be read as a .npy file, or as text with a number on each line: "
            f"{error}"
        ) from error


def _check_beside(parameters: Parameters, *, may_shuffle: bool) -> None:
    """Raises ParameterError for other parameters that determine the order."""
    if parameters.shuffle and not (may_shuffle and parameters.shuffle is True):
        raise ParameterError(
            f"shuffle is {parameters.shuffle!r}, and a sampler gives the order: leave shuffle out (true shuffles a "
            "list of indices, and nothing else)"
        )
    if parameters.rand_skip:
        raise ParameterError(f"rand_skip is {parameters.rand_skip}, and a sampler gives the order: skip in the sampler")
    if parameters.mix:
        raise ParameterError(
            f"mix has {len(parameters.mix)} sources, and a sampler gives the order, so the weights of mix would not "
            "count: use source: {concat: […]}, and the sampler's own weights"
        )
