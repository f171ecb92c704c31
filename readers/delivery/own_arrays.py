"""A user's own arrays: the memory that each batch of a loop is put into, checked once."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ...workers.api import nearest
from ...workers.base import ParameterError
from ...workers.loading import Conversion
from .delivery import as_numpy
from .tops import EvenTop, JoinedTop, Shape, Top, UnevenTop
from .value_checks import check_types

if TYPE_CHECKING:
    import torch

    from .delivery import Memory


class OwnArray(msgspec.Struct):
    """A blob over a part of a user's array. `given`: that part. `data`: the same memory, as it is delivered into."""

    data: Any
    given: Any


class OwnArrays:
    """One array for each top, of the shape of a whole batch of the largest samples.

    A batch with fewer rows, or of smaller samples, is the start of that memory, in the batch's own shape.
    """

    def __init__(
        self, arrays: Mapping[str, Any], tops: Sequence[Top], rows: int, device: torch.device | None = None
    ) -> None:
        """`rows`: of a whole batch. `device`: the CUDA device of the tensors; None for NumPy arrays and tensors on the
        CPU. Raises ParameterError.
        """
        _check_names(arrays, [top.name for top in tops])
        self._whole = [OwnArray(_memory(top, arrays[top.name], rows, device), arrays[top.name]) for top in tops]
        begins = [_address(array.data) for array in self._whole]
        for number, begin in enumerate(begins):
            if (first := begins.index(begin)) < number:
                raise ParameterError(
                    f"into: tops {tops[first].name!r} and {tops[number].name!r} have the same memory: give each an "
                    "array of its own"
                )

    def blobs(self, shapes: Sequence[Shape]) -> list[OwnArray]:
        """Return the memory for a batch of these shapes, one for each top."""
        return [
            whole if whole.data.shape == shape else OwnArray(_start(whole.data, shape), _start(whole.given, shape))
            for whole, shape in zip(self._whole, shapes, strict=False)
        ]


def _start(array: Any, shape: Shape) -> Any:
    return array.reshape(-1)[: math.prod(shape)].reshape(shape)


def _address(memory: Any) -> int:
    return int(memory.ctypes.data if isinstance(memory, np.ndarray) else memory.data_ptr())


def _check_names(arrays: Mapping[str, Any], names: Sequence[str]) -> None:
    if not isinstance(arrays, Mapping):
        raise ParameterError(f"into: expected a mapping from tops to arrays, got {type(arrays).__name__}")
    for name in arrays:
        if name not in names:
            raise ParameterError(
                f"into: {name!r} is no top{nearest(str(name), names)}: the tops are {', '.join(names)}"
            )
    if missing := [name for name in names if name not in arrays]:
        raise ParameterError(
            f"into: no array for the top {missing[0]!r}: give one, or leave the top out by the parameter 'tops'"
        )


def _memory(top: Top, array: Any, rows: int, device: torch.device | None) -> Memory:
    """Return the memory of `array` that is delivered into; raises ParameterError if it does not fit `top`."""
    what = f"into: the array for top {top.name!r}"
    torch = sys.modules.get("torch")
    is_tensor = torch is not None and isinstance(array, torch.Tensor)
    if not is_tensor and not isinstance(array, np.ndarray):
        raise ParameterError(f"{what} is of type {type(array).__name__}: expected a NumPy array or a torch tensor")
    place = str(array.device) if is_tensor else "NumPy"
    if place not in (("cpu", "NumPy") if device is None else (str(device),)):
        there = "a NumPy array or a tensor on 'cpu'" if device is None else f"a tensor on {str(device)!r}"
        raise ParameterError(
            f"{what} lies on {place!r}: expected {there}, since the reader's 'device' says so; make the reader with "
            f"device={('' if place == 'NumPy' else place)!r}"
        )
    if (expected := top.largest_shape(rows)) != tuple(array.shape):
        raise ParameterError(
            f"{what} has the shape {tuple(array.shape)}: expected {expected}, a whole batch of the largest samples"
        )
    if not (array.is_contiguous() if is_tensor else array.flags.c_contiguous):
        raise ParameterError(
            f"{what} is not contiguous: give one whose rows lie one behind the other, not a part of it"
        )
    if not is_tensor and not array.flags.writeable:
        raise ParameterError(f"{what} is read-only: give one that may be written to")
    try:
        memory: Memory = array if not is_tensor else array.detach() if device else as_numpy(array)
    except (TypeError, RuntimeError) as error:
        raise ParameterError(f"{what} has the type {array.dtype}, in which NumPy cannot write: {error}") from None
    _check_type(top, _numpy_type(memory), what)
    return memory


def _numpy_type(memory: Memory) -> np.dtype[Any] | None:
    """Return the type of `memory`; None if NumPy has none like it, such as bfloat16."""
    if isinstance(memory, np.ndarray):
        return memory.dtype
    name = str(memory.dtype).removeprefix("torch.")
    return np.dtype(name) if hasattr(np, name) else None


def _check_type(top: Top, into: np.dtype[Any] | None, what: str) -> None:
    if into is None or into == top.dtype:
        return
    if top.dtype.kind in "SU":
        raise ParameterError(f"{what} has the type {into}: expected {top.dtype}, in which no text is cut")
    conversion = top.conversion if isinstance(top, EvenTop | UnevenTop | JoinedTop) else Conversion()
    check_types(top.dtype, into, conversion, top.name)
