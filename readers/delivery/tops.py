"""What each top of a net gets out of a batch: its shape, and its values put into memory of that shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...workers.base.errors import ParameterError, UnequalShapesError
from ...workers.base.parameters import Pad, Parameters, Transform
from ...workers.base.specs import AnyArray, ArraySpec, IndexArray, RaggedRows
from ...workers.loading.transform import CROPS
from ...workers.plan.batch import Batch
from .conversion import Conversion, check_types, check_whole_numbers, mean_of, out_of_range
from .mean_file import load_mean_file
from .mean_image import mean_image

Shape = tuple[int, ...]


class Top(ABC):
    """One output: a name, and how it is made from a batch."""

    def __init__(self, name: str, dtype: np.dtype[np.generic]) -> None:
        self.name = name
        self.dtype = dtype
        """The type that its values have where nobody asks for another one."""

    @abstractmethod
    def largest_shape(self, rows: int) -> Shape:
        """The shape for `rows` samples of the largest size declared: what is known before there is a batch."""

    @abstractmethod
    def shape(self, batch: Batch) -> Shape:
        """The shape of this very batch, (rows, *sample shape); raises UnequalShapesError."""

    @abstractmethod
    def put(self, batch: Batch, out: AnyArray) -> None:
        """Put the batch into `out`, which has `shape(batch)`; raises InexactValueError, ParameterError."""


class EvenTop(Top):
    """Samples that all have one shape."""

    def __init__(self, name: str, spec: ArraySpec, conversion: Conversion) -> None:
        super().__init__(name, _delivered_type(spec, conversion))
        self.spec = spec
        self.conversion = conversion

    def largest_shape(self, rows: int) -> Shape:
        return (rows, *self.spec.shape)

    def shape(self, batch: Batch) -> Shape:
        return (batch.rows, *self.spec.shape)

    def rows(self, batch: Batch) -> AnyArray:
        """The slot's own memory, shape (rows, *sample shape)."""
        rows = batch.tops[self.name]
        if isinstance(rows, RaggedRows):
            raise TypeError(f"top {self.name!r} was declared with samples of one shape, {self.spec}, got ragged rows")
        return rows

    def put(self, batch: Batch, out: AnyArray) -> None:
        _put(self, self.rows(batch), out, self.corners(batch))

    def corners(self, batch: Batch) -> IndexArray | None:
        """Where each row's part of the mean image lies, shape (rows, 3); None where all have the same."""
        image, notes = self.conversion.image, batch.tops.get(CROPS)
        return image.corners(notes) if image is not None and isinstance(notes, np.ndarray) else None


class UnevenTop(Top):
    """Samples whose shapes vary: of one shape within a batch, or padded to the batch's largest.

    Only the axes in `varying` are rounded up to `pad.to_multiple_of`: nobody means the colours of an image by that.
    """

    def __init__(self, name: str, spec: ArraySpec, conversion: Conversion, pad: Pad | None) -> None:
        super().__init__(name, _padded_type(_delivered_type(spec, conversion), pad))
        self.spec = spec
        self.conversion = conversion
        self.pad = pad
        self.varying = varying_axes(spec)

    def largest_shape(self, rows: int) -> Shape:
        return (rows, *self._rounded(self.spec.shape))

    def shape(self, batch: Batch) -> Shape:
        shapes = self.rows(batch).shapes
        if self.pad is None:
            self._require_equal(shapes, batch)
        return (batch.rows, *self._rounded(tuple(int(extent) for extent in shapes.max(axis=0))))

    def rows(self, batch: Batch) -> RaggedRows:
        rows = batch.tops[self.name]
        if not isinstance(rows, RaggedRows):
            raise TypeError(f"top {self.name!r} was declared with samples of varying shape, got {type(rows).__name__}")
        return rows

    def put(self, batch: Batch, out: AnyArray) -> None:
        rows = self.rows(batch)
        if self.pad is not None:
            out.fill(self.pad.value)
        for row in range(batch.rows):
            sample = rows.get(row)[np.newaxis]
            _put(self, sample, out[(slice(row, row + 1), *map(slice, sample.shape[1:]))])

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
                "bring them to one shape in decode, or use batch_size 1"
            )


