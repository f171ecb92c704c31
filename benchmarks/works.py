"""The works: the rows of the table, each with what is read, what is delivered, its limit and its targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from . import datasets
from .datasets import DataSet
from .reading import Reader

Limit = Literal[
    "copy",
    "gather",
    "gather and convert",
    "read and copy",
    "read and convert",
    "decode",
    "decompress",
]


@dataclass(frozen=True)
class Target:
    """`metric` of `subject` is to be at least or at most so much: in its own unit, or of the best figure of others."""

    text: str
    metric: str = "samples_per_s"
    subject: str = "blobfeed"
    against: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True)
class Work:
    """`shape` and `dtype`: of one sample as it is delivered. `parameters`: blobfeed's, beside the source.

    `chunk`: the samples of a chunk that is decompressed as a whole; 0 if none is.
    `limits`: measured in the same run; the first is the one that the table shows and targets speak of.
    `step_s`: after each batch the trainer sleeps so long: a training step on a GPU leaves the cores to the loaders just
    so, while a busy loop would take one of them away.
    """

    name: str
    title: str
    data: DataSet
    shape: tuple[int, ...]
    limits: tuple[Limit, ...]
    dtype: str = "uint8"
    batch_size: int = 64
    step_s: float = 0.0
    chunk: int = 0
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"shuffle": True})
    targets: tuple[Target, ...] = ()

    def reader(self, samples: int) -> Reader:
        return self.data.reader(self.data.path(samples), samples, self.dtype)

    def source(self, samples: int) -> Mapping[str, Any]:
        return self.data.source(self.data.path(samples))


def _faster(than: str, times: float) -> Target:
    return Target(f"≥ {times:g} × {than}", against=(than,), at_least=times)


def _of_limit(limit: Limit, part: float, which: str = "") -> Target:
    return Target(f"{which}≥ {part:g} of {limit}", against=(f"limit: {limit}",), at_least=part)


def _two_loaders(part: float, than: str) -> Target:
    text = f"2 loaders ≥ {part:g} of {than.removeprefix('limit: ')}"
    return Target(text, subject="blobfeed, 2 loaders", against=(than,), at_least=part)


_BEST_NUMBER = Target(
    "≥ 0.9 of the best number of loaders",
    against=("blobfeed, 1 loader", "blobfeed, 2 loaders", "blobfeed, 4 loaders"),
    at_least=0.9,
)


def _stall(step_s: float) -> Work:
    targets = (
        Target("≤ 1.1 × the copy", metric="stall_s", against=("limit: copy",), at_most=1.1),
        Target("handed over ≤ 0.15 ms", metric="stall_s", subject="blobfeed, BatchReader", at_most=0.15e-3),
    )
    return Work(
        f"stall_{step_s * 1000:.0f}ms",
        f"stall per batch beside a {step_s * 1000:.0f} ms step, HDF5 3×224×224",
        datasets.HDF5_224,
        (3, 224, 224),
        ("copy",),
        step_s=step_s,
        targets=targets,
    )


_IMAGE = (3, 224, 224)
_RAW = (
    replace(_of_limit("gather", 0.85, "num_loaders: 0 "), subject="blobfeed, in process"),
    _two_loaders(0.85, "limit: read and copy"),
)
"""One process that gathers rows right into the blob moves each byte once; loaders move it twice, with two cores."""

_SAMPLES = Work(
    "hdf5_samples",
    "HDF5, one data set per sample in one file, float32 64×64×3, label in attrs",
    datasets.HDF5_SAMPLES,
    (64, 64, 3),
    ("copy",),
    dtype="float32",
    targets=(_faster("torch", 12), _BEST_NUMBER),
)

WORKS = (
    _stall(0.010),
    _stall(0.050),
    Work(
        "hdf5_224",
        "HDF5 contiguous, 3×224×224 uint8, shuffled",
        datasets.HDF5_224,
        _IMAGE,
        ("gather", "read and copy", "copy"),
        targets=(
            _faster("torch", 4.5),
            *_RAW,
            Target("first batch ≤ 60 ms", metric="first_batch_s", at_most=0.06),
            Target("memory ≤ ring + 60 MB", metric="beside_ring_bytes", at_most=60e6),
            _BEST_NUMBER,
        ),
    ),
    Work(
        "hdf5_28",
        "HDF5, 1×28×28 uint8 → float32, shuffled",
        datasets.HDF5_28,
        (1, 28, 28),
        ("read and convert",),
        dtype="float32",
        targets=(
            _faster("torch", 30),
            replace(_faster("plain loop, batched", 1.1), subject="blobfeed, in process"),
            Target("trainer ≤ 40 µs a batch", metric="trainer_cpu_s", at_most=40e-6),
            _BEST_NUMBER,
        ),
    ),
    Work(
        "jpeg",
        "JPEG 500×375 → 224 crop, not resized, shuffled",
        datasets.JPEG,
        _IMAGE,
        ("decode",),
        parameters={"shuffle": True, "transform": {"crop_size": 224}},
        targets=(
            _of_limit("decode", 0.95),
            Target("from the cache ≥ 10 ×", subject="blobfeed, cached", against=("blobfeed",), at_least=10),
            _BEST_NUMBER,
        ),
    ),
    Work(
        "npy_224",
        "npy, 3×224×224 uint8, shuffled",
        datasets.NPY_224,
        _IMAGE,
        ("gather", "read and copy", "copy"),
        targets=(_faster("torch", 4.5), *_RAW, _BEST_NUMBER),
    ),
    _SAMPLES,
    replace(_SAMPLES, name="hdf5_samples_ten", title="the same samples in ten files", data=datasets.HDF5_SAMPLES_TEN),
    Work(
        "hdf5_chunked",
        "HDF5 chunked (8 samples), uncompressed, shuffled",
        datasets.HDF5_CHUNKED,
        _IMAGE,
        ("gather", "read and copy", "copy"),
        targets=(_faster("torch", 6.5), *_RAW, _BEST_NUMBER),
    ),
    Work(
        "hdf5_gzip",
        "HDF5 gzip, chunks of 8, shuffled by chunks",
        datasets.HDF5_GZIP,
        _IMAGE,
        ("decompress",),
        chunk=8,
        parameters={"shuffle": "chunk"},
        targets=(_faster("torch", 15), _of_limit("decompress", 0.85), _BEST_NUMBER),
    ),
    Work(
        "hdf5_float",
        "HDF5 3×224×224 uint8 → float32 blob, shuffled",
        datasets.HDF5_224,
        _IMAGE,
        ("gather and convert",),
        dtype="float32",
        targets=(_of_limit("gather and convert", 0.9), _BEST_NUMBER),
    ),
)


def find_work(name: str) -> Work:
    return next(work for work in WORKS if work.name == name)
