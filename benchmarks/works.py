"""The works: the rows of the table, each with what is read, what is delivered, its limit and its targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from . import datasets
from .datasets import DataSet
from .reading import HDF5Rows, JpegCrops, Normalise, Reader

Limit = Literal[
    "copy",
    "gather",
    "gather and convert",
    "gather by two",
    "gather and convert by two",
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
    `normalise`: of values that are stored in another type.
    """

    name: str
    title: str
    data: DataSet
    shape: tuple[int, ...]
    limits: tuple[Limit, ...]
    dtype: str = "uint8"
    batch_size: int = 64
    normalise: Normalise = field(default_factory=Normalise)
    step_s: float = 0.0
    chunk: int = 0
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"shuffle": True})
    targets: tuple[Target, ...] = ()

    def reader(self, samples: int) -> Reader:
        return self.data.reader(self.data.path(samples), samples, self.dtype)

    def source(self, samples: int) -> Mapping[str, Any]:
        return self.data.source(self.data.path(samples))

    @property
    def resizes(self) -> bool:
        return "random_resized_crop" in self.parameters.get("transform", {})


_READER, _TWO = "blobfeed, BatchReader", "blobfeed, 2 loaders"
_SHORT = {
    _READER: "handed over ",
    _TWO: "filled ",
    "blobfeed, in process": "num_loaders: 0 ",
    "blobfeed, layer": "layer ",
}


def _faster(subject: str, times: float, *than: str) -> Target:
    return Target(f"{_SHORT[subject]}≥ {times:g} × {than[-1]}", subject=subject, against=than, at_least=times)


def _of_limit(limit: Limit, part: float, subject: str = "blobfeed") -> Target:
    text = f"{_SHORT.get(subject, '')}≥ {part:g} of {limit}"
    return Target(text, subject=subject, against=(f"limit: {limit}",), at_least=part)


_BEST_NUMBER = Target(
    "≥ 0.9 of the best number of loaders",
    against=("blobfeed, 1 loader", "blobfeed, 2 loaders", "blobfeed, 4 loaders"),
    at_least=0.9,
)


START = (
    Target("first second ≥ 0.7 of the rate", metric="first_second_part", subject=_READER, at_least=0.7),
    Target("longest wait ≤ 0.35 s", metric="longest_wait_s", subject=_READER, at_most=0.35),
)


