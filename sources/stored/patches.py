"""Patches: a sample is a part of arrays of many axes, at any offset, of which only the chunks under it are read.

Patches are numbered so that those whose corners lie in the same chunks follow each other: reading them in order, or
shuffled by chunks, decodes each chunk about once. Without chunks to decode they go along the last axis first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...workers.api import ArraySpec, IndexArray, NotNegative, Positive, chosen, shown
from ...workers.base import ParameterError, SourceError, moving
from ..files import digest, kept, split_by_part
from ..table import Column, OutRows, Sequences, Store, WindowOptions
from .grid import Parts, axes_of, extents_of, modules_of, read_boxes, will_need_boxes
from .layout import StoredArray
from .store import FileStore

Axis = str | int

_LOOKED_AT_BYTES = 16 << 20
_ALL = 1 << 62
_CHEAP = 4
"""Each loader may decode each chunk if the patches over some chunks have so many times more bytes than these.

To decode a byte takes two or three times as long as to cut it. And of a window that is longer than all slots one loader
would make each batch, while the others wait.
"""


class Enough(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The option `patch.where`: only patches of which some part holds something.

    variable: an array over the same axes, or some of them, such as a mask; what is neither 0 nor NaN counts.
    at_least: the share of its numbers under the patch that must count.
    """

    variable: str
    at_least: Annotated[float, msgspec.Meta(gt=0, le=1)]


class PatchOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The option `patch` of hdf5, npy and zarr: a sample is a part of arrays over one grid, one for each top.

    Axes have the names that the file gives them (netCDF and xarray do), else numbers from 0 on. Without a size for the
    first axis a patch lies in one step of it; of other axes without a size it has all.

    size: the extent of a patch by axis, such as {time: 12, y: 64, x: 64}. An array may lack some of these axes.
    stride: the distance from one patch to the next, by axis; where it is not given, the size.
    border: "drop" patches that would reach beyond the arrays, or "pad" them.
    fill: the value that pads.
    select: of other axes a part, by axis: a list of numbers, or one number, and the axis is gone.
    shift: the distance at which all tops but the first lie, by axis, such as {time: 6} for a forecast; or a mapping
        from top to such distances.
    where: {variable: mask, at_least: 0.1} leaves patches out; they are looked at once, and the result is kept.
    """

    size: dict[Axis, Positive]
    stride: dict[Axis, Positive] = {}
    border: Literal["drop", "pad"] = "drop"
    fill: float = 0.0
    select: dict[Axis, NotNegative | tuple[NotNegative, ...]] = {}
    shift: dict[Axis, int | dict[Axis, int]] = {}
    where: Enough | None = None


class Places:
    """The corners of patches, a function of their numbers.

    `axes`: the corners along each axis. `edges`: along each, the first patch of each block, and the end: the patches of
    a block are numbered together. `sizes`: of a patch, by the names of the axes. `held_in` begins what `where` says.
    `block_bytes`: of the decoded chunks under a block. `kept`: the numbers of the patches that there are, None for all.
    """

    def __init__(
        self,
        axes: Sequence[Sequences],
        edges: Sequence[IndexArray],
        sizes: Mapping[str, int],
        held_in: str,
        block_bytes: int,
    ) -> None:
        self.block_bytes = block_bytes
        self._axes, self._edges, self._grid = axes, edges, [*map(len, axes)]
        self._sizes, self._held_in = sizes, held_in
        self.kept: IndexArray | None = None

    def __len__(self) -> int:
        return math.prod(self._grid) if self.kept is None else len(self.kept)

    @property
    def together(self) -> int:
        """The number of patches in a block that is not cut off by a border, on average of those that there are."""
        block = math.prod(float(np.median(np.diff(each))) for each in self._edges)
        return max(1, round(block * len(self) / math.prod(self._grid)))

    @property
    def numbering(self) -> str:
        """A text by which it is known what the numbers mean: other tops have other shifts and chunks."""
        corners = [axis.first(np.arange(len(axis))).tolist() for axis in self._axes]
        return digest((corners, [edges.tolist() for edges in self._edges]))

    def corners(self, patches: IndexArray) -> IndexArray:
        """Return where these patches begin along each axis, shape (patches, axes)."""
        rest = patches if self.kept is None else self.kept[patches]
        before, starts, extents = np.ones_like(rest), [], []
        for axis, edges in enumerate(self._edges):
            slab = before * math.prod(self._grid[axis + 1 :])
            block = np.searchsorted(edges, rest // slab, side="right") - 1
            starts.append(edges[block])
            extents.append(edges[block + 1] - edges[block])
            rest = rest - starts[-1] * slab
            before = before * extents[-1]
        found = []
        for start, extent in zip(reversed(starts), reversed(extents), strict=True):
            found.append(start + rest % extent)
            rest = rest // extent
        return np.stack([axis.first(each) for axis, each in zip(self._axes, reversed(found), strict=True)], axis=1)

    def where(self, index: int) -> str:
        """Return the place of a patch; the first axis goes through all files."""
        corner = zip(self._sizes.items(), self.corners(np.array([index]))[0].tolist(), strict=True)
        return f"{self._held_in}[{', '.join(f'{name} {at}:{at + size}' for (name, size), at in corner)}]"

    def by_axis(self, patches: IndexArray) -> dict[str, IndexArray]:
        """Return the corners by the names of the axes."""
        return dict(zip(self._sizes, self.corners(patches).T, strict=True))


@dataclass(frozen=True)
class Cut:
    """The part of a top's arrays in a patch. Axes are those of a sample without `patch`, the first one before them.

    `axes`: for each the number of the patch's axis that it is, -1 for none. `sizes`: of the patch along each. `shift`:
    along each. `runs`: of each the stretches (first, number) that are taken. `dropped`: axes that a sample lacks.
    """

    parts: Parts
    axes: tuple[int, ...]
    sizes: tuple[int, ...]
    shift: tuple[int, ...]
    runs: tuple[tuple[tuple[int, int], ...], ...]
    dropped: tuple[int, ...]
    fill: float

    @property
    def spec(self) -> ArraySpec:
        shape = [size for axis, size in enumerate(self.sizes) if axis not in self.dropped]
        return ArraySpec(tuple(shape), self.parts[0].delivered_dtype)

    def chunk_bytes(self, reach: Mapping[int, int]) -> int:
        """Return the bytes of the decoded chunks under patches whose corners lie so close along the patch's axes."""
        array = self.parts[0]
        if array.chunk_samples is None or not array.layout.chunk:
            return 0
        chunk = np.array(array.layout.chunk)[axes_of(array)]
        spans = [
            size + reach.get(of, 1) - 1 if of >= 0 else _ALL for of, size in zip(self.axes, self.sizes, strict=True)
        ]
        chunks = np.minimum(-(-extents_of(array) // chunk), -(-np.array(spans) // chunk))
        return int(np.prod(chunks * chunk)) * array.dtype.itemsize

    def pieces(self, corners: IndexArray) -> Iterator[tuple[IndexArray, tuple[slice, ...]]]:
        """The boxes that make up patches with these corners: where each begins, and its place in a patch."""
        begins = np.zeros((len(corners), len(self.axes)), np.int64)
        for axis, of in enumerate(self.axes):
            begins[:, axis] = self.shift[axis] + (corners[:, of] if of >= 0 else 0)
        ends = [np.cumsum([0, *(number for _, number in runs)]).tolist() for runs in self.runs]
        for piece in itertools.product(*(range(len(runs)) for runs in self.runs)):
            first = [runs[number][0] for runs, number in zip(self.runs, piece, strict=True)]
            yield begins + first, tuple(slice(end[n], end[n + 1]) for end, n in zip(ends, piece, strict=True))

    def read(self, files: FileStore, part: int, corners: IndexArray, positions: IndexArray, out: Any) -> None:
        """Put the patches of array `part` with these corners into out[positions]."""
        array, rows = self.parts[part], np.expand_dims(out, [axis + 1 for axis in self.dropped])
        extents = extents_of(array)
        for begins, place in self.pieces(corners):
            target = rows[(slice(None), *place)]
            inside: NDArray[np.bool_] = np.all(begins < extents, axis=1)
            read_boxes(files, array, begins[inside], positions[inside], target)
            ends = np.where(inside[:, None], extents - begins, 0)
            for row, axis in np.argwhere(ends < target.shape[1:]).tolist():
                beyond = (slice(None),) * axis + (slice(max(0, int(ends[row, axis])), None),)
                target[positions[row]][beyond] = self.fill

    def will_need(self, files: FileStore, part: int, corners: IndexArray, *, now: bool) -> bool:
        array, found = self.parts[part], []
        for begins, place in self.pieces(corners):
            inside = begins[np.all(begins < extents_of(array), axis=1)]
            found.append(will_need_boxes(files, array, inside, [each.stop - each.start for each in place], now=now))
        return all(found)


class Patches(Column):
    """Tops that are patches of arrays; `steps`: the extent of the first axis in each file."""

    def __init__(
        self,
        cuts: Mapping[str, Cut],
        places: Places,
        steps: Sequence[int],
        files: FileStore,
        others: Sequence[Store[Any]],
    ) -> None:
        self._cuts, self._places, self._files = cuts, places, files
        self._starts = np.cumsum([0, *steps])
        self.samples, self.stores = len(places), (files, *others)
        self.specs = {top: cut.spec for top, cut in cuts.items()}
        arrays = [array for cut in cuts.values() for array in cut.parts]
        self.modules = modules_of(arrays)
        self.options = [(array.name, array.arrangement) for array in arrays]
        largest = max(cuts.values(), key=lambda cut: cut.spec.nbytes).parts[0]
        self.chunk_samples = None if largest.chunk_samples is None else places.together
        patch_bytes = sum(cut.spec.nbytes for cut in cuts.values())
        self.chunks_are_cheap = _CHEAP * places.block_bytes <= places.together * patch_bytes

    def read(self, indices: IndexArray, positions: IndexArray, out: OutRows) -> None:
        for part, corners, members in self._by_part(indices):
            self._files.use([*{self._files.number(cut.parts[part].file): None for cut in self._cuts.values()}])
            for top, cut in self._cuts.items():
                if top in out:
                    cut.read(self._files, part, corners, positions[members], out[top])

    def will_need(self, indices: IndexArray, *, now: bool = False) -> bool:
        found = [
            cut.will_need(self._files, part, corners, now=now)
            for part, corners, _ in self._by_part(indices)
            for cut in self._cuts.values()
        ]
        return all(found)

    def _by_part(self, indices: IndexArray) -> Iterator[tuple[int, IndexArray, IndexArray]]:
        corners = self._places.corners(indices)
        for part, steps, members in split_by_part(self._starts, corners[:, 0]):
            yield part, np.column_stack([steps, corners[members, 1:]]), members


class _Kept(msgspec.Struct, frozen=True):
    patches: NDArray[np.int64]


class Patching:
    """Finds out, once and in the trainer, which patches there are and what of each array lies in them."""

    def __init__(self, options: PatchOptions, tops: Mapping[str, Parts], what: str) -> None:
        self._options, self._what = options, what
        self._image, self._first = next(iter(tops.items()))
        self.names = _names_of(self._first[0])
        named, self._select = self._by_axis(options.size), self._by_axis(options.select)
        self._is_dropped = self.names[0] not in named
        self._sizes = {name: named.get(name, 1) for name in self.names if name in {*named, self.names[0]}}
        self.steps = [int(extents_of(array)[0]) for array in self._first]
        by_top = [top for top, value in options.shift.items() if isinstance(value, dict)]
        chosen(tops, [str(top) for top in by_top], f"{what}: parameter 'patch.shift'")
        shifts = {top: self._shift_of(top) for top in tops}
        self.cuts = {top: self._cut(parts, shifts[top]) for top, parts in tops.items()}
        self.places = self._places(shifts.values())

    @property
    def as_window(self) -> WindowOptions | None:
        """The same as windows along the first axis, if the patches are no more than that."""
        more = self._options.border == "pad" or self._options.select or self._options.shift or self._options.where
        if more or self._is_dropped or any(cut.axes != (0, *(-1,) * (len(cut.axes) - 1)) for cut in self.cuts.values()):
            return None
        first, length = next(iter(self._sizes.items()))
        return WindowOptions(length=length, stride=self._by_axis(self._options.stride).get(first, length))

    def leave_out(self, parts: Parts, files: FileStore, others: Sequence[Store[Any]]) -> None:
        """Keep the patches of which the mask `parts` has enough."""
        wanted = self._options.where
        assert wanted is not None
        arrays = (*self._first, *parts)
        content = [store.content(every=True) for store in others]
        named = [(array.name, array.arrangement, array.dims, array.packing) for array in arrays]
        decided = self._options, self.places.numbering, named, content
        column = Patches({"mask": self._cut(parts, {})}, self.places, self.steps, files, others)
        stamps = [array.file for array in arrays]
        self.places.kept = kept("patches", stamps, decided, _Kept, lambda: _Kept(self._enough(column, wanted))).patches
        if not len(self.places):
            raise SourceError(
                f"{self._what}: no patch has a share of {wanted.at_least} of {wanted.variable!r} that is neither 0 nor "
                "NaN: lower 'patch.where.at_least'"
            )

    def _enough(self, column: Patches, wanted: Enough) -> IndexArray:
        spec, found = column.specs["mask"], []
        rows = max(1, _LOOKED_AT_BYTES // max(1, spec.nbytes))
        for first in range(0, len(self.places), rows):
            moving(f"looking for patches with enough of {wanted.variable}")
            patches = np.arange(first, min(first + rows, len(self.places)))
            values = np.zeros((len(patches), *spec.shape), spec.dtype)
            column.read(patches, np.arange(len(patches)), {"mask": values})
            share = ((values != 0) & (values == values)).reshape(len(patches), -1).mean(axis=1)
            found.append(patches[share >= wanted.at_least])
        column.stores[0].close()
        return np.concatenate(found)

    def _places(self, shifts: Collection[Mapping[str, int]]) -> Places:
        given = self._by_axis(self._options.stride)
        if unknown := [name for name in given if name not in self._sizes]:
            raise self._wrong("stride", f"axes of 'patch.size', which {unknown[0]} is not")
        cut = max(self.cuts.values(), key=lambda cut: cut.spec.nbytes)
        array, chunks = cut.parts[0], dict[int, int]()
        if array.chunk_samples is not None and array.layout.chunk:
            chunks = {of: array.layout.chunk[axis] for axis, of in zip(axes_of(array), cut.axes, strict=True)}
        axes, edges, reach = [], [], dict[int, int]()
        extents = dict(zip(self.names, extents_of(self._first[0]).tolist(), strict=True))
        for number, (name, size) in enumerate(self._sizes.items()):
            ends, stride = [extents[name]] if number else self.steps, given.get(name, size)
            along = [0, *(shift.get(name, 0) for shift in shifts)]
            before, behind = min(along), max(along)
            # What must lie inside: with padding a patch's first value.
            length = (1 if self._options.border == "pad" else size + behind) - before
            what = f"{self._what}: 'patch.size' along {name}, shifts counted"
            axes.append(Sequences(np.cumsum(ends), length, stride, what, -before))
            edges.append(axes[-1].blocks(chunks.get(number, 1)) if chunks else np.array([0, len(axes[-1])]))
            if number in chunks:  # how far the last corner may lie behind the first number of its chunk, and one
                reach[number] = chunks[number] - math.gcd(chunks[number], stride, before) + 1
        # As blocks differ in size, as many patches in a row as a block has on average lie in two that adjoin.
        if several := [number for number in reach if len(edges[number]) > 2]:
            reach[several[-1]] += chunks[several[-1]]
        block_bytes = sum(cut.chunk_bytes(reach) for cut in self.cuts.values())
        return Places(axes, edges, self._sizes, str(self._first[0]), block_bytes)

    def _cut(self, parts: Parts, shift: Mapping[str, int]) -> Cut:
        array, names, extents = parts[0], _names_of(parts[0]), extents_of(parts[0]).tolist()
        if array.longest is not None or array.dtype.kind in "SU":
            raise SourceError(f"{self._what}: {array} holds {array.dtype}: expected numbers for patches")
        numbers = {name: number for number, name in enumerate(self._sizes)}
        sizes, runs, dropped = [], [], []
        for axis, (name, extent) in enumerate(zip(names, extents, strict=True)):
            taken = self._select.get(name)
            if taken is not None and (name in numbers or max(np.ravel(taken), default=extent) >= extent):
                raise self._wrong("select", f"for {name} of {array} numbers below {extent}, and no size")
            whole = self._sizes.get(name, extent)
            runs.append(((0, whole),) if taken is None else tuple((int(at), 1) for at in np.ravel(taken)))
            sizes.append(sum(number for _, number in runs[-1]))
            if isinstance(taken, int) or (self._is_dropped and numbers.get(name) == 0):
                dropped.append(axis)
            for part, first in zip(parts, self._first, strict=True):
                if name in numbers and (of := extents_of(first)[self.names.index(name)]) != extents_of(part)[axis]:
                    raise SourceError(
                        f"{self._what}: {part} has {extents_of(part)[axis]} along {name} and {first} has {of}: patches "
                        "need arrays over one grid"
                    )
        return Cut(
            parts,
            tuple(numbers.get(name, -1) for name in names),
            tuple(sizes),
            tuple(shift.get(name, 0) for name in names),
            tuple(runs),
            tuple(dropped),
            np.array(self._options.fill).astype(array.delivered_dtype).item(),
        )

    def _shift_of(self, top: str) -> Mapping[str, int]:
        given: Mapping[Axis, Any] = self._options.shift
        if any(isinstance(value, dict) for value in given.values()):
            return self._by_axis(given.get(top, {}))
        return {} if top == self._image else self._by_axis(given)

    def _by_axis(self, given: Mapping[Axis, Any]) -> dict[str, Any]:
        """`given` by the name of the axis; raises ParameterError for an axis that there is none of."""
        known = {str(number): name for number, name in enumerate(self.names)} | {name: name for name in self.names}
        if unknown := [axis for axis in given if str(axis) not in known]:
            raise ParameterError(
                f"{self._what}: parameter 'patch' names the axis {unknown[0]!r}: {self._first[0]} has the axes "
                f"{', '.join(self.names)}"
            )
        return {known[str(axis)]: value for axis, value in given.items()}

    def _wrong(self, name: str, expected: str) -> ParameterError:
        value = shown(getattr(self._options, name))
        return ParameterError(f"{self._what}: parameter 'patch.{name}' is {value}: expected {expected}")


def _names_of(array: StoredArray) -> list[str]:
    """The names of the axes, or their numbers."""
    return [array.dims[axis] if array.dims else str(number) for number, axis in enumerate(axes_of(array))]
