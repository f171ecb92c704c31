"""The work of a loader on a task: read, decode and crop into the rows of a slot; postprocess."""

from __future__ import annotations

from .conversion import BLOCK_ITEMS, Conversion, Mean, MeanImage, gather
from .postprocessing import BatchSamples, Postprocessor
from .resized_crop import central_part, random_part
from .row_converter import RowConverter, converted_specs
from .row_maker import RowMaker, copy_row
from .transform import CROPS, Crop, CropMirror
from .worker import RowDecoder, SampleDecoder, Worker, Workplace, location_of, read_one
