"""The recipe: how rows of samples become rows of the tops. The same object runs on trial in setup and in each loader.

    source.read → raw arrays → decode hook (if any) → crop and mirror (if any) → the slot's rows

Where there is neither hook nor crop, the source reads straight into the slot. Else raw samples go through a small
scratch memory, allocated once, a block of rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .epoch_order import EpochOrder
from .errors import ParameterError
from .sample_rng import SampleRng
from .sources.base import Source
from .specs import AnyArray, ArraySpec, IndexArray, NamedRows, RaggedRows, Rows, allocate_rows
from .transform import CropMirror

_SCRATCH_BYTES = 1 << 20
"""Raw samples are read in blocks of about this size: large enough for a batched read to pay, small enough for the
cache to still hold the block when it is decoded."""

_MOST_SCRATCH_ROWS = 64


class Sample(Mapping[str, AnyArray]):
    """One raw sample as a decode hook gets it: arrays by name, `index` in the source, `epoch`.

    The arrays are views on memory that the next sample reuses: return them or what you compute from them, keep copies.
    """

    __slots__ = ("_arrays", "epoch", "index")

    def __init__(self, arrays: Mapping[str, AnyArray], index: int, epoch: int) -> None:
        self._arrays = arrays
        self.index = index
        self.epoch = epoch

    def __getitem__(self, name: str) -> AnyArray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


DecodeHook = Callable[[Sample, np.random.Generator], object]
PostprocessHook = Callable[[dict[str, AnyArray]], Mapping[str, AnyArray] | None]


@dataclass(frozen=True, slots=True)
class Hooks:
    """User code that runs in loaders.

    `decode(sample, rng)` returns a mapping of names to arrays, a tuple of arrays in the tops' order, or one array where
    there is one top. `postprocess(batch)` gets the whole batch by name, arrays of shape (rows, ...), and changes it in
    place or returns what shall take its place; shapes and types stay.
    """

    decode: DecodeHook | None = None
    postprocess: PostprocessHook | None = None


Progress = Callable[[int], None]
"""Told the index of the sample that decode gets next."""


def _ignore_progress(_: int) -> None:
    """Outside a loader nobody watches."""


class Recipe:
    """`specs`: what the tops' rows are, by name and in order; learnt by making one sample."""

    def __init__(
        self,
        source: Source,
        order: EpochOrder,
        hooks: Hooks,
        *,
        tops: tuple[str, ...] | None,
        seed: int,
        transform: CropMirror | None,
        max_shapes: Mapping[str, tuple[int, ...]],
        trial_index: int,
    ) -> None:
        self.source = source
        self.order = order
        self.hooks = hooks
        self._rng = SampleRng(seed)
        self._transform = transform
        self._scratch: dict[str, Rows] = {}
        self.specs = self._learn(tops, max_shapes, trial_index)
        self._direct = hooks.decode is None and transform is None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_scratch": {}}

    def make(self, indices: IndexArray, epochs: IndexArray, out: NamedRows, progress: Progress) -> None:
        """Make sample indices[i] of epochs[i] into row i of every top of `out`; raises whatever a sample raises."""
        if self._direct:
            self.source.read(indices, out)
            return
        block = len(next(iter(self._raw_rows().values())))
        for first in range(0, len(indices), block):
            self._make_block(indices, epochs, range(first, min(first + block, len(indices))), out, progress)

    def _make_block(
        self, indices: IndexArray, epochs: IndexArray, rows: range, out: NamedRows, progress: Progress
    ) -> None:
        raw = {name: block[: len(rows)] for name, block in self._raw_rows().items()}
        self.source.read(indices[rows.start : rows.stop], raw)
        for place, row in enumerate(rows):
            sample = Sample(_row_of(raw, place), int(indices[row]), int(epochs[row]))
            progress(sample.index)
            rng = self._rng.generator(sample.epoch, sample.index)
            for name, value in self._decode(sample, rng).items():
                self._store(name, value, out[name], row, rng)

    def _raw_rows(self) -> dict[str, Rows]:
        if not self._scratch:
            sample_bytes = max(1, sum(spec.nbytes for spec in self.source.specs.values()))
            self._scratch = allocate_rows(
                self.source.specs, min(max(1, _SCRATCH_BYTES // sample_bytes), _MOST_SCRATCH_ROWS)
            )
        return self._scratch

    def _decode(self, sample: Sample, rng: np.random.Generator) -> Mapping[str, AnyArray]:
        if self.hooks.decode is None:
            return {name: sample[name] for name in self._top_names}
        return _by_name(self.hooks.decode(sample, rng), self._top_names)

    def _store(self, name: str, value: AnyArray, rows: Rows, row: int, rng: np.random.Generator) -> None:
        if self._transform is not None and name == self._image_top:
            self._transform.put(value, rows, row, rng)
            return
        spec = self.specs[name]
        if value.dtype != spec.dtype or (not spec.varies and value.shape != spec.shape):
            raise ValueError(
                f"top {name!r} got an array of shape {value.shape} and type {value.dtype}, expected {spec} "
                "as learnt from the first sample; decode must return the same shape and type for every sample"
            )
        if isinstance(rows, RaggedRows):
            rows.put(row, value)
        else:
            rows[row] = value

    # ---- learning the specs

    def _learn(
        self, tops: tuple[str, ...] | None, max_shapes: Mapping[str, tuple[int, ...]], trial_index: int
    ) -> dict[str, ArraySpec]:
        """The tops' specs, from the source's or, with a decode hook, from what it makes of one sample."""
        names = tops or tuple(self.source.specs)
        self._top_names = names
        self._image_top = names[0]
        trial = self.hooks.decode is not None
        specs = self._specs_of_trial(names, trial_index) if trial else self._specs_of_source(names)
        for name, shape in max_shapes.items():
            if name not in specs:
                raise ParameterError(f"max_shapes names {name!r}, but the tops are {', '.join(specs)}")
            specs[name] = ArraySpec(tuple(shape), specs[name].dtype, varies=True)
        if self._transform is not None:
            specs[names[0]] = self._transform.output_spec(specs[names[0]])
        return specs

    def _specs_of_source(self, names: tuple[str, ...]) -> dict[str, ArraySpec]:
        have = self.source.specs
        if missing := [name for name in names if name not in have]:
            raise ParameterError(f"tops: the source has {', '.join(have)}, but not {', '.join(missing)}")
        return {name: have[name] for name in names}

    def _specs_of_trial(self, names: tuple[str, ...], index: int) -> dict[str, ArraySpec]:
        raw = allocate_rows(self.source.specs, 1)
        self.source.read(np.array([index], np.int64), raw)
        made = self._decode(Sample(_row_of(raw, 0), index, 0), self._rng.generator(0, index))
        return {name: ArraySpec(made[name].shape, made[name].dtype) for name in names}


def _row_of(raw: Mapping[str, Rows], row: int) -> dict[str, AnyArray]:
    return {name: rows.get(row) if isinstance(rows, RaggedRows) else rows[row] for name, rows in raw.items()}


def _by_name(result: object, names: tuple[str, ...]) -> dict[str, AnyArray]:
    """What decode returned, as arrays by top name in the tops' order; raises ValueError where they do not match."""
    values: Mapping[Any, Any]
    if isinstance(result, Mapping):
        values = result
    elif isinstance(result, tuple | list):
        values = dict(zip(names, result, strict=len(names) == len(result)))
    else:
        values = {names[0]: result}
    if set(values) != set(names):
        raise ValueError(
            f"decode returned {type(result).__name__} with {sorted(map(str, values))}, "
            f"expected one array for each of the tops {', '.join(names)}"
        )
    return {name: _as_array(values[name]) for name in names}


def _as_array(value: object) -> AnyArray:
    """Arrays as they are; a Python float becomes float32, the type of Caffe's blobs, an int int64."""
    if isinstance(value, float):
        return np.asarray(value, np.float32)
    return np.asarray(value)
