"""Pictures in an LMDB of Datum records, as Caffe's convert_imageset writes it: raw, or encoded as JPEG or PNG."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from ...workers.api import ArraySpec, NotNegative, RaggedRows, Rows, Tops, check_options
from ...workers.base import ParameterError, SourceError, in_folder, need
from ..files import PackedNames, without_paths
from ..images import PictureOptions, picture_field, require_like_first
from ..table import Field, Records, Table, learnt_of, naming
from .database import Database, list_keys
from .datum import parsed


class LmdbOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of `source: {lmdb: …}`.

    path: the database, a folder with data.mdb, or a file.
    is_color: decode encoded records to three channels, or to one; without it, to as many as the first record has.
    color: the order of the channels of encoded records; without it rgb in readers and commands, bgr in layers. Raw
        records come as they are stored, which is BGR if Caffe's convert_imageset wrote them.
    max_height, max_width: the largest size, if sizes vary; without them all must have the size of the first record.
    strict: whether a damaged JPEG is an error.
    """

    path: str
    is_color: bool | None = None
    color: Literal["rgb", "bgr"] | None = None
    max_height: NotNegative = 0
    max_width: NotNegative = 0
    strict: bool = True


def open_lmdb(options: Mapping[str, object], *, tops: Tops = None, base_dir: Path = Path()) -> Table:
    """`data`, uint8 (float32 if the records hold float_data), shape (channels, height, width), and `label`, int64, ().

    The keys are listed once, in the database's order. Raises SampleError for a first record that is no picture, too.
    """
    checked = check_options(options, LmdbOptions, "source lmdb")
    path = str(in_folder(base_dir, checked.path))
    stamp, keys = list_keys(path)
    if not len(keys):
        raise SourceError(f"source lmdb: {path!r} holds no records")
    place = _Place(path, keys)
    database = Database(stamp)
    database.begin()

    def learn(index: int) -> _Data:
        with naming("lmdb", path, index, place.where(index)):
            first = parsed(database.read(keys[index]))
            if first.encoded:
                need("cv2", f"source lmdb, for the encoded records of {path},")
            return _Data(first, checked)

    data, bad = learnt_of(learn, range(len(keys)))

    def check() -> None:
        if bad:
            raise bad[0]

    fields = {"data": Field(data.spec, data.put), "label": Field(ArraySpec((), np.dtype(np.int64)), _put_label)}
    records = Records(
        database,
        len(keys),
        fields,
        place=place.key,
        parse=parsed,
        modules=(*data.modules, "google.protobuf.descriptor_pb2"),
    )
    return Table(
        "lmdb",
        [records],
        held_in=path,
        where=place.where,
        tops=tops,
        what=f"source lmdb: {path}",
        options=without_paths(checked),
        check=check,
    )


def holds_raw_pictures(path: str) -> bool:
    """Return true if the first record of the database at `path` has three channels of raw pixels."""
    stamp, keys = list_keys(path)
    with closing(Database(stamp)) as database:
        database.begin()
        return _is_raw_picture(parsed(database.read(keys[0])))


class _Place(msgspec.Struct, frozen=True):
    """The place of a sample: its key."""

    path: str
    keys: PackedNames

    def key(self, index: int) -> bytes:
        return self.keys[index]

    def where(self, index: int) -> str:
        return f"{self.path} key {self.keys[index].decode(errors='backslashreplace')!r}"


def _put_label(datum: Any, row: int, rows: Any) -> None:
    rows[row] = datum.label


class _Data:
    """The top `data`, like the `first` record; raises ValueError for one that is no picture."""

    def __init__(self, first: Any, options: LmdbOptions) -> None:
        self._is_float = not first.encoded and not first.data
        self._is_rgb = options.color != "bgr"
        if options.color == "rgb" and _is_raw_picture(first):
            raise ParameterError(
                "source lmdb: parameter 'color' is 'rgb', and the records hold raw pixels, which come as they are "
                "stored: BGR if Caffe's convert_imageset wrote them; leave it out, and reverse the channels in decode, "
                "sample['data'][::-1]"
            )
        pictures = PictureOptions(
            is_color=_channels_wanted(first, options) == 3,
            color="rgb" if self._is_rgb else "bgr",
            strict=options.strict,
            max_height=options.max_height,
            max_width=options.max_width,
            equal_sizes=not (options.max_height or options.max_width),
        )
        dtype = np.dtype(np.float32 if self._is_float else np.uint8)
        size = (first.height, first.width) if pictures.equal_sizes else pictures.largest_size
        self._encoded = picture_field(pictures, "source lmdb", lambda: first.data) if first.encoded else None
        self.spec = (
            self._encoded.spec
            if self._encoded
            else ArraySpec((first.channels, *size), dtype, varies=not pictures.equal_sizes)
        )
        self.modules = self._encoded.modules if self._encoded else ()

    def put(self, datum: Any, row: int, rows: Rows) -> None:
        if self._encoded and datum.encoded:
            self._encoded.put(datum.data, row, rows)
            return
        shape = datum.channels, datum.height, datum.width
        values = np.array(datum.float_data, np.float32) if self._is_float else np.frombuffer(datum.data, np.uint8)
        if values.size != math.prod(shape) or datum.encoded or min(shape) < 1:
            held = f"{len(datum.data)} bytes of data and {len(datum.float_data)} float_data"
            expected = "float_data" if self._is_float else "bytes of data"
            raise ValueError(
                f"it says (channels, height, width) {shape}, encoded {bool(datum.encoded)}, and holds {held}; expected "
                f"one number for each in {expected}, like the first record"
            )
        require_like_first(shape, self.spec)
        if self._encoded and self._is_rgb and _is_raw_picture(datum):
            raise ValueError(
                "it holds raw pixels, which come as they are stored, beside encoded pictures that are decoded to RGB: "
                "give color: bgr, the order of raw pixels that Caffe's convert_imageset wrote"
            )
        target = rows.reserve(row, shape) if isinstance(rows, RaggedRows) else rows[row]
        target[...] = values.reshape(shape)


def _is_raw_picture(datum: Any) -> bool:
    return datum.channels == 3 and not datum.encoded


def _channels_wanted(first: Any, options: LmdbOptions) -> int:
    if not first.encoded:
        return int(first.channels)
    if options.is_color is not None:
        return 3 if options.is_color else 1
    import cv2

    image = cv2.imdecode(np.frombuffer(first.data, np.uint8), cv2.IMREAD_UNCHANGED) if first.data else None
    if image is None:
        raise ValueError(
            f"OpenCV cannot decode its {len(first.data)} bytes; is_color says how many channels the records "
            "get, and strict: false takes what is left of a JPEG"
        )
    stored: int = 1 if image.ndim == 2 else image.shape[2]
    if stored not in (1, 3):
        raise ValueError(f"it has {stored} channels; is_color: true reads its three colours without the rest")
    return stored
