"""User code that runs in loaders, and what it is given."""

from __future__ import annotations

import inspect
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from dis import get_instructions
from functools import partial
from itertools import chain
from traceback import format_exception_only
from types import CellType, FunctionType
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from .checks import nothing_there, shown
from .errors import ParameterError, SampleShapeError
from .specs import AnyArray, IndexArray

FLOAT32_WHOLE = 2**24
"""Up to here float32 holds every whole number."""

_CONTAINERS = (dict, defaultdict, OrderedDict, Counter, list, set, deque)
_MOST_LOOKED_AT = 1000
"""A dict of more entries holds data, and no objects that hold dicts again."""


class Sample(dict[str, AnyArray]):
    """One raw sample as a decode hook gets it: arrays by name, `index` in the source, `epoch`.

    The arrays are views on memory that the next sample reuses: return them or what you compute from them, keep copies.
    A hook may put others in their place, or beside them, and return the sample itself.
    `number`: tells the sample from all others of the epoch; its random numbers depend on it. It is `index`,
    but of a stream, whose `index` counts within a shard, and of what a sampler draws once more.
    """

    __slots__ = ("epoch", "index", "number")

    def __init__(self, arrays: Mapping[str, AnyArray], index: int, epoch: int, number: int | None = None) -> None:
        super().__init__(arrays)
        self.index = index
        self.epoch = epoch
        self.number = index if number is None else number

    def __missing__(self, name: object) -> AnyArray:
        raise nothing_there(name, self, "sample")

    def __setitem__(self, name: str, value: Any) -> None:
        """Also numbers and texts, of which decode's caller makes arrays."""
        super().__setitem__(name, value)


class HookBatch(dict[str, NDArray[Any]]):
    """A whole batch as a postprocess hook gets it: arrays of shape (rows, ...) by name.

    `indices`: the sample of each row, shape (rows,) int64.  `epoch`: of the first row.
    """

    def __init__(self, arrays: Mapping[str, AnyArray], indices: IndexArray, epoch: int) -> None:
        super().__init__(arrays)
        self.indices = indices
        self.epoch = epoch

    def __missing__(self, name: object) -> NDArray[Any]:
        raise nothing_there(name, self, "batch")


class NamedRngHook(Protocol):
    """A postprocess hook that takes its generator by name alone."""

    def __call__(self, batch: HookBatch, /, *, rng: np.random.Generator) -> Mapping[str, AnyArray] | None: ...