def _stall(step_s: float) -> Work:
    targets = (
        Target("filled ≤ 1.1 × the copy", metric="stall_s", subject=_TWO, against=("limit: copy",), at_most=1.1),
        Target("handed over ≤ 0.25 ms", metric="stall_s", subject=_READER, at_most=0.25e-3),
        *START,
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
_RAW = Work(
    "hdf5_224",
    "HDF5 contiguous, 3×224×224 uint8, shuffled",
    datasets.HDF5_224,
    _IMAGE,
    ("gather", "read and copy", "copy", "gather by two"),
    targets=(
        _faster(_READER, 1.5, "spdl", "spdl, pooled"),
        _of_limit("gather", 0.9, _READER),
        _faster(_TWO, 1.05, "spdl, filling"),
        _of_limit("read and copy", 0.85, _TWO),
        _of_limit("gather", 0.85, "blobfeed, in process"),
        _BEST_NUMBER,
        *START,
    ),
)
"""One process that gathers rows right into the blob moves each byte once; loaders move it twice, with two cores."""

_JPEG = Work(
    "jpeg",
    "JPEG 500×375 → 224 crop, not resized, shuffled",
    datasets.JPEG,
    _IMAGE,
    ("decode",),
    parameters={"shuffle": True, "transform": {"crop_size": 224}},
    targets=(
        _faster(_READER, 1.0, "dali"),
        _of_limit("decode", 0.95),
        Target("from the cache ≥ 10 ×", subject="blobfeed, cached", against=("blobfeed",), at_least=10),
        _BEST_NUMBER,
        *START,
    ),
)

_SAMPLES = Work(
    "hdf5_samples",
    "HDF5, one data set per sample in one file, float32 64×64×3, label in attrs",
    datasets.HDF5_SAMPLES,
    (64, 64, 3),
    ("copy",),
    dtype="float32",
    targets=(_faster(_READER, 12, "torch"), _BEST_NUMBER, *START),
)

_NORMALISE = Normalise(mean=128.0, scale=1 / 64)

WORKS = (
    _stall(0.010),
    _stall(0.050),
    replace(
        _RAW,
        targets=(*_RAW.targets, Target("memory ≤ ring + 60 MB", metric="beside_ring_bytes", at_most=60e6)),
    ),
    Work(
        "hdf5_28",
        "HDF5, 1×28×28 uint8 → float32, shuffled",
        datasets.HDF5_28,
        (1, 28, 28),
        ("read and convert",),
        dtype="float32",
        targets=(
            _faster(_TWO, 2.5, "tensorpack, batched"),
            _faster("blobfeed, in process", 1.1, "plain loop, batched"),
            Target("trainer ≤ 24 µs a batch", metric="trainer_cpu_s", subject=_TWO, at_most=24e-6),
            _BEST_NUMBER,
            *START,
        ),
    ),
    _JPEG,
    replace(
        _JPEG,
        name="jpeg_resized",
        title="JPEG 500×375 → a random part, resized to 224, shuffled",
        data=replace(datasets.JPEG, reader=lambda path, samples, _: JpegCrops(path, samples, 224, resizes=True)),
        parameters={"shuffle": True, "transform": {"random_resized_crop": 224}},
        targets=(_faster(_READER, 1.0, "dali", "spdl, turbo"), _of_limit("decode", 0.95), _BEST_NUMBER, *START),
    ),
    replace(_RAW, name="npy_224", title="npy, 3×224×224 uint8, shuffled", data=datasets.NPY_224),
    _SAMPLES,
    replace(_SAMPLES, name="hdf5_samples_ten", title="the same samples in ten files", data=datasets.HDF5_SAMPLES_TEN),
    replace(
        _RAW,
        name="hdf5_chunked",
        title="HDF5 chunked (8 samples), uncompressed, shuffled",
        data=datasets.HDF5_CHUNKED,
    ),
    Work(
        "hdf5_gzip",
        "HDF5 gzip, chunks of 8, shuffled by chunks",
        datasets.HDF5_GZIP,
        _IMAGE,
        ("decompress",),
        chunk=8,
        parameters={"shuffle": "chunk"},
        targets=(_faster(_READER, 15, "torch"), _of_limit("decompress", 0.85), _BEST_NUMBER, *START),
    ),
    Work(
        "hdf5_float",
        "HDF5 3×224×224 uint8 → float32 blob, shuffled",
        datasets.HDF5_224,
        _IMAGE,
        ("gather and convert",),
        dtype="float32",
        targets=(
            _faster("blobfeed, layer", 1.5, "spdl", "spdl, filling"),
            _of_limit("gather and convert", 0.9),
            _BEST_NUMBER,
            *START,
        ),
    ),
    Work(
        "hdf5_normalised",
        "HDF5 3×224×224 uint8 → float32 by mean and scale, shuffled",
        replace(datasets.HDF5_224, reader=partial(HDF5Rows, normalise=_NORMALISE)),
        _IMAGE,
        ("gather and convert by two", "gather and convert"),
        dtype="float32",
        normalise=_NORMALISE,
        parameters={
            "shuffle": True,
            "transform": {"mean_value": [_NORMALISE.mean], "scale": _NORMALISE.scale},
        },
        targets=(
            _faster(_READER, 1.6, "spdl", "spdl, pooled"),
            _of_limit("gather and convert by two", 0.85, _READER),
            *START,
        ),
    ),
)


def find_work(name: str) -> Work:
    return next(work for work in WORKS if work.name == name)
