"""The table of crashes, all of it: accidents that leave no trace, bad samples that are named or replaced."""

from __future__ import annotations

import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from ..support.crash_table import Case, accidents, check_accident, check_poison, check_start_up, poisons, start_ups
from .figures import Figure
from .scale import Scale

_STUDY = "crash table"


def study(scale: Scale, folder: Path) -> Iterator[Figure]:
    failed: list[str] = []
    counts: Counter[str] = Counter()
    for name, what, check in list(_checks(folder))[:: scale.crash_step]:
        counts[what] += 1
        try:
            check()
        except Exception:
            traceback.print_exc()
            failed.append(name)
            yield Figure(_STUDY, f"failed: {name}", 1, 0)
    for what, number in counts.items():
        yield Figure(_STUDY, what, number)
    yield Figure(_STUDY, "cases in which not all was as promised", len(failed), 0)


def _checks(folder: Path) -> Iterator[tuple[str, str, Callable[[], object]]]:
    """Each case: its name, what is counted, and the check, which raises where something is not as promised."""
    for case in accidents():
        what = "accidents, survived without a trace"
        yield str(case), what, partial(_in_own_folder, check_accident, case, folder)
    for case in poisons():
        what = "bad samples, replaced and counted" if case.on_error == "replace" else "bad samples, isolated and named"
        yield str(case), what, partial(_in_own_folder, check_poison, case, folder)
    for fault in start_ups():
        what = "start-ups that cannot succeed, explained"
        yield f"{fault} of every loader at start", what, partial(check_start_up, fault)


def _in_own_folder(check: Callable[[Case, Path], int], case: Case, folder: Path) -> int:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        return check(case, Path(own))