class LengthsTop(Top):
    """How large each sample of a padded top really is, shape (rows, axes that vary)."""

    def __init__(self, of: UnevenTop) -> None:
        super().__init__(f"{of.name}_lengths", np.dtype(np.int32))
        self._of = of

    def largest_shape(self, rows: int) -> Shape:
        return (rows, len(self._of.varying))

    def shape(self, batch: Batch) -> Shape:
        return self.largest_shape(batch.rows)

    def put(self, batch: Batch, out: AnyArray) -> None:
        np.copyto(out, self._of.rows(batch).shapes[:, self._of.varying], casting="same_kind")


def _put(top: EvenTop | UnevenTop, rows: AnyArray, out: AnyArray, corners: IndexArray | None = None) -> None:
    check_types(rows.dtype, out.dtype, top.conversion, top.name)
    into = top.conversion.computed_in(out.dtype)
    check_whole_numbers(rows, into, top.name)
    try:
        top.conversion.put(rows, out, corners)
    except FloatingPointError:
        raise out_of_range(rows, into, top.name) from None


def varying_axes(spec: ArraySpec) -> tuple[int, ...]:
    """The axes in which samples differ: height and width of (channels, height, width), else the first one."""
    return (1, 2) if len(spec.shape) == 3 else (0,) if spec.shape else ()


def make_tops(specs: Mapping[str, ArraySpec], parameters: Parameters, base_dir: Path) -> list[Top]:
    """The tops in their order, followed by one for the lengths of each that is padded.

    `specs`: as they lie in the slots. Mean and scale apply to the first top, as in Caffe's data layers. Raises
    ParameterError where a mean does not fit.
    """
    first = next(iter(specs))
    tops: list[Top] = []
    for name, spec in specs.items():
        conversion = _conversion(name, spec, parameters.transform, base_dir) if name == first else Conversion()
        tops.append(
            UnevenTop(name, spec, conversion, parameters.pad) if spec.varies else EvenTop(name, spec, conversion)
        )
    return tops + (_lengths(tops) if parameters.pad else [])


def _lengths(tops: Sequence[Top]) -> list[Top]:
    return [LengthsTop(top) for top in tops if isinstance(top, UnevenTop)]


def _conversion(name: str, spec: ArraySpec, transform: Transform, base_dir: Path) -> Conversion:
    if spec.dtype.kind not in "biuf":
        if transform.mean_value or transform.mean_file or transform.scale != 1.0:
            raise ParameterError(
                f"top {name!r} has values of type {spec.dtype.name}, from which 'transform' can subtract no mean and "
                "which it cannot scale: make numbers of them in decode, or name another top first in 'tops'"
            )
        return Conversion()
    if transform.mean_value:
        return Conversion(transform.scale, mean_of(transform.mean_value, spec.shape, name))
    if not transform.mean_file:
        return Conversion(transform.scale)
    if spec.varies:
        raise ParameterError(
            f"parameter 'transform.mean_file' is {transform.mean_file!r}, and the samples of top {name!r} vary in "
            "size: use 'transform.mean_value', or 'transform.crop_size' to bring them to one size"
        )
    path = base_dir / transform.mean_file
    image = mean_image(load_mean_file(path), spec.shape, path, name)
    return Conversion(transform.scale, image.centre, image)


def _delivered_type(spec: ArraySpec, conversion: Conversion) -> np.dtype[np.generic]:
    return np.dtype(np.float32) if conversion.changes_values else spec.dtype


def _padded_type(dtype: np.dtype[np.generic], pad: Pad | None) -> np.dtype[np.generic]:
    """`dtype` where it can hold the pad value, else float32: -1 is no uint8."""
    if pad is None or dtype.kind not in "iu":
        return dtype
    info = np.iinfo(dtype.name)
    return dtype if pad.value.is_integer() and info.min <= pad.value <= info.max else np.dtype(np.float32)
