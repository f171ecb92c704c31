"""Caffe's layers over files.

Those that read are fed by loaders: each becomes a MultiProcessInputLayer with what the prototxt says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from ...layers.multi_process_input_layer import MultiProcessInputLayer
from .blobs import Shape
from .layer import ANY, Layer, Tensors, layer_type
from .python import PythonLayer

_LARGEST_CROPPED = 8192
"""Height and width of the largest image of which a crop is taken. Only a loader's scratch memory is so large, and only
the pages of it that an image fills are used."""

_LARGEST_ALONE = 2048
"""Height and width of the largest image that is a batch by itself: so large is a slot then."""


class _DataLayer(PythonLayer):
    """A Python layer whose class and parameters follow from the fields of another type."""

    fields: ClassVar[tuple[str, ...]] = ()
    bottoms = range(1)
    tops = range(1, 3)
    in_place = False

    def _find_class(self) -> Any:
        return MultiProcessInputLayer

    def _param_str(self) -> Mapping[str, object]:
        return {"batch_size": self.options.batch_size, **self._source_parameters()}

    def _source_parameters(self) -> Mapping[str, object]:
        """The parameters of MultiProcessInputLayer, but for the batch_size."""
        raise NotImplementedError

    def _located(self, name: str) -> str:
        return name and str(self.context.net.beside(name).absolute())

    def _of_images(self) -> dict[str, object]:
        """The parameters that Data and ImageData share: transform_param, and the label if it has a top."""
        transform = self.param.transform_param
        return {
            "tops": ("data", "label")[: len(self.param.top)],
            "transform": {
                "scale": transform.scale,
                "mirror": transform.mirror,
                "crop_size": transform.crop_size,
                "mean_value": tuple(transform.mean_value),
                "mean_file": self._located(transform.mean_file),
            },
            "rand_skip": self.options.rand_skip,
            "seed": self.context.generators.data_seed,
        }

    def _largest(self) -> int:
        """Height and width of the largest image if sizes may vary, as in Caffe: in crops, and alone in a batch."""
        if self.param.transform_param.crop_size:
            return _LARGEST_CROPPED
        alone = self.options.batch_size == 1 and not self.param.transform_param.mean_file
        return _LARGEST_ALONE if alone else 0


@layer_type("Data")
class Data(_DataLayer):
    """Records of an LMDB, in the order of their keys."""

    fields = ("transform_param",)

    def _source_parameters(self) -> Mapping[str, object]:
        options, transform = self.options, self.param.transform_param
        source: dict[str, object] = {"path": self._located(options.source)}
        # Else encoded records are decoded to as many channels as they have.
        if transform.force_gray or transform.force_color or options.force_encoded_color:
            source["is_color"] = not transform.force_gray
        if largest := self._largest():
            source["max_height"] = largest
        # Caffe's default for `backend` is a LevelDB, and files of LMDBs do not always give one: the source sees what
        # lies there.
        parameters = {"source": {"lmdb": source}, **self._of_images()}
        if options.HasField("prefetch"):
            parameters["prefetch_batches"] = options.prefetch
        return parameters


@layer_type("ImageData")
class ImageData(_DataLayer):
    """Images that a text file lists."""

    fields = ("transform_param",)

    def _source_parameters(self) -> Mapping[str, object]:
        options = self.options
        # Relative paths in a list that lies in the working directory are taken from there, as in Caffe.
        is_beside = (self.context.folder / options.source).exists()
        root = self._located(options.root_folder) or ("" if is_beside else str(Path.cwd()))
        source = {
            "path": self._located(options.source),
            "root_folder": root,
            "labels": 1,
            "is_color": options.is_color,
            "dct_scaling": False,
            "exif": True,  # as Caffe with OpenCV 3 or later
        }
        if options.new_height or options.new_width:
            source |= {"new_height": options.new_height, "new_width": options.new_width}
        elif largest := self._largest():
            source["max_height"] = largest
        else:
            source["equal_sizes"] = True
        return {"source": {"image_list": source}, "shuffle": options.shuffle, **self._of_images()}


@layer_type("HDF5Data")
class HDF5Data(_DataLayer):
    """The files that a text file lists, put end to end; each top is the data set of that name."""

    tops = ANY

    def _source_parameters(self) -> Mapping[str, object]:
        options = self.options
        return {
            "source": {"hdf5": {"path": self._located(options.source)}},
            "tops": tuple(self.param.top),
            "shuffle": options.shuffle,
            "seed": self.context.generators.data_seed,
        }


@layer_type("HDF5Output")
class HDF5Output(Layer):
    """Writes its bottoms as `data` and `label` of an HDF5 file, batch behind batch; the first one begins it anew."""

    bottoms = range(2, 3)
    tops = range(1)

    def read_options(self) -> None:
        self._path = Path(self.options.file_name).absolute()  # a script may change the working directory
        self._begun = False

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        if not all(bottom):
            raise self.context.misfit(f"needs bottoms with an axis of samples, got {bottom[0]} and {bottom[1]}")
        self.need_equal_rows(bottom)
        return []

    def forward(self, *bottom: Tensor) -> Tensors:
        from ...sources.stored.hdf5_library import h5py

        with h5py.File(self._path, "a" if self._begun else "w") as file:
            for name, tensor in zip(("data", "label"), bottom, strict=True):
                rows = tensor.detach().cpu().numpy()
                if name not in file:
                    file.create_dataset(name, (0, *rows.shape[1:]), rows.dtype, maxshape=(None, *rows.shape[1:]))
                file[name].resize(len(file[name]) + len(rows), 0)
                file[name][len(file[name]) - len(rows) :] = rows
        self._begun = True
        return ()
