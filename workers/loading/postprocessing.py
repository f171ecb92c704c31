"""The user's whole-batch hook: setup learns its tops from a small batch, and loaders run it on a slot's rows.

The hook may change values, shapes, types and names, and not the number of rows. A top with the spec of its decoded
rows is changed in place. Any other top has its own memory in the slot, besides that of the decoded rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from operator import le
from typing import Any

import msgspec
import numpy as np

from ..api import (
    AnyArray,
    ArraySpec,
    HookBatch,
    IndexArray,
    NamedRows,
    Parameters,
    PostprocessHook,
    RaggedRows,
    Rows,
    as_array,
    chosen,
    plain_array,
    shown,
    takes_rng,
)
from ..base import ParameterError, derive_key
from ..order import SampleSeeds
from .row_maker import require_kept
from .transform import CROPS

DECODED = "(decoded) "
"""The prefix of the names of decoded rows in a slot that do not have the shape and type of a top."""


class BatchSamples(msgspec.Struct, frozen=True):
    """The samples of a hook's batch: the index of each row, shape (rows,), and the epoch of the first one.

    `key`: unique among the batches of the run; the hook's random numbers depend on it and on the seed alone.
    """

    indices: IndexArray
    epoch: int
    key: tuple[int, ...]


class Postprocessor:
    """Runs the postprocess hook. `specs`: the tops after the hook, by name. `slot_specs`: all arrays of a slot.

    `decoded`: the specs of the decoded rows, with the notes of crops. `trial`: a few such rows.
    Raises ParameterError, and the exceptions of the hook.
    """

    def __init__(
        self,
        hook: PostprocessHook,
        decoded: Mapping[str, ArraySpec],
        trial: NamedRows,
        samples: BatchSamples,
        parameters: Parameters,
    ) -> None:
        self.hook = hook
        self._takes_rng = takes_rng(hook)
        self._key = partial(derive_key, parameters.seed, "postprocess", bits=128)
        self._seeds = SampleSeeds(parameters.seed, is_on=parameters.seed_globals)
        made = self._run({name: trial[name] for name in decoded if name != CROPS}, samples)
        wanted = chosen(made, parameters.tops, "parameter 'tops', after postprocess")
        if parameters.tops is not None:
            require_kept(made.keys() - {*wanted, *decoded}, parameters.tops, "postprocess returned")
        self.specs = {name: _spec_of(name, made, len(samples.indices)) for name in wanted}
        chosen(made, parameters.max_shapes, "parameter 'max_shapes', after postprocess")
        for name, shape in parameters.max_shapes.items():
            if name in self.specs:
                self.specs[name] = ArraySpec(shape, self.specs[name].dtype, varies=True)
        kept = {CROPS, *(name for name, spec in self.specs.items() if decoded.get(name) == spec)}
        # The hook may overwrite its input. A task that is repeated decodes the rows again, so one memory is enough.
        self._keys = {name: name if name in kept else DECODED + name for name in decoded}
        self.slot_specs = {**self.specs, **{key: decoded[name] for name, key in self._keys.items()}}

    def decoded_rows(self, rows: NamedRows) -> NamedRows:
        """Return those of `rows` that decode fills, by the names of decode's arrays."""
        return {name: rows[key] for name, key in self._keys.items()}

    def run(self, slots: NamedRows, first: int, samples: BatchSamples) -> None:
        """Postprocess the batch that begins with row `first` of `slots`.

        Raises the exceptions of the hook, and ValueError if a top cannot hold the result exactly.
        """
        here = slice(first, first + len(samples.indices))
        decoded = {name: slots[key][here] for name, key in self._keys.items() if name != CROPS}
        made = self._run(decoded, samples)
        if missing := [name for name in self.specs if name not in made]:
            raise ValueError(f"postprocess gave no {', '.join(missing)}, expected {', '.join(self.specs)}")
        if lost := made.keys() - self.specs.keys() - decoded.keys():
            names = ", ".join(sorted(map(str, lost)))
            raise ValueError(f"postprocess gave {names}, too, and not in setup, expected {', '.join(self.specs)}")
        # An array that the hook left alone or changed in place is already where it belongs, unless setup has learnt
        # another shape or type for its top. A view on another top could be overwritten before it is copied.
        in_place = {name: rows for name, rows in decoded.items() if self._keys[name] == name}
        others = {
            name: as_array(value, name, "postprocess gave")
            for name in self.specs
            if (value := made[name]) is not in_place.get(name)
        }
        for name, value in others.items():
            if any(np.may_share_memory(value, rows) for rows in decoded.values() if isinstance(rows, np.ndarray)):
                others[name] = np.array(value)
        for name, value in others.items():
            _store(name, value, slots[name][here], self.specs[name])

    def _run(self, decoded: NamedRows, samples: BatchSamples) -> Mapping[str, Any]:
        arrays = {name: _array(name, rows) for name, rows in decoded.items()}
        batch = HookBatch(arrays, samples.indices, samples.epoch)
        hook: Any = self.hook
        self._seeds.seed(*samples.key)
        if self._takes_rng == "by name":
            result = hook(batch, rng=self._rng(samples.key))
        else:
            result = hook(batch, self._rng(samples.key)) if self._takes_rng else hook(batch)
        made = batch if result is None else result
        if not isinstance(made, Mapping) or not all(isinstance(name, str) for name in made):
            raise ParameterError(
                f"postprocess returned {shown(made)}: expected a mapping of top names to arrays, or None if the batch "
                "was changed in place"
            )
        return {**batch, **made}

    def _rng(self, number: tuple[int, ...]) -> np.random.Generator:
        from ..order.keyed_seed import keyed_generator  # loads numpy.random

        return keyed_generator(self._key(*number))


