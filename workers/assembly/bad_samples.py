"""Bad samples: what the log and the trainer are told of them, and how many are allowed. Pure."""

from __future__ import annotations

from ..api import Parameters
from ..transport import BadRow, Failure

FIX_HOOK = "fix the hook"
"""The advice for a failed hook: a whole batch has no replacement."""


class BadSamples:
    """The bad samples of a run. `replaced`: the number of rows that were filled with a replacement."""

    def __init__(self, parameters: Parameters) -> None:
        self.replaced = 0
        self._parameters = parameters
        self._texts: dict[tuple[int, str], str] = {}
        self._new: list[BadRow] = []

    def note(self, bad: BadRow) -> Failure | None:
        """Record a row that was filled with a replacement; returns the run's end if there are too many bad samples."""
        self.replaced += 1
        # A bad sample comes again in every epoch, and counts once.
        if (bad.index, bad.path) not in self._texts:
            self._texts[bad.index, bad.path] = bad.text
            self._new.append(bad)
        limit = self._parameters.max_bad_samples
        if len(self._texts) <= limit:
            return None
        listed = [f"{index} ({path}): {text}" for (index, path), text in self._texts.items()]
        text = f"{len(listed)} bad samples, more than max_bad_samples={limit}: {'; '.join(listed[:10])}"
        return Failure("TooManyBadSamples", text, details=tuple(str(index) for index, _ in self._texts))

    def new_texts(self) -> list[str]:
        """Return new bad samples for the log, each sample only once."""
        new, self._new = self._new, []
        return [
            f"bad sample {bad.index} of epoch {bad.epoch} ({bad.path}) replaced by sample {bad.replacement}: {bad.text}"
            for bad in new
        ]

    def failure_of(self, bad: BadRow, in_row: tuple[int, int, str]) -> Failure:
        """Return the run's end by a row without a replacement; `in_row`: epoch, index and location of its sample."""
        epoch, index, path = bad.epoch, bad.index, bad.path
        advice = bad.advice
        if index < 0:
            epoch, index, where = in_row
            path = where or path
            advice = FIX_HOOK
        return Failure("SampleError", bad.text, epoch, index, path, bad.cause, bad.traceback, advice=advice)
