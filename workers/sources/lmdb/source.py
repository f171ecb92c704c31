"""Pictures in an LMDB of Datum records, as Caffe's convert_imageset writes it: raw, or encoded as JPEG or PNG."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec
import numpy as np

from ...base.checks import check_options, chosen
from ...base.errors import SourceError
from ...base.extras import need
from ...base.files import in_folder
from ...base.parameters import NotNegative
from ...base.source import Source, Tops
from ...base.specs import AnyArray, ArraySpec, IndexArray, NamedRows, RaggedRows, Rows
from ..files.identity import digest, of_stamps
from ..files.naming import Naming
from ..images.options import PictureOptions, require_like_first
from .database import Database, list_keys
from .datum import parsed

if TYPE_CHECKING:
    from ..images.decode import ImageDecoder

_DATA = "data"
_LABEL = "label"


class LmdbOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of `source: {lmdb: …}`.

    path: the database, a folder with data.mdb, or a file.
    is_color: decode encoded records to three channels, or to one; without it, to as many as the first record has.
    color: the order of the channels of encoded records: BGR, as in Caffe, or RGB.
    max_height, max_width: the largest size, if sizes vary; without them all must have the size of the first record.
    strict: whether a damaged JPEG is an error.
    """

    path: str
    is_color: bool | None = None
    color: Literal["bgr", "rgb"] = "bgr"
    max_height: NotNegative = 0
    max_width: NotNegative = 0
    strict: bool = True


class LmdbSource(Source):
    """`data`, uint8 (float32 if the records hold float_data), shape (channels, height, width), and `label`, int64, ().

    The keys are listed once, in the database's order. Raises SampleError for a first record that is no picture, too.
    """

    kind: str = "lmdb"

    def __init__(self, options: Mapping[str, object], *, tops: Tops = None, base_dir: Path = Path()) -> None:
        self._options = checked = check_options(options, LmdbOptions, f"source {self.kind}")
        self._path = str(in_folder(base_dir, checked.path))
        self._stamp, self._keys = list_keys(self._path)
        if not len(self._keys):
            raise SourceError(f"source {self.kind}: {self._path!r} holds no records")
        database = self._database
        with self._naming(0):
            first = self._datum(database, 0)
        if first.encoded:
            need("cv2", f"source {self.kind}, for the encoded records of {self._path},")
        self._float = not first.encoded and not first.data
        self._pictures = PictureOptions(
            is_color=self._channels_wanted(first) == 3,
            color=checked.color,
            strict=checked.strict,
            max_height=checked.max_height,
            max_width=checked.max_width,
            equal_sizes=not (checked.max_height or checked.max_width),
        )
        known = {_DATA: self._spec_of(first), _LABEL: ArraySpec((), np.dtype(np.int64))}
        self._specs = chosen(known, tops, f"source {self.kind}: {self._path}")
        self.modules = (__name__, "google.protobuf.descriptor_pb2")
        if first.encoded:
            self.modules += (f"{__package__.rpartition('.')[0]}.images.decode",)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self._specs

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        database = self._database
        for row, index in enumerate(indices.tolist()):
            with self._naming(index):
                datum = self._datum(database, index)
                if _LABEL in out:
                    cast("AnyArray", out[_LABEL])[row] = datum.label
                if _DATA in out:
                    self._put(datum, row, out[_DATA])

    def where(self, index: int) -> str:
        return f"{self._path} key {self._keys[index].decode(errors='backslashreplace')!r}"

    def _content(self) -> dict[str, str]:
        options = {**msgspec.structs.asdict(self._options), "path": ""}
        return {**of_stamps([self._stamp]), "options": digest(sorted(options.items()))}

    def fingerprint(self) -> str:
        options = sorted(msgspec.structs.asdict(self._options).items(), key=str)
        return f"{self.kind}:{self._stamp}:{list(self._specs)}:{options}"

    def close(self) -> None:
        self.__dict__.pop("_decoder", None)
        if database := self.__dict__.pop("_database", None):
            database.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_database"}

    @cached_property
    def _database(self) -> Database:
        return Database(self._stamp)

    def _datum(self, database: Database, index: int) -> Any:
        """Raises ValueError."""
        try:
            record = database.get(self._keys[index])
        except Exception as error:  # lmdb has errors of its own
            raise ValueError(str(error)) from error
        if record is None:
            raise ValueError("the database has no such key")
        return parsed(record)

    def _naming(self, index: int) -> Naming:
        return Naming(self, index, self._path, self.where)

    # ---- one record

    def _channels_wanted(self, first: Any) -> int:
        if not first.encoded:
            return int(first.channels)
        if self._options.is_color is not None:
            return 3 if self._options.is_color else 1
        import cv2

        image = cv2.imdecode(np.frombuffer(first.data, np.uint8), cv2.IMREAD_UNCHANGED) if first.data else None
        with self._naming(0):
            if image is None:
                raise ValueError(
                    f"OpenCV cannot decode its {len(first.data)} bytes; is_color says how many channels the records "
                    "get, and strict: false takes what is left of a JPEG"
                )
        stored: int = 1 if image.ndim == 2 else image.shape[2]
        if stored not in (1, 3):
            raise SourceError(
                f"source {self.kind}: {self.where(0)} has {stored} channels; is_color: true reads it as BGR "
                "without the rest"
            )
        return stored

    def _spec_of(self, first: Any) -> ArraySpec:
        dtype = np.dtype(np.float32 if self._float else np.uint8)
        shape = first.channels, first.height, first.width
        if first.encoded:
            with self._naming(0):
                shape = self._pictures.channels, *self._decoder.decode(first.data)[1]
        if self._pictures.equal_sizes:
            return ArraySpec(shape, dtype)
        return ArraySpec((shape[0], *self._pictures.largest_size), dtype, varies=True)

    def _put(self, datum: Any, row: int, rows: Rows) -> None:
        spec = self._specs[_DATA]
        if datum.encoded and not self._float:
            self._decoder.read(spec, datum.data, row, rows)
            return
        shape = datum.channels, datum.height, datum.width
        values = np.array(datum.float_data, np.float32) if self._float else np.frombuffer(datum.data, np.uint8)
        if values.size != math.prod(shape) or datum.encoded or min(shape) < 1:
            held = f"{len(datum.data)} bytes of data and {len(datum.float_data)} float_data"
            expected = "float_data" if self._float else "bytes of data, or an encoded picture"
            raise ValueError(
                f"it says (channels, height, width) {shape} and holds {held}; expected one number for each in "
                f"{expected}, like the first record"
            )
        require_like_first(shape, spec)
        target = rows.reserve(row, shape) if isinstance(rows, RaggedRows) else rows[row]
        target[...] = values.reshape(shape)

    @cached_property
    def _decoder(self) -> ImageDecoder:
        from ..images.decode import ImageDecoder

        return ImageDecoder(self._pictures)
