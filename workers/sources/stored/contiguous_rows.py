"""Samples of an array that lies in one piece in its file: a whole HDF5 data set, a .npy file."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from ...base.specs import AnyArray, IndexArray
from .file import Bytes, RawFile
from .layout import StoredArray
from .runs import copy_runs

_BLOCK_ITEMS = 1 << 16


class ContiguousRows:
    """Samples of an array that lies in one piece, in C order, from byte `offset` of a file on."""

    def __init__(self, file: RawFile, array: StoredArray, offset: int) -> None:
        self._file = file
        self._offset = offset
        self._shape = array.shape
        self._dtype = array.dtype
        self._axis = array.arrangement.sample_axis
        self._row_bytes = array.sample_bytes
        self._in_one_piece = self._axis == 0 and array.dtype.isnative

    def read(self, indices: IndexArray, positions: IndexArray, rows: AnyArray) -> None:
        """Put sample indices[i] into rows[positions[i]]; the sample's axes are in their stored order."""
        if not (self._in_one_piece and rows.flags.c_contiguous and rows.dtype == self._dtype):
            self._file.require_intact()
            if self._axis and self._axis == len(self._shape) - 1:
                self._read_across(indices, positions, rows)
            else:
                copy_runs(np.moveaxis(self._whole, self._axis, 0), indices, positions, rows)
            return
        as_bytes = rows.reshape(len(rows), -1).view(np.uint8)
        first, last = int(positions[0]), int(positions[-1])
        if self._file.maps(self._row_bytes) and last - first + 1 == len(positions):
            self._file.require_intact()
            self._byte_rows.take(indices, axis=0, out=as_bytes[first : last + 1], mode="clip")
        else:
            self._file.gather_at(self._offset + indices * self._row_bytes, positions, as_bytes)

    @cached_property
    def _byte_rows(self) -> Bytes:
        return np.ndarray((self._shape[0], self._row_bytes), np.uint8, self._file.mapped(), self._offset)

    @cached_property
    def _whole(self) -> AnyArray:
        return np.ndarray(self._shape, self._dtype, self._file.mapped(), self._offset)

    def _read_across(self, indices: IndexArray, positions: IndexArray, rows: AnyArray) -> None:
        """Samples are counted by the last axis: neighbours in memory belong to different samples.

        So each stretch of memory is gone through once for all samples, which is eight times as fast as each sample by
        itself (3×224×224 bytes of 500, 64 at a time).
        """
        samples, inner = self._shape[-1], self._shape[1:-1]
        step = max(1, _BLOCK_ITEMS // math.prod(inner))
        for start in range(0, self._shape[0], step):
            block = self._whole[start : start + step]
            taken = block.reshape(-1, samples).take(indices, axis=1, mode="clip").T
            rows[positions, start : start + step] = taken.reshape(len(indices), len(block), *inner)

    def will_need(self, indices: IndexArray) -> None:
        """Start reading these samples."""
        if self._axis == 0:
            self._file.will_need(self._offset + indices * self._row_bytes, np.full(len(indices), self._row_bytes))
