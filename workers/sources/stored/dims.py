"""The options that say in which order an array's dimensions are stored; samples are delivered as C, D, H, W."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...base.errors import ParameterError
from .axes import Arrangement
from .layout import StoredArray

_DELIVERED = "cdhw"
_TORCH_DEFAULTS = {"num_dim": 1, "h_dim": 2, "w_dim": 3, "cha_dim": 4}
_TORCH_NAMES = {"num_dim": "n", "h_dim": "h", "w_dim": "w", "cha_dim": "c"}


def from_names(names: Sequence[str], rank: int, what: str) -> Arrangement:
    """The arrangement of an array stored with dimensions `names`: 'n' and any of 'c', 'd', 'h', 'w'.

    Raises ParameterError where they are not that, or not as many as the array has.
    """
    if len(set(names)) != len(names) or "n" not in names or not set(names) <= set("n" + _DELIVERED):
        raise ParameterError(
            f"{what}: parameter 'dims' is {list(names)!r}: expected the stored order of the dimensions, 'n' (samples) "
            "once and each of 'c', 'd', 'h', 'w' at most once, such as [n, h, w, c]"
        )
    if len(names) != rank:
        raise ParameterError(
            f"{what}: parameter 'dims' names {len(names)} dimensions, {list(names)!r}, but the array has {rank}"
        )
    sample = [name for name in names if name != "n"]
    return Arrangement(list(names).index("n"), tuple(sample.index(name) for name in _DELIVERED if name in sample))


def names_from_torch(numbers: Mapping[str, int | None], what: str) -> tuple[str, ...] | None:
    """The names for the 1-based `num_dim, h_dim, w_dim, cha_dim` that torch.async-hdf5-reader takes; None if unset.

    Those left out have that reader's defaults, 1, 2, 3 and 4 (its README). Raises ParameterError where the four are
    not the numbers 1 to 4.
    """
    if all(number is None for number in numbers.values()):
        return None
    places = {name: numbers.get(name) or default for name, default in _TORCH_DEFAULTS.items()}
    if sorted(places.values()) != [1, 2, 3, 4]:
        raise ParameterError(f"{what}: the parameters {places!r} are 1-based and must be 1, 2, 3 and 4 in some order")
    return tuple(_TORCH_NAMES[name] for name in sorted(places, key=places.__getitem__))


def arrange(arrays: Mapping[str, StoredArray], named: Mapping[str, Sequence[str]]) -> dict[str, StoredArray]:
    """The `arrays`, those in `named` with their dimensions as named there."""
    arranged = {
        top: replace(arrays[top], arrangement=from_names(names, len(arrays[top].shape), str(arrays[top])))
        for top, names in named.items()
    }
    return {**arrays, **arranged}


def named_dims(
    dims: tuple[str, ...] | dict[str, tuple[str, ...]] | None, tops: Sequence[str], what: str
) -> dict[str, tuple[str, ...]]:
    """Option `dims` as a mapping from top to names: a bare list counts for the first top. Raises ParameterError."""
    named = dims if isinstance(dims, dict) else {tops[0]: dims} if dims else {}
    for top in named:
        if top not in tops:
            raise ParameterError(f"{what}: parameter 'dims' names {top!r}, which is no top: {', '.join(tops)}")
    return named
