"""User code that runs in loaders, and its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ..base import ParameterError, SampleShapeError
from .checks import nothing_there, shown
from .specs import AnyArray, IndexArray

FLOAT32_WHOLE = 2**24
"""The largest number up to which float32 holds every whole number."""


class Sample(dict[str, AnyArray]):
    """One raw sample, the argument of a decode hook: arrays by name, `index` in the source, `epoch`.

    The arrays are views on memory that the next sample reuses: return them or what you compute from them, keep copies.
    A hook may replace or add arrays and return the sample itself.
    `number`: unique among the samples of the epoch; the sample's random numbers depend on it. It equals `index` except
    in a stream, whose `index` counts within a shard, and for repeated draws of a sampler.
    """

    __slots__ = ("epoch", "index", "number")

    def __init__(
        self,
        arrays: Mapping[str, AnyArray] | Iterable[tuple[str, AnyArray]],
        index: int,
        epoch: int,
        number: int | None = None,
    ) -> None:
        self.update(arrays)  # a third less than `super().__init__`, and each sample has one
        self.index = index
        self.epoch = epoch
        self.number = index if number is None else number

    def __missing__(self, name: object) -> AnyArray:
        __tracebackhide__ = True
        raise nothing_there(name, self, "sample")

    def __setitem__(self, name: str, value: Any) -> None:
        """Accepts numbers and texts, too; the caller of decode converts them to arrays."""
        super().__setitem__(name, value)


class HookBatch(dict[str, NDArray[Any]]):
    """A whole batch, the argument of a postprocess hook: arrays of shape (rows, ...) by name.

    `indices`: the sample index of each row, shape (rows,) int64.  `epoch`: the epoch of the first row.
    """

    def __init__(self, arrays: Mapping[str, AnyArray], indices: IndexArray, epoch: int) -> None:
        super().__init__(arrays)
        self.indices = indices
        self.epoch = epoch

    def __missing__(self, name: object) -> NDArray[Any]:
        raise nothing_there(name, self, "batch")


class NamedRngHook(Protocol):
    """A postprocess hook that takes its generator only by name."""

    def __call__(self, batch: HookBatch, /, *, rng: np.random.Generator) -> Mapping[str, AnyArray] | None: ...


# As text, since importing numpy.random takes 3.6 MB, which a run without hooks saves.
DecodeHook = Callable[[Sample, "np.random.Generator"], object]
PostprocessHook = (
    Callable[[HookBatch], Mapping[str, AnyArray] | None]
    | Callable[[HookBatch, "np.random.Generator"], Mapping[str, AnyArray] | None]
    | NamedRngHook
)
SamplerHook = Callable[[int, int, "np.random.Generator"], Any]


@dataclass(frozen=True, slots=True)
class Hooks:
    """User code that runs in loaders.

    `decode(sample, rng)` returns a mapping of names to arrays, a tuple of arrays in the tops' order, or one array if
    there is one top: any names, shapes and types, the same ones for every sample. `postprocess(batch)` or
    `postprocess(batch, rng)` gets the whole batch by name, arrays of shape (rows, ...), and changes it in place or
    returns what replaces it or comes beside it, with as many rows.

    `sampler(epoch, samples, rng)` returns the indices of an epoch's samples, `batch_sampler` gives arrays of indices,
    one for each batch. A loader runs them, one epoch ahead.
    """

    decode: DecodeHook | None = None
    postprocess: PostprocessHook | None = None
    sampler: SamplerHook | None = None
    batch_sampler: SamplerHook | None = None


BY_POSITION = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)


def check_decode(decode: Callable[..., object]) -> None:
    """Raises ParameterError if `decode` cannot be called with a sample and a generator."""
    try:
        signature = inspect.signature(decode)
    except (TypeError, ValueError):  # of a function in C
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        name = getattr(decode, "__name__", type(decode).__name__)
        raise ParameterError(
            f"decode is {name}{signature}: expected decode(sample, rng), with the sample's random generator ({error})"
        ) from None


def takes_rng(postprocess: Callable[..., object]) -> Literal["", "by position", "by name"]:
    """Return whether and how a postprocess hook takes a generator besides its batch.

    A parameter with a default belongs to the hook itself, unless it is called rng.
    """
    for each in list(inspect.signature(postprocess).parameters.values())[1:]:
        if each.name == "rng" and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            return "by name"
        if each.kind in BY_POSITION and (each.default is each.empty or each.name == "rng"):
            return "by position"
    return ""


def by_name(result: object, names: tuple[str, ...], what: str) -> dict[str, AnyArray]:
    """Convert a mapping, a tuple in the order of `names` or a single array to arrays by name, in that order.

    Raises SampleShapeError, beginning with `what`, if it is not one array for each name.
    """
    values: Mapping[Any, Any]
    if isinstance(result, Mapping):
        values = result
    elif isinstance(result, tuple | list):
        values = dict(zip(names, result, strict=False)) if len(names) == len(result) else {}
    else:
        values = {names[0]: result}
    if values.keys() != set(names):
        size = f" of {len(result)}" if isinstance(result, tuple | list) else ""
        keys = f" with {', '.join(map(str, result))}" if isinstance(result, Mapping) else size
        raise SampleShapeError(
            f"{what} a {type(result).__name__}{keys}, expected one array for each of {', '.join(names)}"
        )
    return {name: as_array(values[name], name, what) for name in names}


def as_array(value: object, name: str, what: str) -> AnyArray:
    """Convert `value` to an array in this machine's byte order.

    A Python float becomes float32, the type of Caffe's blobs, an int int64. Raises SampleShapeError, beginning with
    `what`, for objects, for values that `plain_array` refuses, and for a float above 2**24 that float32 cannot hold:
    from there on it has no fractions and rounds whole numbers.
    """
    if isinstance(value, float) and not isinstance(value, np.generic):
        if abs(value) > FLOAT32_WHOLE and not _is_float32(value):
            raise SampleShapeError(
                f"{what} {value!r} for {name!r}: a Python float becomes float32, which cannot hold it; "
                "return np.float64(value) for every sample"
            )
        return np.asarray(value, np.float32)
    array = value if type(value) is np.ndarray else plain_array(value, name, what)
    if array.dtype.hasobject:
        raise SampleShapeError(
            f"{what} {value!r:.80} for {name!r}, a {type(value).__name__} that NumPy can only hold as an object: "
            "expected an array, numbers of up to 64 bits, or text"
        )
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def plain_array(value: object, name: str, what: str) -> AnyArray:
    """Convert `value` to an array by NumPy's rules.

    Raises SampleShapeError, beginning with `what`, if NumPy cannot, for a masked array, and if numbers would become
    text.
    """
    if isinstance(value, np.ndarray) and hasattr(value, "mask"):  # not np.ma: that would import it
        raise SampleShapeError(
            f"{what} a masked array for {name!r}, and samples have no mask: fill what is masked, array.filled(0), and "
            "give the mask as an array of its own if it is needed"
        )
    try:
        array = np.asarray(value)
        # NumPy makes text of numbers that stand beside text, as in a row of a database.
        is_made_text = array.dtype.kind in "SU" and not hasattr(value, "dtype")
        given: Iterable[object] = np.asarray(value, object).ravel() if is_made_text else ()
    except Exception as error:
        raise SampleShapeError(
            f"{what} {shown(value)} for {name!r}, of which NumPy makes no array ({error}): expected rows of one "
            "length, and of a tensor what .detach() and, if it is bfloat16, .float() give"
        ) from error
    if not all(isinstance(each, str | bytes) for each in given):
        raise SampleShapeError(
            f"{what} {shown(value)} for {name!r}, in which numbers stand beside text: give each under a name of its "
            "own, or make all of them text"
        )
    return array


def _is_float32(value: float) -> bool:
    with np.errstate(over="ignore"):
        return float(np.float32(value)) == value
