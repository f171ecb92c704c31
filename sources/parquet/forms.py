"""The forms of columns: what a file declares of a column is applied, or refused by its name, at any depth.

Arrow hides a declaration in three places: in the type itself, in an extension type that pyarrow or an imported library
knows, or, if none does, in the metadata of a field, under a storage type that looks like plain lists of numbers. All
three are read here, so a column has the same form whatever is imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from ...workers.base import SourceError

TEXT = (pa.string(), pa.large_string())
BYTES = (pa.binary(), pa.large_binary())

_EXPECTED = "expected numbers, lists of numbers, text, bytes or pictures"
_FLAT_TENSORS = ("ray.data.arrow_tensor", "ray.data.arrow_tensor_v2")
_NESTED_TENSORS = tuple(f"datasets.features.features.Array{axes}DExtensionType" for axes in (2, 3, 4, 5))

Size = tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a column's rows.

    `sizes`: from the outermost lists inwards, the shape of a list's items, or None if lists vary in length. A tensor is
    one list of several axes. `order`: the stored axis that each delivered one is; bytes and text have one of their own,
    the last. `leaf`: the type of the items. `is_picture`: the bytes are those of a picture, beside its path, as Hugging
    Face stores them. `is_truth`: the numbers are truth values.
    """

    sizes: tuple[Size, ...]
    order: tuple[int, ...]
    leaf: pa.DataType
    is_picture: bool = False
    is_truth: bool = False

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type of the delivered items: of bytes and text uint8, of each byte."""
        items = np.uint8 if self.is_bytes else np.bool_ if self.is_truth else self.leaf.to_pandas_dtype()
        return np.dtype(items)

    @property
    def is_bytes(self) -> bool:
        return self.leaf in (*BYTES, *TEXT)

    @property
    def is_text(self) -> bool:
        return self.leaf in TEXT

    @property
    def may_be_picture(self) -> bool:
        """True if each row is one run of bytes."""
        return len(self.order) == 1 and self.dtype == np.uint8 and not self.is_text

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of every row, None if rows differ."""
        if self.is_bytes or None in self.sizes:
            return None
        return self.delivered([extent for size in self.sizes for extent in size or ()])

    def delivered(self, stored: Sequence[int]) -> tuple[int, ...]:
        """Return the extents of the stored axes in the order of the delivered ones."""
        return tuple(stored[axis] for axis in self.order)


def form_of(field: pa.Field, what: str) -> Form:
    """Return the form of a column; raises SourceError, begun by `what`, for one that cannot be read as declared."""
    begin = f"{what}: column {field.name!r} is {described(field)}"
    leave_out = "name other columns in 'tops' to leave it out"
    sizes: list[Size] = []
    order: list[int] = []
    declared: list[Size] = []  # the sizes that an extension gives to the levels below it
    is_picture = is_truth = False
    while True:
        name, kind = extension_of(field)
        if name:
            if declared or (given := _declared(name, field)) is None:
                raise SourceError(
                    f"{begin}: what the extension type {name!r} says of the values is not known here: write the column "
                    f"as the {kind} that it is stored as, or {leave_out}"
                )
            declared, permutation = given
            order += [len(order) + axis for axis in permutation]
            is_truth = is_truth or name == "arrow.bool8"
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if holds_picture(kind):
            if sizes:
                raise SourceError(
                    f"{begin}, lists of pictures: expected one picture in each row: write a column for each of them, "
                    f"or rows of one picture, or {leave_out}"
                )
            is_picture, field = True, kind.field("bytes")
        elif _is_list(kind):
            fixed = (kind.list_size,) if pa.types.is_fixed_size_list(kind) else None
            sizes.append(declared.pop(0) if declared else fixed)
            order += range(len(order), sum(len(size or (0,)) for size in sizes))
            field = kind.value_field
        else:
            break
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if declared or not (is_number or kind in BYTES or (kind in TEXT and not sizes)):
        raise SourceError(f"{begin}: {_EXPECTED}; {leave_out}")
    if kind in BYTES or kind in TEXT:
        order.append(len(order))
    return Form(tuple(sizes), tuple(order), kind, is_picture, is_truth)


def _declared(name: str, field: pa.Field) -> tuple[list[Size], list[int]] | None:
    """Return the sizes that an extension gives to the lists it is stored as, and the order of its axes.

    None if the extension, or what is written of it, is not known.
    """
    if name in ("arrow.json", "arrow.bool8"):
        return [], []
    try:
        if name == "arrow.fixed_shape_tensor":
            shape, order = tuple(field.type.shape), field.type.permutation
        elif name in _FLAT_TENSORS:
            shape, order = tuple(map(int, json.loads(_serialized(field)))), None
        elif name in _NESTED_TENSORS:
            sizes: list[Size] = [extent and (int(extent),) for extent in json.loads(_serialized(field))[0]]
            return sizes, [*range(len(sizes))]
        else:
            return None
    except (ValueError, TypeError, LookupError):  # Ray can also write pickles, which are not for us to open
        return None
    return ([shape], [*(order or range(len(shape)))]) if shape else None


def extension_of(field: pa.Field) -> tuple[str, pa.DataType]:
    """Return the name of a field's extension type, "" if it has none, and the type that its values are stored as."""
    if isinstance(field.type, pa.BaseExtensionType):
        return field.type.extension_name, field.type.storage_type
    return (field.metadata or {}).get(b"ARROW:extension:name", b"").decode(errors="replace"), field.type


def _serialized(field: pa.Field) -> bytes:
    if isinstance(field.type, pa.BaseExtensionType):
        given: bytes = field.type.__arrow_ext_serialize__()
        return given
    return bytes((field.metadata or {}).get(b"ARROW:extension:metadata", b""))


def described(field: pa.Field) -> str:
    """Return a field's type with what extension types of its metadata say, for messages and comparisons."""
    unknown = (found for found in _fields(field) if not isinstance(found.type, pa.BaseExtensionType))
    said = [
        f"{name} {_serialized(found).decode(errors='replace')}".rstrip()
        for found in unknown
        if (name := extension_of(found)[0])
    ]
    return f"{field.type} ({', '.join(said)})" if said else str(field.type)


def _fields(field: pa.Field) -> Iterator[pa.Field]:
    """Yield a column's field and those of what is inside its lists."""
    yield field
    while _is_list(kind := extension_of(field)[1]):
        yield (field := kind.value_field)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def holds_picture(kind: pa.DataType) -> bool:
    """True for the bytes of a picture and its path, as Hugging Face's data sets have them."""
    if not pa.types.is_struct(kind):
        return False
    names = {kind.field(number).name for number in range(kind.num_fields)}
    return "bytes" in names <= {"bytes", "path"} and kind.field("bytes").type in BYTES