def _spec_of(name: str, made: Mapping[str, Any], rows: int) -> ArraySpec:
    value = plain_array(made[name], name, "postprocess gave")
    if value.dtype != object and value.ndim and len(value) != rows:
        raise ParameterError(_other_rows(name, len(value), rows))
    if value.dtype == object or value.ndim == 0:
        raise ParameterError(
            f"postprocess gave a {type(made[name]).__name__} of shape {value.shape} and type {value.dtype} for top "
            f"{name!r}: expected an array of numbers whose first axis has the {rows} rows of the batch"
        )
    return ArraySpec(value.shape[1:], value.dtype.newbyteorder("="))


def _other_rows(name: str, given: int, rows: int) -> str:
    return (
        f"postprocess gave {given} rows for top {name!r} of a batch of {rows}: expected as many; make pairs in decode, "
        "or join rows in the loop"
    )


def _store(name: str, array: AnyArray, out: Rows, spec: ArraySpec) -> None:
    most = (len(out), *spec.shape)
    if array.ndim and len(array) != len(out):
        raise ValueError(_other_rows(name, len(array), len(out)))
    fits = spec.varies and array.ndim == len(most) and all(map(le, array.shape, most))
    if not fits and array.shape != most:
        raise ValueError(
            f"postprocess gave shape {array.shape} for top {name!r}, expected {'up to ' * spec.varies}{most}; if "
            "batches differ in shape, declare the largest of a sample in max_shapes"
        )
    if array.dtype != spec.dtype:
        _require_exact(name, array, spec.dtype)
    if isinstance(out, RaggedRows):
        for row, sample in enumerate(array):
            out.put(row, sample)
    else:
        out[...] = array


def _require_exact(name: str, value: AnyArray, dtype: np.dtype[np.generic]) -> None:
    """Raises ValueError for the first number that `dtype` cannot hold exactly."""
    with np.errstate(all="ignore"):
        cast = value.astype(dtype)
        # NumPy compares integers with floats as float64, which does not hold all of 64 bits.
        exact = value.astype(np.longdouble) if value.dtype.kind in "iu" and dtype.kind == "f" else value
        changed = np.flatnonzero((cast != exact) & ~((cast != cast) & (value != value)))
    if len(changed):
        raise ValueError(
            f"postprocess gave {value.flat[changed[0]]!r} of type {value.dtype} for top {name!r}, which has the type "
            f"{dtype} as learnt in setup and cannot hold it: give every batch the same type, or convert it in the hook"
        )


def _array(name: str, top: Rows) -> AnyArray:
    if not isinstance(top, RaggedRows):
        return top
    if (top.shapes != top.shapes[0]).any():
        raise ValueError(
            f"postprocess needs samples of one shape, but top {name!r} has {top.spec}: fill them up to that in decode, "
            "and give the real size as a top of its own, or do without postprocess"
        )
    return np.stack(list(top))
