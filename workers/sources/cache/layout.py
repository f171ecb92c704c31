"""The layout of a cache file. Pure arithmetic over the specs.

    identity | states | checksums | shapes of varying samples | rows of fixed size | rows of varying size

Each part begins on a page. So does each row of varying size, which has space for the largest sample: the file is sparse
there, a small sample takes no more disk than it needs, and finding it needs no table and no lock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ...api import ArraySpec
from ...base import text_digest
from .checksums import SUM_BYTES

PAGE_BYTES = 4096
MAGIC = b"blobfeed sample cache "
VERSION = b"4\n"

IDENTITY_BYTES = STATES_AT = PAGE_BYTES
SHAPE_ITEM_BYTES = 4


@dataclass(frozen=True, slots=True)
class Region:
    """The rows of one name: row i begins at `at + i * stride`, and its shape, if it varies, at `shapes_at`."""

    spec: ArraySpec
    at: int
    stride: int
    shapes_at: int

    def row_at(self, index: int) -> int:
        return self.at + index * self.stride

    def shape_at(self, index: int) -> int:
        return self.shapes_at + index * SHAPE_ITEM_BYTES * len(self.spec.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """`sparse_at`: where the rows of varying size begin, and the file may have holes. `size`: of the file, in bytes."""

    samples: int
    identity: bytes
    sums_at: int
    regions: Mapping[str, Region]
    sparse_at: int
    size: int

    @property
    def varies(self) -> bool:
        return self.size > self.sparse_at


def lay_out(specs: Mapping[str, ArraySpec], samples: int, key: str) -> Layout:
    """The layout of a file for `samples` samples of `specs`; `key` names what they were made from, and how."""
    sums_at = _whole_pages(STATES_AT + samples)
    end = _whole_pages(sums_at + samples * SUM_BYTES)
    shapes_at: dict[str, int] = {}
    for name, spec in specs.items():
        shapes_at[name] = end
        end = _whole_pages(end + samples * SHAPE_ITEM_BYTES * len(spec.shape) * spec.varies)
    regions: dict[str, Region] = {}
    sparse_at = end
    for name, spec in sorted(specs.items(), key=lambda item: item[1].varies):
        stride = _whole_pages(spec.nbytes) if spec.varies else spec.nbytes
        regions[name] = Region(spec, end, stride, shapes_at[name])
        end = _whole_pages(end + samples * stride)
        sparse_at = sparse_at if spec.varies else end
    return Layout(samples, _identity(specs, samples, key, end), sums_at, regions, sparse_at, end)


def _identity(specs: Mapping[str, ArraySpec], samples: int, key: str, size: int) -> bytes:
    """The first bytes of the file, which tell it from any other one; people can read them, too."""
    whole = json.dumps([key, samples, [(name, str(spec), spec.dtype.str) for name, spec in specs.items()]])
    digest = text_digest(whole)
    text = MAGIC + VERSION + json.dumps({"content": digest, "samples": samples, "bytes": size}).encode() + b"\n"
    return text.ljust(IDENTITY_BYTES, b"\0")


def _whole_pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES
