"""The ready-made input layers: one for each kind of source, whose options stand at the top level of param_str."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..readers.delivery import load_mean_file
from ..workers.api import IndexArray, Parameters, Sample, shown
from ..workers.base import ParameterError, in_folder
from ..workers.sources import open_source
from .multi_process_input_layer import MultiProcessInputLayer


class HDF5InputLayer(MultiProcessInputLayer):
    """HDF5 files with one data set per top: `param_str: "{path: train.h5, batch_size: 64}"`."""

    _source_kind = "hdf5"


class HDF5SamplesInputLayer(MultiProcessInputLayer):
    """HDF5 files with one data set, or one group, per sample: `param_str: "{path: all.h5, batch_size: 64}"`."""

    _source_kind = "hdf5_samples"


class NpyInputLayer(MultiProcessInputLayer):
    """.npy files, one or several per top: `param_str: "{data: images.npy, label: labels.npy, batch_size: 64}"`."""

    _source_kind = "npy"


class ImageListInputLayer(MultiProcessInputLayer):
    """Images listed in a text file, as in Caffe's ImageData: `param_str: "{path: train.txt, batch_size: 64}"`."""

    _source_kind = "image_list"


class StreamInputLayer(MultiProcessInputLayer):
    """Samples from iterators: `param_str: "{make: my_data:samples, capacity: 1000, batch_size: 64}"`."""

    _source_kind = "stream"


class WindowsInputLayer(MultiProcessInputLayer):
    """Windows of pictures, as in Caffe's WindowData: `param_str: "{path: train.txt, crop_size: 227, …}"`.

    The fraction fg_fraction of each batch is foreground windows, after those of the background; both are drawn with
    replacement. `data` is float32: (picture - mean) * scale inside the picture, 0 outside. The mean is the centre of
    the one in mean_file, or mean_value, one number or one for each channel.
    """

    _source_kind = "windows"
    extra_parameters: ClassVar[Mapping[str, object]] = {
        "fg_fraction": 0.25,
        "mean_file": "",
        "mean_value": None,  # a number or a list, which `_finite` checks
        "scale": 1.0,
    }

    def _prepared(self, parameters: Parameters, base_dir: Path) -> Parameters:
        what = f"layer {type(self).__name__}"
        if not 0 <= self.extra["fg_fraction"] <= 1:
            raise ParameterError(
                f"{what}: parameter 'fg_fraction' is {self.extra['fg_fraction']}: expected 0 to 1, the part of "
                "each batch that is foreground"
            )
        self._scale = self._finite("scale", what)
        wanted = parameters.tops or ("data", "label")
        source: Any = open_source(parameters.source, tops=("data", "label", "area"), base_dir=base_dir)
        self._batch = parameters.batch_size
        self._from_front = int(np.float32(self._batch) * np.float32(self.extra["fg_fraction"]))
        self._windows = {"background": source.background, "foreground": source.foreground}
        for kind, needed in zip(self._windows, (self._batch - self._from_front, self._from_front), strict=True):
            if needed and not self._windows[kind]:
                raise ParameterError(
                    f"{what}: the window file has no {kind} windows, and fg_fraction {self.extra['fg_fraction']} asks "
                    f"for {needed} of them in each batch: check fg_threshold and bg_threshold"
                )
        self._mean = self._mean_of(source.specs["data"].shape, base_dir, what)
        return msgspec.structs.replace(parameters, source={"windows": source}, tops=wanted)

    def _mean_of(self, shape: tuple[int, ...], base_dir: Path, what: str) -> NDArray[np.float32] | None:
        values, name = self._finite("mean_value", what), self.extra["mean_file"]
        if name:
            mean = load_mean_file(in_folder(base_dir, name))
            offset = (mean.shape[2] - shape[2]) // 2
            cut = mean[:, offset : offset + shape[1], offset : offset + shape[2]]
            if values.size or offset < 0 or cut.shape != shape:
                raise ParameterError(
                    f"{what}: mean_file {name} has the shape {mean.shape}: expected at least {shape}, and no mean_value"
                )
            return cut
        if values.size not in (0, 1, shape[0]):
            raise ParameterError(f"{what}: mean_value has {values.size} numbers: expected 1 or {shape[0]}")
        return np.broadcast_to(values.reshape(-1, 1, 1), shape).copy() if values.size else None

    def _finite(self, name: str, what: str) -> NDArray[np.float32]:
        """Return the number or numbers of a parameter, shape (numbers,); raises ParameterError for anything else."""
        given = self.extra[name]
        try:
            values: tuple[float, ...] | float = msgspec.convert(
                () if given is None else given, float | tuple[float, ...]
            )
        except msgspec.ValidationError:
            values = math.nan
        with np.errstate(over="ignore"):
            numbers = np.array(values, np.float32).reshape(-1)
        if not np.isfinite(numbers).all():
            raise ParameterError(
                f"{what}: parameter {name!r} is {shown(given)}: expected a finite number that float32 holds"
                + ", or one for each channel" * (name == "mean_value")
            )
        return numbers

    def decode(self, sample: Sample, rng: np.random.Generator) -> object:
        top, left, height, width = sample["area"].tolist()
        part = np.s_[:, top : top + height, left : left + width]
        data = np.zeros(sample["data"].shape, np.float32)
        seen = sample["data"][part].astype(np.float32)
        data[part] = (seen if self._mean is None else seen - self._mean[part]) * self._scale
        return {"data": data, "label": sample["label"]}

    def batch_sampler(self, epoch: int, samples: int, rng: np.random.Generator) -> Iterator[IndexArray]:
        back, front = self._windows.values()
        for _ in range(max(1, samples // self._batch)):
            drawn = [
                rng.integers(back or 1, size=self._batch - self._from_front),
                back + rng.integers(front or 1, size=self._from_front),
            ]
            mirrored = rng.integers(samples // (back + front), size=self._batch)
            yield np.concatenate(drawn) + mirrored * (back + front)
