"""Makes one row of every top from one raw sample: runs the decode hook, crops and mirrors, checks the result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..api import (
    FLOAT32_WHOLE,
    AnyArray,
    ArraySpec,
    Boxes,
    DecodeHook,
    Hooks,
    NamedRows,
    Needs,
    Parameters,
    RaggedRows,
    Rows,
    Sample,
    as_array,
    by_name,
    check_decode,
    chosen,
    holds,
)
from ..base import ParameterError, SampleShapeError, SampleTooLargeError
from ..order import SampleRng, SampleSeeds
from .transform import CROPS, NOTE_SPEC, Crop, CropMirror

_NUMBERS: Mapping[str, tuple[type, int]] = {"int64": (int, np.iinfo(np.int64).max), "float32": (float, FLOAT32_WHOLE)}
"""The numbers of Python that `as_array` makes a number of that type of, and up to which amount it does so always."""


class RowMaker:
    """Makes rows. `specs`: the specs of the rows, by name and in order. `slot_specs`: these and the notes of crops.

    Without a decode hook the specs are those of the raw samples; with one they are learnt from its result for the
    sample `trial()`. With a postprocess hook the parameter `tops` names that hook's results and does not apply to rows.
    Raises ParameterError, and the exceptions of the hook.
    """

    def __init__(
        self,
        hooks: Hooks,
        raw_specs: Mapping[str, ArraySpec],
        trial: Callable[[], Sample],
        parameters: Parameters,
        transform: CropMirror | None,
    ) -> None:
        self.hooks = hooks
        self._rng = SampleRng(parameters.seed)
        self.seeds = SampleSeeds(parameters.seed, is_on=parameters.seed_globals)
        self._cut_by: CropMirror | None = None
        self._raw_specs, self._cut_names = raw_specs, tuple[str, ...]()
        self._concatenate = frozenset(parameters.concatenate)
        self._declared_by = dict.fromkeys(parameters.concatenate, "max_rows") if parameters.max_rows else {}
        self._declared_by |= dict.fromkeys(parameters.max_shapes, "max_shapes")
        wanted = parameters.tops if hooks.postprocess is None else None
        fields = parameters.fields or tuple(raw_specs)
        self._chosen = () if fields == tuple(raw_specs) else fields  # a source of the user's own has all of them
        self.names_tops = False
        """True if decode returned its arrays by name."""
        if hooks.decode is None:
            specs = dict(chosen(raw_specs, wanted or fields, "parameter 'tops'"))
            self._names = tuple(specs)
        else:
            check_decode(hooks.decode)
            first = trial()
            rng = self._rng.generator(first.epoch, first.number)
            if transform is not None and transform.before_decode:
                self._cut_by, self._cut_names = transform, _with_beside(transform, raw_specs, fields[0])[0]
                first = self._cut(first, transform, transform.draw(self._whole(first, is_cut=False), rng))
                transform = transform.after_decode()
            self.seeds.seed(first.epoch, first.number)
            made = self._run(hooks.decode, first, rng)
            _require_result(made)
            self.names_tops = isinstance(made, Mapping)
            self._left_out = frozenset(raw_specs) - {*wanted} if wanted else frozenset()
            if wanted and isinstance(made, Mapping):
                require_kept(made.keys() - {*wanted, *raw_specs}, wanted, "decode returned")
            self._names = wanted or _names_of(made, fields, parameters.tops or ())
            specs = {
                name: ArraySpec(value.shape, _learnt(value.dtype, raw_specs.get(name)))
                for name, value in self._by_name(made).items()
            }
        if hooks.postprocess is None:  # which may give others
            chosen(specs, parameters.max_shapes, "parameter 'max_shapes'")
        specs.update(_varying(specs, parameters))
        self._image_type = specs[self._names[0]].dtype
        self._transform, self._images = transform, tuple[str, ...]()
        if transform is not None:
            self._images, cropped = _with_beside(transform, specs, self._names[0])
            specs.update(cropped)
            self._cut_names = self._cut_names or self._images
        self.specs = specs
        noted = self._cut_by or transform
        self.slot_specs = {**specs, CROPS: NOTE_SPEC} if noted is not None and noted.is_noted else specs
        self.changes_nothing = hooks.decode is None and specs == dict(raw_specs) and transform is None

    def needs(self, epochs: Sequence[int], numbers: Sequence[int]) -> Needs | None:
        """Return the function that a source asks while it lends these samples; None if it must give whole pictures."""
        transform = self._transform
        if transform is None or not transform.crops_pictures:
            return None
        return lambda row, size: transform.needs(size, self._rng.generator(epochs[row], numbers[row]))

    def _cut(self, sample: Sample, transform: CropMirror, crop: Crop) -> Sample:
        parts = {name: transform.part(sample[name], crop) for name in self._cut_names}
        return Sample({**sample, **parts}, sample.index, sample.epoch, sample.number)

    def parts(self, cuts: Collection[str], epochs: Sequence[int], numbers: Sequence[int]) -> Mapping[str, Boxes]:
        """Return the parts of these samples that are needed, {} if whole ones are; the source can cut `cuts`."""
        transform = self._cut_by or (self._transform if self.hooks.decode is None else None)
        if transform is None or transform.resizes or not cuts or not {*self._cut_names} <= {*cuts}:
            return {}
        specs = {name: self._raw_specs[name] for name in self._cut_names}
        if any(spec.varies for spec in specs.values()):
            return {}
        image = specs[self._cut_names[0]]
        crops = [transform.draw(image.shape, self._rng.generator(*each)) for each in zip(epochs, numbers, strict=True)]
        return {
            name: Boxes(
                np.array([transform.corner_in(spec.shape, crop) for crop in crops]), transform.part_shape(spec.shape)
            )
            for name, spec in specs.items()
        }

    def put(self, sample: Sample, out: NamedRows, row: int) -> None:
        """Make `row` of every top from `sample`; raises the exceptions of the hook, and SampleShapeError."""
        if self.hooks.decode is not None:
            self.seeds.seed(sample.epoch, sample.number)
        self.into(out)(sample, row)

    def into(self, out: NamedRows, *, is_cut: bool = False) -> Callable[[Sample, int], None]:
        """Return `put(sample, row)`, as above, for many rows of `out`; its caller seeds the global generators.

        `is_cut`: samples have the parts that `parts` gave in place of whole arrays.
        """
        if self._transform is not None or self._cut_by is not None:
            return lambda sample, row: self._put_cropped(sample, out, row, is_cut)
        decode, generator, names = self.hooks.decode, self._rng.generator, self._names
        if decode is not None and self._chosen:
            decode = partial(self._run, decode)
        keys, count, stores = set(names), len(names), [(name, self._storing(name, out[name])) for name in names]

        def put(sample: Sample, row: int) -> None:
            made: Any = sample if decode is None else decode(sample, generator(sample.epoch, sample.number))
            kind = type(made)
            if (kind is tuple or kind is list) and len(made) == count:
                made = dict(zip(names, made, strict=True))
            elif decode is not None and ((kind is not dict and kind is not Sample) or made.keys() != keys):
                made = self._by_name(made)
            for name, store in stores:
                store(made[name], row)

        return put

    def _storing(self, name: str, rows: Rows) -> Callable[[Any, int], None]:
        """Return the function that stores a value of top `name` in one of `rows`.

        What has the top's very type and shape is stored as it is. To look these up once for many rows saves half of
        what a small sample costs beside its hook.
        """
        spec = self.specs[name]
        shape, dtype, scalar = spec.shape, spec.dtype, spec.dtype.type
        number, most = (None, 0) if shape else _NUMBERS.get(dtype.name, (None, 0))
        tensor = getattr(sys.modules.get("torch"), "Tensor", None)

        def convert(value: object, row: int) -> None:
            self._store(name, as_array(value, name, "decode returned"), rows, row)

        def store(given: Any, row: int) -> None:
            value, kind = given, type(given)
            if kind is tensor:
                try:
                    value, kind = given.numpy(), np.ndarray
                except Exception:
                    kind = tensor  # `convert` says what is wrong with it
            is_like_the_top = (kind is np.ndarray or kind is scalar) and value.dtype == dtype and value.shape == shape
            if is_like_the_top or (kind is number and -most <= value <= most):
                rows[row] = value  # type: ignore[index]
            else:
                convert(given, row)

        return convert if isinstance(rows, RaggedRows) else store

    def _put_cropped(self, sample: Sample, out: NamedRows, row: int, is_cut: bool) -> None:
        rng, transform, crop = self._rng.generator(sample.epoch, sample.number), self._transform, None
        if (before := self._cut_by) is not None:
            whole = self._whole(sample, is_cut)
            crop = before.draw(whole, rng)
            sample, is_cut = sample if is_cut else self._cut(sample, before, crop), True
        arrays = self._decode(sample, rng)
        if transform is not None:
            self._require_images(arrays, transform)
            if crop is None:
                whole = self._whole(arrays, is_cut)
                crop = transform.draw(whole, rng)
        if crop is not None and isinstance(notes := out.get(CROPS), np.ndarray):
            notes[row] = (before or transform).note(crop, whole)  # type: ignore[union-attr]
        for name, value in arrays.items():
            if transform is None or crop is None or name not in self._images:
                self._store(name, value, out[name], row)
            else:
                transform.put(value, out[name], row, crop, is_cut=is_cut, is_beside=name != self._images[0])

    def _whole(self, sample: Mapping[str, AnyArray], is_cut: bool) -> Sequence[int]:
        """Return the shape of the image out of which the crop is taken."""
        name = self._cut_names[0]
        return self._raw_specs[name].shape if is_cut else sample[name].shape

    def _decode(self, sample: Sample, rng: np.random.Generator) -> Mapping[str, AnyArray]:
        if self.hooks.decode is None:
            return {name: sample[name] for name in self._names}
        return self._by_name(self._run(self.hooks.decode, sample, rng))

    def _by_name(self, made: object) -> dict[str, AnyArray]:
        """Return the result as arrays by name; from a mapping without what was only read, if `tops` is set."""
        _require_result(made)
        if self._left_out and isinstance(made, Mapping):
            made = {name: value for name, value in made.items() if name not in self._left_out}
        return by_name(made, self._names, "decode returned")

    def _run(self, decode: DecodeHook, sample: Sample, rng: np.random.Generator) -> object:
        if self._chosen:
            arrays = {name: sample[name] for name in self._chosen}
            sample = Sample(arrays, sample.index, sample.epoch, sample.number)
        return decode(sample, rng)

    def _require_images(self, arrays: Mapping[str, AnyArray], transform: CropMirror) -> None:
        """Raise SampleShapeError if images differ in more than the transform equalises, or others from their image.

        Types must be equal, since NumPy would round.
        """
        name, *beside = self._images
        value, spec = arrays[name], self.specs[name]
        fits = transform.takes_axes(value.ndim) and transform.takes(len(value))
        fits = fits and (spec.varies or transform.output_shape(value.shape) == spec.shape)
        if value.dtype != self._image_type or not fits:
            raise SampleShapeError(
                f"top {name!r} got an array of shape {value.shape} and type {value.dtype}, expected an image of type "
                f"{self._image_type} from which transform makes {spec}, as learnt from the first sample; if images "
                "differ in size, set crop_size or declare max_shapes; if they have 1 channel or 3, set force_color or "
                "force_gray"
            )
        for other in beside:
            given, spec = arrays[other], self.specs[other]
            if given.dtype != spec.dtype or not transform.lies_beside(given.shape, value.shape, spec):
                raise SampleShapeError(
                    f"top {other!r} got an array of shape {given.shape} and type {given.dtype}, and the image has the "
                    f"shape {value.shape}: expected the same last axes, and {spec} after the crop"
                )

    def _store(self, name: str, value: AnyArray, rows: Rows, row: int) -> None:
        spec = self.specs[name]
        if not holds(spec.dtype, value.dtype) or (not spec.varies and value.shape != spec.shape):
            raise SampleShapeError(
                f"top {name!r} got an array of shape {value.shape} and type {_type_name(value.dtype)}, expected "
                f"{'up to ' * spec.varies}{spec.shape} {_type_name(spec.dtype)} as learnt from the first sample; "
                + self._advice(name, value)
            )
        if isinstance(rows, RaggedRows):
            try:
                rows.put(row, value)
            except SampleTooLargeError as error:
                declared = f" (parameter {self._declared_by[name]!r})" if name in self._declared_by else ""
                raise SampleTooLargeError(f"top {name!r}: {error}{declared}") from None
        else:
            rows[row] = value

    def _advice(self, name: str, value: AnyArray) -> str:
        """Return advice for a value that does not fit its top."""
        spec = self.specs[name]
        if value.dtype.kind == spec.dtype.kind and value.dtype.kind in "SU" and not holds(spec.dtype, value.dtype):
            fixed = f"{value.dtype.kind}{max(16, 2 * _characters(value.dtype))}"
            return f'this text is longer than that: give all of them a fixed length, np.array(text, dtype="{fixed}")'
        if not holds(spec.dtype, value.dtype):
            return f'return the same type for every sample, for example by .astype("{_type_name(spec.dtype)}")'
        if name in self._concatenate and value.ndim and value.shape[1:] == spec.shape[1:]:
            return "declare max_rows, the most rows that one sample of a concatenated top has"
        return "return the same shape for every sample, or declare max_shapes"


def _require_result(made: object) -> None:
    if made is None:
        raise SampleShapeError(
            "decode returned None: expected a mapping of names to arrays, a tuple of arrays, or one array; did you "
            "forget 'return'?"
        )


def _characters(dtype: np.dtype[np.generic]) -> int:
    """Return the largest number of characters of a text of that type."""
    return dtype.itemsize // np.dtype(f"{dtype.kind}1").itemsize


def _type_name(dtype: np.dtype[np.generic]) -> str:
    """Return the type's name as users write it; NumPy's own name of a text type counts bits."""
    return f"{dtype.kind}{_characters(dtype)}" if dtype.kind in "SU" else dtype.name


def _learnt(dtype: np.dtype[np.generic], raw: ArraySpec | None) -> np.dtype[np.generic]:
    """Return the type of a top whose first value has `dtype`; a text from the source has the length of its field."""
    return raw.dtype if raw is not None and holds(raw.dtype, dtype) else dtype


def _varying(specs: Mapping[str, ArraySpec], parameters: Parameters) -> dict[str, ArraySpec]:
    """Return the specs of tops whose samples may differ in shape, by `max_shapes`, or in rows, by `max_rows`."""
    shapes: dict[str, tuple[int, ...]] = {}
    if parameters.max_rows is not None:
        of_rows = [name for name in parameters.concatenate if name in specs and specs[name].shape]
        shapes = {name: (parameters.max_rows, *specs[name].shape[1:]) for name in of_rows}
    shapes |= {name: shape for name, shape in parameters.max_shapes.items() if name in specs}
    return {name: ArraySpec(shape, specs[name].dtype, varies=True) for name, shape in shapes.items()}


def _with_beside(
    transform: CropMirror, specs: Mapping[str, ArraySpec], image: str
) -> tuple[tuple[str, ...], dict[str, ArraySpec]]:
    """Return the names of what is cropped, the image and the tops beside it, and their specs after the crop."""
    beside = chosen(specs, transform.beside, "parameter 'transform.crop_beside'")
    found = {name: transform.spec_beside(specs[name], specs[image], name) for name in beside}
    return (image, *beside), {image: transform.output_spec(specs[image]), **found}


def require_kept(lost: Collection[str], tops: Sequence[str], what: str) -> None:
    """Raise ParameterError, begun by `what`, if a hook made arrays that `tops` does not name."""
    if lost:
        raise ParameterError(
            f"{what} {', '.join(sorted(map(str, lost)))}, and 'tops' is {list(tops)}, so that would be lost: name it "
            "in 'tops', or do not return it; which arrays are read, 'fields' says"
        )


def _names_of(made: object, fields: tuple[str, ...], tops: tuple[str, ...]) -> tuple[str, ...]:
    """Return names for the results of decode if `tops` does not name them."""
    if isinstance(made, Mapping):
        if not made or not all(isinstance(name, str) for name in made):
            raise ParameterError(
                f"decode returned a {type(made).__name__} with the keys {list(made)}: expected the name of a top, a "
                "string, for each array, and at least one"
            )
        return tuple(made)
    count = len(made) if isinstance(made, tuple | list) else 1
    unnamed = "an array without a name" if count == 1 else f"{count} arrays without names"
    for names in (tops, fields):
        if len(names) == count:
            return names
    raise ParameterError(
        f"decode returned {unnamed}, and {len(fields)} are read ({', '.join(fields)}): return a "
        "mapping of names to arrays, or give 'tops', a name for each"
    )


def copy_row(source: NamedRows, row: int, target: NamedRows, target_row: int) -> None:
    """Copy a row of every top."""
    for name, top in source.items():
        value, into = top.get(row) if isinstance(top, RaggedRows) else top[row], target[name]
        if isinstance(into, RaggedRows):
            into.put(target_row, value)
        else:
            into[target_row] = value
