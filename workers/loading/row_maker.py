"""From one raw sample to one row of every top: the decode hook, crop and mirror, and the check of what came out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..base.errors import ParameterError
from ..base.hooks import Hooks, Sample, by_name
from ..base.specs import AnyArray, ArraySpec, NamedRows, RaggedRows, Rows
from ..order.sample_rng import SampleRng
from .transform import CROPS, NOTE_SPEC, CropMirror


class RowMaker:
    """`specs`: what the tops' rows are, by name and in order. `slot_specs`: with what a slot has beside them.

    They are those of the raw samples or, with a decode hook, learnt from what it makes of the sample `trial()`.
    Raises ParameterError, and whatever the hook raises.
    """

    def __init__(
        self,
        hooks: Hooks,
        raw_specs: Mapping[str, ArraySpec],
        trial: Callable[[], Sample],
        *,
        tops: tuple[str, ...] | None,
        seed: int,
        transform: CropMirror | None,
        max_shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.hooks = hooks
        self._rng = SampleRng(seed)
        self._transform = transform
        self._names = tops or tuple(raw_specs)
        specs = self._raw_tops(raw_specs) if hooks.decode is None else self._tried(trial())
        specs.update(self._varying(specs, max_shapes))
        self._image_type = specs[self._names[0]].dtype
        if transform is not None:
            specs[self._names[0]] = transform.output_spec(specs[self._names[0]])
        self.specs = specs
        self.slot_specs = {**specs, CROPS: NOTE_SPEC} if transform is not None and transform.is_noted else specs
        self.changes_nothing = hooks.decode is None and specs == dict(raw_specs) and transform is None

    def put(self, sample: Sample, out: NamedRows, row: int) -> None:
        """Make `sample` into `row` of every top; raises what the hook raises, ValueError for a wrong shape or type."""
        rng = self._rng.generator(sample.epoch, sample.index)
        for name, value in self._decode(sample, rng).items():
            if self._transform is not None and name == self._names[0]:
                self._store_image(name, value, out, row, rng, self._transform)
            else:
                self._store(name, value, out[name], row)

    def _decode(self, sample: Sample, rng: np.random.Generator) -> Mapping[str, AnyArray]:
        if self.hooks.decode is None:
            return {name: sample[name] for name in self._names}
        return by_name(self.hooks.decode(sample, rng), self._names, "decode returned")

    def _store_image(
        self, name: str, value: AnyArray, out: NamedRows, row: int, rng: np.random.Generator, transform: CropMirror
    ) -> None:
        self._check_image(name, value, self.specs[name], transform)
        crop = transform.put(value, out[name], row, rng)
        if isinstance(notes := out.get(CROPS), np.ndarray):
            notes[row] = transform.note(crop, value.shape)

    def _store(self, name: str, value: AnyArray, rows: Rows, row: int) -> None:
        spec = self.specs[name]
        if value.dtype != spec.dtype or (not spec.varies and value.shape != spec.shape):
            raise ValueError(
                f"top {name!r} got an array of shape {value.shape} and type {value.dtype}, expected {spec} "
                "as learnt from the first sample; every sample must have the same shape and type, or declare max_shapes"
            )
        if isinstance(rows, RaggedRows):
            rows.put(row, value)
        else:
            rows[row] = value

    def _check_image(self, name: str, value: AnyArray, spec: ArraySpec, transform: CropMirror) -> None:
        """Images may differ in what the transform makes equal, and in nothing else: NumPy would broadcast or round."""
        fits = value.ndim == 3 and (spec.varies or transform.output_shape(value.shape) == spec.shape)
        if value.dtype != self._image_type or not fits:
            raise ValueError(
                f"top {name!r} got an array of shape {value.shape} and type {value.dtype}, expected an image of type "
                f"{self._image_type} from which transform makes {spec}, as learnt from the first sample; if images "
                "differ in size, set crop_size or declare max_shapes; if in channels, set force_color or force_gray"
            )

    def _raw_tops(self, raw_specs: Mapping[str, ArraySpec]) -> dict[str, ArraySpec]:
        if missing := [name for name in self._names if name not in raw_specs]:
            raise ParameterError(f"tops: the source has {', '.join(raw_specs)}, but not {', '.join(missing)}")
        return {name: raw_specs[name] for name in self._names}

    def _tried(self, sample: Sample) -> dict[str, ArraySpec]:
        made = self._decode(sample, self._rng.generator(sample.epoch, sample.index))
        return {name: ArraySpec(made[name].shape, made[name].dtype) for name in self._names}

    def _varying(
        self, specs: Mapping[str, ArraySpec], max_shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, ArraySpec]:
        if unknown := [name for name in max_shapes if name not in specs]:
            raise ParameterError(f"max_shapes names {', '.join(unknown)}, but the tops are {', '.join(specs)}")
        return {name: ArraySpec(tuple(shape), specs[name].dtype, varies=True) for name, shape in max_shapes.items()}
