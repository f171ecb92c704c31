"""The tops of a net: the shape of each in a batch, and its values put into memory of that shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ...workers.api import AnyArray, ArraySpec, IndexArray, Pad, Parameters, RaggedRows, Transform, nearest
from ...workers.base import ParameterError, UnequalShapesError, in_folder
from ...workers.loading import CROPS, Conversion
from ...workers.plan import Batch
from .mean_images import load_mean_file, mean_image, mean_of
from .value_checks import check_types, check_whole_numbers, out_of_range, whole_numbers

Shape = tuple[int, ...]


class Top(ABC):
    """One output: a name, and how it is made from a batch."""

    def __init__(self, name: str, dtype: np.dtype[np.generic]) -> None:
        self.name = name
        self.dtype = dtype
        """The type of its values, unless a blob has another one."""

    @abstractmethod
    def largest_shape(self, rows: int) -> Shape:
        """Return the shape for `rows` samples of the largest size declared, known before there is a batch."""

    @abstractmethod
    def shape(self, batch: Batch) -> Shape:
        """Return the shape of this very batch, (rows, *sample shape); raises UnequalShapesError."""

    @abstractmethod
    def put(self, batch: Batch, out: AnyArray) -> None:
        """Put the batch into `out`, which has `shape(batch)`; raises InexactValueError, ParameterError."""


class _ConvertedTop(Top):
    """A top whose values lie in the slots as `spec` describes, and are converted on the way."""

    def __init__(self, name: str, spec: ArraySpec, conversion: Conversion) -> None:
        super().__init__(name, np.dtype(np.float32) if conversion.changes_values else spec.dtype)
        self.spec = spec
        self.conversion = conversion

    def _convert(self, rows: AnyArray, out: AnyArray, corners: IndexArray | None = None) -> None:
        if rows.dtype == out.dtype and not self.conversion.changes_values:
            out[...] = rows  # what is not converted needs no check: of a batch of 28×28 they took as long as the copy
            return
        check_types(rows.dtype, out.dtype, self.conversion, self.name)
        check_whole_numbers(rows, self.conversion.computed_in(out.dtype), self.name)
        try:
            self.conversion.put(rows, out, corners)
        except FloatingPointError:
            raise out_of_range(rows, out.dtype, self.conversion, self.name) from None


class EvenTop(_ConvertedTop):
    """Samples that all have one shape."""

    def largest_shape(self, rows: int) -> Shape:
        return (rows, *self.spec.shape)

    def shape(self, batch: Batch) -> Shape:
        return (batch.rows, *self.spec.shape)

    @property
    def converted(self) -> EvenTop:
        """The same top where the loaders have converted it."""
        return EvenTop(self.name, replace(self.spec, dtype=np.dtype(np.float32)), Conversion())

    def rows(self, batch: Batch) -> AnyArray:
        """The slot's own memory, shape (rows, *sample shape)."""
        return cast("AnyArray", batch.tops[self.name])

    def put(self, batch: Batch, out: AnyArray) -> None:
        self._convert(self.rows(batch), out, self.corners(batch))

    def corners(self, batch: Batch) -> IndexArray | None:
        """Return the place of each row's part of the mean image, shape (rows, 3); None if all have the same."""
        return self.conversion.corners(batch.tops.get(CROPS))


