"""The order of arrays whose order nobody has given, by what their names say: inputs stand before targets.

A file has no order of its own: HDF5 lists names by the alphabet, a table its columns as they came about. Sizes do not
decide either: of features and one-hot classes the target may be the larger.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_INPUTS = """
data image images img imgs picture pictures photo photos frame frames video jpg jpeg png webp x input inputs feature
features observation observations obs state states signal signals audio waveform wav tokens input_ids token_ids
attention_mask token_type_ids text texts
"""
_TARGETS = """
label labels cls class classes y target targets output outputs answer answers action actions mask masks segmentation box
boxes bbox bboxes weight weights
"""
_RANKS = {word: rank for rank, word in enumerate([*_INPUTS.split(), "", *_TARGETS.split()])}
_UNKNOWN = _RANKS[""]
_PARTS = {"train", "training", "test", "val", "valid", "validation"}


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return `names` with inputs before targets, and behind them those that say nothing, as they were.

    Without an input one of these must be it, so they stand in front.
    """
    given = tuple(names)
    unknown = len(_RANKS) if any(map(is_input, given)) else -1
    return tuple(sorted(given, key=lambda name: unknown if (rank := _rank(name)) == _UNKNOWN else rank))


def is_input(name: str) -> bool:
    return _rank(name) < _UNKNOWN


def decide_order(names: Sequence[str]) -> bool:
    """Return true if each of `names` says which role it has, or if there is only one."""
    return len(names) < 2 or _UNKNOWN not in map(_rank, names)


def _rank(name: str) -> int:
    """Return the rank of the whole name, or of its last word: `x_train`, `fine_label`, `group/image2`."""
    words = [re.sub(r"\d+$", "", word) for word in re.split(r"[_\-.]", name.lower().rpartition("/")[2])]
    kept = [word for word in words if word and word not in _PARTS]
    for known in ("_".join(kept), *kept[-1:]):
        if known in _RANKS:
            return _RANKS[known]
    return _UNKNOWN
