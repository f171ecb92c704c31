"""The parameters of a pipeline: one vocabulary for `param_str`, for the readers' keyword arguments and for errors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import PurePath
from typing import Annotated, Any, Literal, Required, TypedDict

import msgspec
import numpy as np

from ..base import ParameterError
from .checks import check_options, shown
from .source import Source

Positive = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Range = Annotated[tuple[Annotated[float, msgspec.Meta(gt=0)], ...], msgspec.Meta(min_length=2, max_length=2)]
LastBatch = Literal["wrap", "drop", "partial"]
# Not tuple[Positive, Positive]: msgspec 0.22 crashes on such a tuple beside an int.
Size = Annotated[tuple[Positive, ...], msgspec.Meta(min_length=2, max_length=2)]
CropSize = Annotated[tuple[Positive, ...], msgspec.Meta(min_length=2, max_length=3)]
Paths = str | Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]

_MOST_RANKS, _MOST_SKIPPED = 2**31, 2**62
"""Beyond these the positions of samples would not fit into 64 bits."""


class RandomResizedCrop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The crop of a random part of each picture, resized to one size, as torchvision's RandomResizedCrop.

    size: height and width of the result; one number for both.
    scale: the least and the largest area of the part, as fractions of the picture's; without it [0.08, 1].
    ratio: the least and the largest width of the part, divided by its height; without it [3/4, 4/3].
    """

    size: Positive | Size
    scale: Range = (0.08, 1.0)
    ratio: Range = (3 / 4, 4 / 3)