class UnevenTop(_ConvertedTop):
    """Samples whose shapes vary: of one shape within a batch, or padded to the batch's largest.

    Only the axes in `varying` are rounded up to `pad.to_multiple_of`, not the colours of an image.
    """

    def __init__(self, name: str, spec: ArraySpec, conversion: Conversion, pad: Pad | None) -> None:
        super().__init__(name, spec, conversion)
        self.dtype = _padded_type(name, self.dtype, pad)
        self.pad = pad
        self.varying = (1, 2) if len(spec.shape) == 3 else (0,) if spec.shape else ()
        """The axes in which samples differ: height and width of (channels, height, width), else the first one."""

    def largest_shape(self, rows: int) -> Shape:
        return (rows, *self._rounded(self.spec.shape))

    def shape(self, batch: Batch) -> Shape:
        shapes = self.rows(batch).shapes
        if self.pad is None:
            self._require_equal(shapes, batch)
        self._require_channels(shapes, batch)
        return (batch.rows, *self._rounded(tuple(int(extent) for extent in shapes.max(axis=0))))

    def rows(self, batch: Batch) -> RaggedRows:
        return cast("RaggedRows", batch.tops[self.name])

    def put(self, batch: Batch, out: AnyArray) -> None:
        rows = self.rows(batch)
        if self.pad is not None:
            out.fill("" if out.dtype.kind in "SU" else self.pad.value_of(self.name))
        for row in range(batch.rows):
            sample = rows.get(row)[np.newaxis]
            self._convert(sample, out[(slice(row, row + 1), *map(slice, sample.shape[1:]))])

    def _rounded(self, shape: Shape) -> Shape:
        multiple = 1 if self.pad is None else self.pad.to_multiple_of
        return tuple(
            -(-extent // multiple) * multiple if axis in self.varying else extent for axis, extent in enumerate(shape)
        )

    def _require_equal(self, shapes: NDArray[np.int32], batch: Batch) -> None:
        other = np.flatnonzero((shapes != shapes[0]).any(axis=1))
        if len(other):
            first, second = batch.indices[0], batch.indices[other[0]]
            raise UnequalShapesError(
                f"top {self.name!r}: samples {first} and {second} of one batch have the shapes "
                f"{tuple(map(int, shapes[0]))} and {tuple(map(int, shapes[other[0]]))}: pad them (parameter 'pad'), "
                "put them end to end ('concatenate'), bring them to one shape in decode, or use batch_size 1"
            )

    def _require_channels(self, shapes: NDArray[np.int32], batch: Batch) -> None:
        channels = max(np.size(self.conversion.scale), 1 if self.conversion.mean is None else self.conversion.mean.size)
        if channels == 1:
            return
        other = np.flatnonzero(shapes[:, self.conversion.axis] != channels)
        if len(other):
            each = "channels" if self.conversion.axis == 0 else "entries of the last axis"
            raise UnequalShapesError(
                f"top {self.name!r}: sample {batch.indices[other[0]]} has the shape "
                f"{tuple(map(int, shapes[other[0]]))}, and 'transform' a mean or a scale for each of {channels} "
                f"{each}: give all samples as many in decode, or use one number as mean and as scale"
            )


class LengthsTop(Top):
    """The size of each sample of a padded top before padding, shape (rows, axes that vary)."""

    def __init__(self, of: UnevenTop) -> None:
        super().__init__(f"{of.name}_lengths", np.dtype(np.int32))
        self._of = of

    def largest_shape(self, rows: int) -> Shape:
        return (rows, len(self._of.varying))

    def shape(self, batch: Batch) -> Shape:
        return self.largest_shape(batch.rows)

    def put(self, batch: Batch, out: AnyArray) -> None:
        np.copyto(out, self._of.rows(batch).shapes[:, self._of.varying], casting="same_kind")


class JoinedTop(_ConvertedTop):
    """Samples whose first axes are put end to end: regions of interest, boxes, the words of sentences."""

    def largest_shape(self, rows: int) -> Shape:
        most, *rest = self.spec.shape
        return (rows * most, *rest)

    def shape(self, batch: Batch) -> Shape:
        samples = self.samples(batch)
        rest = samples[0].shape[1:]
        for number, sample in enumerate(samples):
            if sample.shape[1:] != rest:
                raise UnequalShapesError(
                    f"top {self.name!r}: samples {batch.indices[0]} and {batch.indices[number]} of one batch have the "
                    f"shapes {samples[0].shape} and {sample.shape}: only the first axis of what is concatenated may "
                    "differ; bring the others to one size in decode"
                )
        return (sum(map(len, samples)), *rest)

    def samples(self, batch: Batch) -> Sequence[AnyArray]:
        """The slot's own memory, an array for each sample."""
        rows = batch.tops[self.name]
        return [rows.get(row) for row in range(batch.rows)] if isinstance(rows, RaggedRows) else list(rows)

    def put(self, batch: Batch, out: AnyArray) -> None:
        end = 0
        for sample in self.samples(batch):
            begin, end = end, end + len(sample)
            self._convert(sample, out[begin:end])


class OwnersTop(Top):
    """The sample of the batch that each row of a joined top belongs to: 0, 0, 0, 1, 3, 3, … in shape (rows,)."""

    def __init__(self, of: JoinedTop) -> None:
        super().__init__(f"{of.name}_samples", np.dtype(np.int32))
        self._of = of

    def largest_shape(self, rows: int) -> Shape:
        return self._of.largest_shape(rows)[:1]

    def shape(self, batch: Batch) -> Shape:
        return self._of.shape(batch)[:1]

    def put(self, batch: Batch, out: AnyArray) -> None:
        counts = [len(sample) for sample in self._of.samples(batch)]
        np.copyto(out, np.repeat(np.arange(batch.rows, dtype=np.int32), counts), casting="same_kind")


def make_tops(specs: Mapping[str, ArraySpec], parameters: Parameters, base_dir: Path) -> list[Top]:
    """Return the tops in their order, then those that describe them: the lengths of tops that are padded, then the
    owners of rows that are concatenated.

    `specs`: as they lie in the slots. Mean and scale apply to the first top, as in Caffe's data layers. Raises
    ParameterError if a mean does not fit, or a top cannot be concatenated.
    """
    _check_concatenated(specs, parameters.concatenate)
    first = next(iter(specs))
    tops: list[Top] = []
    for name, spec in specs.items():
        is_joined = name in parameters.concatenate
        one = replace(spec, shape=spec.shape[1:], varies=False) if is_joined else spec
        conversion = _conversion(name, one, parameters.transform, base_dir) if name == first else Conversion()
        if is_joined:
            tops.append(JoinedTop(name, spec, conversion))
        elif spec.varies:
            tops.append(UnevenTop(name, spec, conversion, parameters.pad))
        else:
            tops.append(EvenTop(name, spec, conversion))
    made: list[Top] = [LengthsTop(top) for top in tops if isinstance(top, UnevenTop) and parameters.pad]
    if parameters.pad is not None and isinstance(parameters.pad.value, dict):
        padded = [top.name for top in tops if isinstance(top, UnevenTop)]
        if unknown := [name for name in parameters.pad.value if name not in padded]:
            raise ParameterError(
                f"parameter 'pad.value' names {unknown[0]!r}{nearest(unknown[0], padded)}, but the tops that are "
                f"padded are {padded}"
            )
    made += [OwnersTop(top) for top in tops if isinstance(top, JoinedTop)]
    if taken := [top.name for top in made if top.name in specs]:
        raise ParameterError(f"two tops are called {taken[0]!r}: 'pad' and 'concatenate' make one: rename yours")
    return [*tops, *made]


def loaders_conversions(tops: Sequence[Top], into: Iterable[np.dtype[np.generic]]) -> dict[str, Conversion]:
    """Return the conversions that loaders can do, by top; `into`: the type of the memory of each top.

    That is float32, which holds every stored value, so that there is nothing to check.
    """
    return {
        top.name: top.conversion
        for top, dtype in zip(tops, into, strict=True)
        if isinstance(top, EvenTop)
        and dtype == np.float32
        and np.can_cast(top.spec.dtype, dtype)
        and (top.conversion.changes_values or top.spec.dtype != dtype)
    }


def as_in_slots(tops: Sequence[Top], conversions: Collection[str]) -> list[Top]:
    """Return the tops where the loaders have converted those that `conversions` names."""
    return [top.converted if isinstance(top, EvenTop) and top.name in conversions else top for top in tops]


def describes_another(top: Top) -> bool:
    """Return true for a top that a net may do without."""
    return isinstance(top, LengthsTop | OwnersTop)


def _check_concatenated(specs: Mapping[str, ArraySpec], names: Sequence[str]) -> None:
    for name in names:
        if name not in specs:
            raise ParameterError(
                f"concatenate names {name!r}{nearest(name, specs)}, but the tops are {', '.join(specs)}"
            )
        if not specs[name].shape:
            raise ParameterError(
                f"concatenate names {name!r}, whose samples are {specs[name]}: expected samples of at least one axis, "
                "whose rows are put end to end"
            )


def _conversion(name: str, spec: ArraySpec, transform: Transform, base_dir: Path) -> Conversion:
    if spec.dtype.kind not in "biuf":
        if transform.mean_value or transform.mean_file or transform.scale != 1.0:
            raise ParameterError(
                f"top {name!r} has values of type {spec.dtype.name}, from which 'transform' can subtract no mean and "
                "which it cannot scale: make numbers of them in decode, or name another top first in 'tops'"
            )
        return Conversion()
    given, axis = transform.scale, 0 if transform.axis == "first" else -1
    scale = mean_of(given, spec.shape, name, "scale", axis) if isinstance(given, tuple) else given
    if transform.mean_value:
        return Conversion(scale, mean_of(transform.mean_value, spec.shape, name, axis=axis), axis=axis)
    if not transform.mean_file:
        return Conversion(scale, axis=axis)
    if spec.varies:
        raise ParameterError(
            f"parameter 'transform.mean_file' is {transform.mean_file!r}, and the samples of top {name!r} vary in "
            "size: use 'transform.mean_value', or 'transform.crop_size' to bring them to one size"
        )
    path = in_folder(base_dir, transform.mean_file)
    image = mean_image(load_mean_file(path), spec.shape, path, name)
    return Conversion(scale, image.centre, image)


def _padded_type(name: str, dtype: np.dtype[np.generic], pad: Pad | None) -> np.dtype[np.generic]:
    """Return `dtype` if it can hold the pad value, else a float type that can: -1 is no uint8. Text is padded by ""."""
    if pad is None or dtype.kind in "SU":
        return dtype
    value = pad.value_of(name)
    if dtype.kind in "fc":
        return np.result_type(dtype, np.min_scalar_type(value))
    if dtype.kind not in "biu":
        raise ParameterError(f"parameter 'pad' is given, and top {name!r} has values of type {dtype}: expected numbers")
    lowest, highest = whole_numbers(dtype)
    fits = value.is_integer() and lowest <= value <= highest
    return dtype if fits else np.dtype(np.float32)
