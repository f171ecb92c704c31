"""Pictures in an LMDB of Datum records, as Caffe's convert_imageset writes it: raw, or encoded as JPEG or PNG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, cast

import msgspec
import numpy as np

from ...base.checks import check_options, chosen
from ...base.errors import SampleError, SampleTooLargeError, SourceError
from ...base.extras import need
from ...base.files import in_folder
from ...base.parameters import NotNegative
from ...base.source import Source
from ...base.specs import AnyArray, ArraySpec, IndexArray, NamedRows, RaggedRows, Rows
from ..files.paths import PackedNames
from .database import Database as _Lmdb
from .database import list_keys
from .datum import datum_class

if TYPE_CHECKING:
    from ..images.decode import ImageDecoder

_DATA = "data"
_LABEL = "label"


class _Database(Protocol):
    def get(self, key: bytes) -> bytes | None: ...
    def close(self) -> None: ...


class LmdbOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of `source: {lmdb: …}`.

    path: the database: of an LMDB a folder with data.mdb, or a file; of a LevelDB a folder with CURRENT.
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

    The keys are listed once, in the database's order. Raises ParameterError for a bad option, SourceError for a
    database that cannot be read or is empty, SampleError for a first record that is no picture.
    """

    kind: ClassVar[str] = "lmdb"

    def __init__(
        self, options: Mapping[str, object], *, tops: Sequence[str] | None = None, base_dir: Path = Path()
    ) -> None:
        self._options = checked = check_options(options, LmdbOptions, f"source {self.kind}")
        self._path = str(in_folder(base_dir, checked.path))
        self._stamp, self._keys = self._list_keys(self._path)
        if not len(self._keys):
            raise SourceError(f"source {self.kind}: {self._path!r} holds no records")
        self._database: _Database | None = None
        self._decoder: ImageDecoder | None = None
        first = self._datum(0)
        if first.encoded:
            need("cv2", f"source {self.kind}, for the encoded records of {self._path},")
        self._is_color = self._channels_wanted(first) == 3
        self._float = not first.encoded and not first.data
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
        for row, index in enumerate(indices.tolist()):
            datum = self._datum(index)
            if _LABEL in out:
                cast("AnyArray", out[_LABEL])[row] = datum.label
            if _DATA in out:
                try:
                    self._put(datum, row, out[_DATA])
                except SampleTooLargeError as error:
                    raise SampleTooLargeError(f"{self.where(index)}: {error} (max_height, max_width)") from None
                except (ValueError, MemoryError) as error:
                    raise self._bad(index, error) from error

    def where(self, index: int) -> str:
        return f"{self._path} key {self._keys[index].decode(errors='backslashreplace')!r}"

    def fingerprint(self) -> str:
        options = sorted(msgspec.structs.asdict(self._options).items(), key=str)
        return f"{self.kind}:{self._stamp}:{list(self._specs)}:{options}"

    def close(self) -> None:
        """Close the database, and give back the decoder's buffers."""
        database, self._database, self._decoder = self._database, None, None
        if database is not None:
            database.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_database": None, "_decoder": None}

    def _list_keys(self, path: str) -> tuple[Any, PackedNames]:
        """What tells whether the database is still the same, and its keys in order; raises SourceError."""
        return list_keys(path)

    def _open(self) -> _Database:
        return _Lmdb(self._stamp)

    def _datum(self, index: int) -> Any:
        if self._database is None:
            self._database = self._open()
        datum = datum_class()()
        try:
            if (record := self._database.get(self._keys[index])) is None:
                raise ValueError("the database has no such key")
            datum.ParseFromString(record)
        except Exception as error:
            if type(error).__name__ == "DecodeError":  # importing it costs every loader
                other = f"it is no Datum, as Caffe's tools write them ({error}); other records need a Source subclass"
                raise self._bad(index, ValueError(other)) from error
            raise self._bad(index, error) from error
        return datum

    def _bad(self, index: int, error: Exception) -> SampleError:
        return SampleError(
            f"source {self.kind}: {self.where(index)} is no picture that can be read: {error}",
            source=self._path,
            index=index,
            path=self.where(index),
        )

    # ---- one record

    def _channels_wanted(self, first: Any) -> int:
        if not first.encoded:
            return int(first.channels)
        if self._options.is_color is not None:
            return 3 if self._options.is_color else 1
        stored = self._stored_channels(first.data)
        if stored not in (1, 3):
            raise SourceError(
                f"source {self.kind}: {self.where(0)} has {stored} channels; is_color: true reads it as BGR "
                "without the rest"
            )
        return stored

    def _stored_channels(self, data: bytes) -> int:
        import cv2

        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED) if data else None
        if image is None:
            said = f"OpenCV cannot decode its {len(data)} bytes; is_color says how many channels the records get"
            raise self._bad(0, ValueError(f"{said}, and strict: false takes what is left of a JPEG"))
        return 1 if image.ndim == 2 else image.shape[2]

    def _spec_of(self, first: Any) -> ArraySpec:
        options = self._options
        try:
            shape, dtype = self._shape(first), np.dtype(np.float32 if self._float else np.uint8)
        except ValueError as error:
            raise self._bad(0, error) from error
        if not (options.max_height or options.max_width):
            return ArraySpec(shape, dtype)
        height, width = options.max_height or options.max_width, options.max_width or options.max_height
        return ArraySpec((shape[0], height, width), dtype, varies=True)

    def _shape(self, datum: Any) -> tuple[int, int, int]:
        if not datum.encoded:
            return datum.channels, datum.height, datum.width
        _, (height, width) = self._decoding().decode(datum.data)
        return (3 if self._is_color else 1), height, width

    def _put(self, datum: Any, row: int, rows: Rows) -> None:
        if datum.encoded and not self._float:
            image, (height, width) = self._decoding().decode(datum.data)
            target = _row(rows, row, (3 if self._is_color else 1, height, width))
            self._decoding().put(image, cast("Any", target))
            return
        shape = self._shape(datum)
        values = np.array(datum.float_data, np.float32) if self._float else np.frombuffer(datum.data, np.uint8)
        if values.size != math.prod(shape) or datum.encoded or min(shape) < 1:
            held = f"{len(datum.data)} bytes of data and {len(datum.float_data)} float_data"
            expected = "float_data" if self._float else "bytes of data, or an encoded picture"
            raise ValueError(
                f"it says (channels, height, width) {shape} and holds {held}; expected one number for each in "
                f"{expected}, like the first record"
            )
        _row(rows, row, shape)[...] = values.reshape(shape)

    def _decoding(self) -> ImageDecoder:
        if self._decoder is None:
            from ..images.decode import ImageDecoder
            from ..images.options import PictureOptions

            options = self._options
            self._decoder = ImageDecoder(
                PictureOptions(is_color=self._is_color, color=options.color, strict=options.strict)
            )
        return self._decoder


def _row(rows: Rows, row: int, shape: tuple[int, ...]) -> AnyArray:
    """The memory for a sample of `shape`; raises ValueError, SampleTooLargeError if it does not fit."""
    if isinstance(rows, RaggedRows):
        if shape[0] != rows.spec.shape[0]:
            raise ValueError(f"it has {shape[0]} channels and the first record {rows.spec.shape[0]}: all need as many")
        return rows.reserve(row, shape)
    target = cast("AnyArray", rows[row])
    if target.shape != shape:
        raise ValueError(
            f"its shape is {shape} and that of the first record {target.shape}: declare the largest by max_height and "
            "max_width if sizes vary"
        )
    return target