# As text: to import numpy.random takes 3.6 MB, and anyone who has no hooks does without.
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
    returns what replaces it or comes beside it.

    `sampler(epoch, samples, rng)` returns the indices of an epoch's samples, `batch_sampler` gives arrays of indices,
    one for each batch. They run in a process of their own.
    """

    decode: DecodeHook | None = None
    postprocess: PostprocessHook | None = None
    sampler: SamplerHook | None = None
    batch_sampler: SamplerHook | None = None


@contextmanager
def hooks_kept(
    hooks: Iterable[object], source: object = None, must: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """For trials in the trainer: undoes what a hook, or a function of its module that it calls, has assigned, to its
    attributes, its closure and its globals, or has put into dicts, lists and sets there.

    A file or a lock that it makes at its first call could not be sent, and each loader is to make its own. `source` is
    left alone, for it is closed by itself. No copy is tried instead: to unpickle one, cloudpickle changes its class.
    `hooks`: any callables, a source's `read` among them; None is passed over. `must`: asked at the end whether there is
    anything to undo.
    """
    spaces: list[tuple[dict[str, Any], dict[str, Any], set[str]]] = []
    cells: list[tuple[CellType, Any]] = []
    containers: list[tuple[Any, Any]] = []
    for hook in chain.from_iterable(map(_with_wrapped, hooks)):
        owner = getattr(hook, "__self__", hook)
        held: list[object] = []
        if owner is not source and not isinstance(owner, type) and hasattr(owner, "__dict__"):
            held.append(vars(owner))
        function = getattr(hook, "__func__", hook if isinstance(hook, FunctionType) else type(hook).__call__)
        if not isinstance(function, FunctionType):
            continue
        there = function.__globals__
        for each in _with_helpers(function):
            assigned = {one.argval for one in get_instructions(each) if one.opname == "STORE_GLOBAL"}
            spaces.append((there, {name: there[name] for name in assigned & there.keys()}, assigned))
            cells += [(cell, cell.cell_contents) for cell in each.__closure__ or () if cell != CellType()]
            held += [there[name] for name in each.__code__.co_names if name in there]
        held += [content for _, content in cells]
        containers += [(each, copy(each)) for each in _containers_in(held, function.__module__, source)]
    try:
        yield
    finally:
        if must():
            for container, before in containers:
                _restore(container, before)
            for space, values, names in spaces:
                for name in names - values.keys():
                    space.pop(name, None)
                space.update(values)
            for cell, content in cells:
                cell.cell_contents = content


def _restore(container: Any, before: Any) -> None:
    if type(container) in (dict, defaultdict):  # never empty in between: its order does not count, and it may be in use
        for key in [each for each in container if each not in before]:
            del container[key]
        container.update(before)
    else:
        container.clear()
        (container.update if hasattr(container, "update") else container.extend)(before)


def _with_wrapped(hook: Any) -> Iterator[Any]:
    """`hook`, what it is a part or a decoration of, or the method of a layer that it stands for."""
    while hook is not None:
        yield hook
        hook = hook.func if isinstance(hook, partial) else getattr(hook, "__wrapped__", None)


def _with_helpers(function: FunctionType) -> list[FunctionType]:
    """`function`, and those of its module that it calls by name, and so on."""
    found = [function]
    for each in found:
        for name in each.__code__.co_names:
            other = each.__globals__.get(name)
            if isinstance(other, FunctionType) and other.__globals__ is each.__globals__ and other not in found:
                found.append(other)
    return found


def _containers_in(held: list[object], module: str, source: object) -> Iterable[Any]:
    """What `held` leads to, by dicts and by attributes of objects of classes of `module`; their attributes, too."""
    found: dict[int, Any] = {}
    for value in held:  # grows
        is_own = type(value).__module__ == module and not isinstance(value, type) and value is not source
        inner: Any = vars(value) if is_own and type(value).__dictoffset__ else value
        if type(inner) in _CONTAINERS and id(inner) not in found:
            found[id(inner)] = inner
            held += inner.values() if isinstance(inner, dict) and len(inner) < _MOST_LOOKED_AT else ()
    return found.values()


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
    """Whether and how a postprocess hook takes a generator beside its batch: what has a default is the hook's own,
    unless it is called rng."""
    for each in list(inspect.signature(postprocess).parameters.values())[1:]:
        if each.name == "rng" and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            return "by name"
        if each.kind in BY_POSITION and (each.default is each.empty or each.name == "rng"):
            return "by position"
    return ""


def by_name(result: object, names: tuple[str, ...], what: str) -> dict[str, AnyArray]:
    """A mapping, a tuple in the order of `names` or a single array, as arrays by name, in that order.

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
    """Arrays as they are, in this machine's byte order; a Python float becomes float32, the type of Caffe's blobs, an
    int int64.

    Raises SampleShapeError, beginning with `what`, for objects, what `plain_array` refuses, and for a float beyond
    2**24 that float32 does not hold: from there on it has no fractions, and rounds whole numbers.
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
    """`value` as NumPy makes an array of it.

    Raises SampleShapeError, beginning with `what`, if it cannot, if some are masked, or if numbers would become text.
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


class exceptions_only:  # noqa: N801 - as contextlib's are named
    """Turn what user code raises beside the classes of Exception into a HookError.

    A KeyboardInterrupt there comes from the code itself, since no Ctrl-C reaches that process. It would end the process
    and leave nothing but an exit code. A SystemExit stays, for it asks for that end.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is not None and not isinstance(error, Exception | SystemExit):
            text = "".join(format_exception_only(error)).strip()
            raise HookError(f"{text} (user code in a loader raised it; it is no Exception)") from error


class HookError(Exception):
    """User code has raised what is no Exception; that is the cause, and its name begins the text."""