class Transform(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The transformation of samples, called transform_param in Caffe's own data layers.

    scale: factor of the values, applied after the mean is subtracted; one number, or one for each channel.
    mean_value: the mean to subtract: one number, or one for each channel.
    axis: the axis of a sample along which scale and mean_value have their numbers: "first", the channels of a picture,
        or "last", the features of a window's steps.
    mean_file: instead, a mean image: .npy, or the .binaryproto of Caffe's compute_image_mean.
    crop_size: height and width of the part cut out of each picture, at a random place in training, else in the centre;
        one number for both; 0 for the whole picture; of volumes depth, height and width. Of large samples in stored
        arrays only the rows or chunks under it are read.
    crop_beside: other tops that are cut and mirrored with the first one, at the same place: masks of its pixels.
    crop_before_decode: cut before decode, which then gets the crop alone; without it decode gets the whole sample.
    random_resized_crop: instead: in training a part of random size, shape and place, else 7/8 of the shorter side in
        the centre, resized; {size: 224, scale: [0.08, 1], ratio: [0.75, 1.33]}, or the size alone.
    mirror: mirror half of the pictures from left to right in training.
    force_color: make three channels of one.
    force_gray: make one channel of three.
    """

    scale: float | tuple[float, ...] = 1.0
    mean_value: tuple[float, ...] = ()
    axis: Literal["first", "last"] = "first"
    mean_file: str = ""
    crop_size: NotNegative | CropSize = 0
    crop_beside: tuple[str, ...] = ()
    crop_before_decode: bool = False
    random_resized_crop: RandomResizedCrop | None = None
    mirror: bool = False
    force_color: bool = False
    force_gray: bool = False


class Pad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The padding of samples of unequal size to the size of the batch's largest.

    value: fills the rest: a number, or numbers by top; {mask: 255} fills all other tops with 0.
    to_multiple_of: round the size up to a multiple of this: height and width of images (channels, height, width), of
        all else the first axis alone.
    """

    value: float | dict[str, float] = 0.0
    to_multiple_of: Positive = 1

    def value_of(self, top: str) -> float:
        return self.value.get(top, 0.0) if isinstance(self.value, dict) else self.value


class Cache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The database that keeps decoded samples from the first epoch on.

    path: its folder; several runs on one machine may share it.
    size_limit: the largest size of the database, in bytes.
    """

    path: str
    size_limit: Positive


class RemoteLoaders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Loaders that run as actors of a Ray cluster.

    count: number of loaders; "auto" starts as many as the cluster can run.
    limit: the most that "auto" starts.
    address: the cluster's address, such as "host:port" or "[fd00::1]:port"; "auto" asks RAY_ADDRESS, then this machine.
    num_cpus: processors that each of them takes there.
    resources: other resources that each of them takes, by Ray's names; {loader: 1} chooses nodes that have it.
    runtime_env: Ray's, for files, packages and environment variables that the nodes lack.
    """

    count: Positive | Literal["auto"] = "auto"
    limit: Positive = 64
    address: str = "auto"
    num_cpus: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    resources: dict[str, Annotated[float, msgspec.Meta(gt=0)]] = {}
    runtime_env: dict[str, Any] = {}

    @property
    def most(self) -> int:
        return self.limit if self.count == "auto" else self.count


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The parameters of one pipeline. Times are in seconds; None means: chosen at start.

    The one place that says what each parameter means: `blobfeed params` and docs/parameters.md are made from it.

    source: the data: a mapping with one key, the kind, over that kind's options, such as {hdf5: {path: train.h5}}.
    mix: instead of source: several sources, each with a weight (else 1); see order.md.
    fields: names of the arrays to read, if a hook makes the tops from others; without it the tops.
    tops: names of the arrays to deliver, each once, in the order of the layer's tops; one name needs no list. Without
        it those of the source, in the order that their names decide (data, image, x, tokens before label, y, mask; see
        sources.md); of HDF5 files data and label, or, without data, all arrays. The tops that pad and concatenate make
        follow by themselves.
    batch_size: rows of a batch.
    num_loaders: loader processes; 0 reads in the trainer's process; "auto" starts as many as keep the trainer from
        waiting; see layer.md.
    cpu_share: the part of the usable cores that num_loaders "auto" takes at most; the trainer has the rest.
    remote_loaders: loaders on a Ray cluster; see cluster.md.
    prefetch_batches: maximum number of batches made ahead; "auto" makes 4, and more of tiny ones, which are made
        together. Readers make up to three more: those that you may keep.
    shuffle: false for the source's order; true for a uniform one; "chunk" mixes chunks, for compressed or cold storage;
        see order.md.
    shuffle_window: chunks that are mixed at a time.
    sampler: chooses the samples of an epoch: {weights: FILE, draws: n}, {balance: FIELD}, {indices: FILE},
        {exclude: FILE}, or a function in Python; see order.md.
    batch_sampler: a function that yields whole batches of sample indices; see order.md.
    seed: determines the order and all random numbers.
    seed_globals: seed NumPy's and Python's global generators for each sample, too.
    rand_skip: at the start, skip a number of samples below this one, drawn by the seed, as Caffe's data layers do.
    epochs: the epochs of a loop over a reader: 1 unless it is given, and None for no end; the data of a layer end after
        so many, and without it never.
    last_batch: if the batch size does not divide the epoch: "wrap" into the next one, "drop" the rest, or deliver a
        "partial" batch, which readers do unless it is given, or epochs is None.
    rank: number of this process's part of the data, from 0; set automatically under torchrun and in Caffe.
    world_size: number of processes that share the data; goes with rank.
    transform: scale, mean, crop and mirror of the first top, as in Caffe's transform_param; see delivery.md.
    max_shapes: for tops that a hook makes in different sizes: the largest shape, by top.
    concatenate: tops whose samples are put end to end instead of stacked; see delivery.md.
    max_rows: the most rows of one sample of a concatenated top.
    pad: bring the samples of a batch to one size; see delivery.md.
    cache: keep decoded samples in a database from the first epoch on; see sources_images.md.
    on_error: "raise", or "replace" a sample that cannot be read by another one.
    max_bad_samples: the most different samples that may be replaced before the run ends.
    task_timeout_s: seconds at one task, or at one sample of a stream, after which a loader counts as hung and is
        replaced.
    timeout_s: seconds without a batch after which the trainer gives up.
    resume: the iteration at which a layer's data go on, or "snapshot": that of the snapshot in the command
        `caffe train`; see caffe.md.
    batches_per_iteration: the solver's iter_size, for `resume`.
    changed_data: "refuse" a state that was saved with other data, or "accept" it and continue with these; see
        readers.md.
    device: the device of a reader's tensors: "cpu", "cuda", "cuda:1"; empty for NumPy arrays.
    device_prefetch: batches on a CUDA device or on the way there.
    delivery: "copy" into a layer's own blobs, or "view": torch blobs show the slot itself, valid until the next batch;
        see delivery.md.
    trace: a file with the steps and times of every process; see watching.md.
    metrics: a file for Prometheus; see watching.md.
    """

    source: dict[str, Any] | None = None
    mix: tuple[dict[str, Any], ...] = ()
    fields: tuple[str, ...] | None = None
    tops: tuple[str, ...] | None = None
    batch_size: Positive
    num_loaders: NotNegative | Literal["auto"] = "auto"
    cpu_share: Share = 1.0
    remote_loaders: RemoteLoaders | None = None
    prefetch_batches: Positive | Literal["auto"] = "auto"
    shuffle: bool | Literal["chunk"] = False
    shuffle_window: Positive = 16
    sampler: Any = None
    batch_sampler: Any = None
    seed: NotNegative = 0
    seed_globals: bool = True
    rand_skip: NotNegative = 0
    epochs: Positive | None = None
    last_batch: LastBatch = "wrap"
    rank: NotNegative | None = None
    world_size: Positive | None = None
    transform: Transform = Transform()
    max_shapes: dict[str, tuple[Positive, ...]] = {}
    concatenate: tuple[str, ...] = ()
    max_rows: Positive | None = None
    pad: Pad | None = None
    cache: Cache | None = None
    on_error: Literal["raise", "replace"] = "raise"
    max_bad_samples: NotNegative = 100
    task_timeout_s: Seconds = 120.0
    timeout_s: Seconds = 600.0
    resume: NotNegative | Literal["snapshot"] | None = None
    batches_per_iteration: Positive = 1
    changed_data: Literal["refuse", "accept"] = "refuse"
    device: str = ""
    device_prefetch: Positive = 2
    delivery: Literal["copy", "view"] = "copy"
    trace: str = ""
    metrics: str = ""

    @property
    def ranks(self) -> int:
        """The number of processes that share the data."""
        return self.world_size or 1

    @property
    def own_rank(self) -> int:
        """The number of this process's part of the data."""
        return self.rank or 0

    @property
    def has_loaders(self) -> bool:
        """True if loaders make the batches, here or on a cluster; else the trainer's process makes them."""
        return self.num_loaders != 0 or self.remote_loaders is not None


# The same, without FOR_LAYERS, as a reader's keyword arguments: type checkers know no msgspec. A test compares the two.


class SharedParameters(TypedDict, total=False):
    """The parameters that `AsyncReader` accepts, too."""

    seed: int
    last_batch: LastBatch
    timeout_s: float
    changed_data: Literal["refuse", "accept"]


class ReaderParameters(SharedParameters, total=False):
    """The parameters of a reader besides its source; docs/parameters.md explains each."""

    mix: Sequence[Mapping[str, Any] | Source | str | PurePath]
    fields: str | Sequence[str] | None
    tops: str | Sequence[str] | None
    batch_size: Required[int]
    num_loaders: int | Literal["auto"]
    cpu_share: float
    remote_loaders: Mapping[str, Any] | None
    prefetch_batches: int | Literal["auto"]
    shuffle: bool | Literal["chunk"]
    shuffle_window: int
    sampler: Any
    batch_sampler: Any
    seed_globals: bool
    rand_skip: int
    epochs: int | None
    rank: int | None
    world_size: int | None
    transform: Mapping[str, Any]
    max_shapes: Mapping[str, Sequence[int]]
    concatenate: str | Sequence[str]
    max_rows: int | None
    pad: Mapping[str, Any] | None
    cache: Mapping[str, Any] | None
    on_error: Literal["raise", "replace"]
    max_bad_samples: int
    task_timeout_s: float
    device: str
    device_prefetch: int
    trace: str | PurePath
    metrics: str | PurePath


FOR_LAYERS = {
    "delivery": "a reader's batches are yours, the slots themselves where nothing is converted: leave it out",
    "resume": "give the state_dict() that you keep beside each checkpoint to load_state_dict instead",
    "batches_per_iteration": "a reader counts batches",
}
"""The parameters that readers have not, and what to do instead."""


def loop_end(epochs: int | None, epoch: int) -> int | None:
    """Return the first epoch behind the loop of `epochs` epochs in which `epoch` lies; None without an end."""
    return None if epochs is None else (epoch // epochs + 1) * epochs


def check_parameters(values: Mapping[str, Any], what: str = "parameters") -> Parameters:
    """Convert `values` to Parameters; raises ParameterError naming the key, its value and what is allowed."""
    parameters = check_options(_written_out(values, what), Parameters, what)
    if (parameters.source is None) == (not parameters.mix):
        raise ParameterError(f"{what}: exactly one of 'source' and 'mix' is needed, got {sorted(map(str, values))}")
    if complaint := next(chain(_wrong_with_tops(parameters), _wrong_with_others(parameters)), None):
        raise ParameterError(f"{what}: {complaint}")
    return parameters


def without_source(parameters: Parameters) -> Parameters:
    """Return the parameters without their sources and samplers, to be sent to other processes.

    These may hold anything, such as arrays or objects of the script's own classes. Other processes need only the
    open source.
    """
    return msgspec.structs.replace(parameters, source=None, mix=(), sampler=None, batch_sampler=None)


GIVEN_PICTURES = (
    "pictures are {files: {path: 'photos/*/*.jpg', labels: folder}}, which `blobfeed inspect FOLDER` completes, or "
    "{image_list: {path: train.txt}}, a text file with a picture's path and its label on each line"
)


def hdf5_if_path(source: object) -> object:
    """Turn a bare path into options of source hdf5: an HDF5 file, or a list of such files as in Caffe's HDF5Data."""
    return {"hdf5": {"path": source}} if isinstance(source, str | PurePath) else source


def _written_out(values: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    """Expand the short forms of parameters: a single field, top or mean without a list, a path or object as a source.

    Raises ParameterError if `source` is neither a mapping, a path nor a Source.
    """
    changed = dict(values)
    source = changed.get("source")
    if source is not None and not isinstance(source, str | PurePath | Mapping | Source):
        if hasattr(source, "__getitem__") and not hasattr(source, "__iter__"):
            raise ParameterError(
                f"{what}: parameter 'source' is {shown(source)}: if it is a Dataset, read its indices, {{arrays: "
                "{index: np.arange(len(dataset))}}, and return dataset[sample['index']] from decode"
            )
        if isinstance(source, list | tuple) and all(isinstance(path, str | PurePath) for path in source):
            raise ParameterError(
                f"{what}: parameter 'source' is {shown(source)}: HDF5 files are {{hdf5: {{path: [a.h5, b.h5]}}}}, and "
                f"{GIVEN_PICTURES}"
            )
        raise ParameterError(
            f"{what}: parameter 'source' is {shown(source)}: expected a mapping of names to values, or the path of an "
            "HDF5 file; arrays are given by name, as {arrays: {data: x, label: y}}, and samples that a function yields "
            "as StreamSource(function)"
        )
    if isinstance(source, Source):
        changed["source"] = {source.kind: source}
    elif source is not None:
        changed["source"] = hdf5_if_path(source)
    if isinstance(mix := changed.get("mix"), list | tuple):
        changed["mix"] = [{part.kind: part} if isinstance(part, Source) else hdf5_if_path(part) for part in mix]
    for name in ("fields", "tops", "concatenate"):
        if isinstance(changed.get(name), str):
            changed[name] = [changed[name]]
    transform = changed.get("transform")
    if isinstance(transform, Mapping) and isinstance(transform.get("mean_value"), int | float | np.number):
        changed["transform"] = transform = {**transform, "mean_value": [transform["mean_value"]]}
    if isinstance(transform, Mapping) and isinstance(size := transform.get("random_resized_crop"), int | list | tuple):
        changed["transform"] = {**transform, "random_resized_crop": {"size": size}}
    return changed


def _wrong_with_tops(given: Parameters) -> Iterator[str]:
    tops = given.tops
    if given.max_rows is not None and not given.concatenate:
        yield f"parameter 'max_rows' is {given.max_rows}, and 'concatenate' names no top that it is for"
    if tops is not None and not tops:
        yield "parameter 'tops' is []: expected one name or more; without it, all are delivered"
    if tops is not None and len(set(tops)) < len(tops):
        yield (
            f"parameter 'tops' is {list(tops)}: expected each name once; several layers of a net may have the same "
            "blob as their bottom"
        )
    made = {f"{name}_samples": "concatenate" for name in given.concatenate}
    if given.pad is not None:
        made |= {f"{name}_lengths": "pad" for name in tops or ()}
    for name in made.keys() & set(tops or ()):
        yield (
            f"parameter 'tops' has {name!r}, and {made[name]!r} makes a top of that name: leave it out of 'tops', it "
            "comes behind the others by itself; rename a top of your own"
        )


def _wrong_with_others(given: Parameters) -> Iterator[str]:
    rank, world_size, transform = given.rank, given.world_size, given.transform
    if (rank is None) != (world_size is None):
        yield f"'rank' and 'world_size' go together, got rank={rank}, world_size={world_size}"
    if rank is not None and world_size is not None and rank >= world_size:
        yield f"parameter 'rank' is {rank}: expected a number below world_size={world_size}"
    if world_size is not None and world_size > _MOST_RANKS:
        yield f"parameter 'world_size' is {world_size}: expected at most {_MOST_RANKS}"
    if given.rand_skip > _MOST_SKIPPED:
        yield f"parameter 'rand_skip' is {given.rand_skip}: expected at most {_MOST_SKIPPED}"
    scales = transform.scale if isinstance(transform.scale, tuple) else (transform.scale,)
    if not scales:
        yield "parameter 'transform.scale' is []: expected a number, or one for each channel"
    for name, numbers in (("scale", scales), ("mean_value", transform.mean_value)):
        if wrong := [number for number in numbers if not math.isfinite(number)]:
            yield f"parameter 'transform.{name}' has {wrong[0]}: expected finite numbers"
    if transform.mean_file and transform.mean_value:
        yield (
            f"'transform.mean_file' is {transform.mean_file!r} and 'transform.mean_value' is {transform.mean_value}: "
            "give one of them"
        )
    if (part := transform.random_resized_crop) is not None:
        for name, (least, most) in (("scale", part.scale), ("ratio", part.ratio)):
            if not least <= most < (math.inf if name == "ratio" else 1 + 1e-9):
                yield (
                    f"parameter 'transform.random_resized_crop.{name}' is {[least, most]}: expected the least and the "
                    f"largest one{', a part of the picture' if name == 'scale' else ''}"
                )
        if transform.crop_size:
            yield (
                f"'transform.crop_size' is {transform.crop_size} and 'transform.random_resized_crop' {part.size}: give "
                "one of them"
            )
        if transform.mean_file:
            yield (
                f"'transform.mean_file' is {transform.mean_file!r}, and 'transform.random_resized_crop' leaves no "
                "pixel in its place: use 'transform.mean_value'"
            )
        if transform.crop_beside:
            yield (
                f"'transform.crop_beside' is {list(transform.crop_beside)}, and 'transform.random_resized_crop' would "
                "mix the values of a mask: use 'transform.crop_size'"
            )
    if transform.crop_before_decode and not transform.crop_size:
        yield "'transform.crop_before_decode' needs 'transform.crop_size', the size of the part to cut"
    if isinstance(transform.crop_size, tuple) and len(transform.crop_size) == 3:
        of_pictures = {name: getattr(transform, name) for name in ("mean_file", "force_color", "force_gray")}
        for name in (name for name, value in of_pictures.items() if value):
            yield (
                f"'transform.{name}' is for pictures, and 'transform.crop_size' {list(transform.crop_size)} cuts "
                "volumes: use 'transform.mean_value', or a decode hook"
            )
    if transform.force_color and transform.force_gray:
        yield "'transform.force_color' and 'transform.force_gray' are both true: give one"
