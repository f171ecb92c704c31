"""Draws an epoch by a sampler, into a file that all loaders read. A task as any other: a loader does it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..api import Parameters
from ..base import ParameterError, SourceError
from ..order import (
    MOST_SAMPLES,
    AboutSampler,
    DrawnEpoch,
    Sampler,
    Weights,
    WeightsLog,
    draw_epoch,
    draws_of,
    globals_kept,
)
from ..transport import Activity, Draw, Drawn, Packed, SharedFile, describe, sendable, summary_of
from .worker import Workplace

_MOST_CHARACTERS = 2000


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """A sampler that draws from `samples` samples, packed for the loader that draws, with what others know of it.

    `log`: the weights that were set.
    `most_in_slot`: the batches per slot if they took no time. The first epoch of new weights is computed from it, since
    it must not depend on measured times.
    """

    sampler: Packed[Sampler]
    about: AboutSampler
    samples: int
    most_in_slot: int = 1
    log: WeightsLog = field(default_factory=WeightsLog)

    @classmethod
    def by(cls, sampler: Sampler, samples: int) -> Sampling:
        """Pack the sampler; raises ParameterError for more samples than it can number."""
        if samples > MOST_SAMPLES:
            raise ParameterError(
                f"{sampler.about.name} chooses among at most 2**48 samples, and the source has {samples}"
            )
        # Only the loader that draws imports its modules: often that is torch, which the others do not need.
        packed = Packed(sampler, parts={sampler.about.name: sampler})
        return cls(sampler=packed, about=sampler.about, samples=samples)

    def draw(self, epoch: int, parameters: Parameters, weights: Weights | None = None) -> DrawnEpoch:
        """Return the samples of `epoch`; raises what draw_epoch does, and what unpickling the sampler does."""
        size = parameters.batch_size
        return draw_epoch(
            self.sampler.value, epoch, seed=parameters.seed, samples=self.samples, batch_size=size, weights=weights
        )


class SamplerRunner:
    """Draws epochs by `sampling`, whose log has the weights that were set before the run began.

    The sampler is unpickled at the first draw. A loader that never draws does not import its modules.
    """

    def __init__(self, sampling: Sampling, parameters: Parameters, place: Workplace) -> None:
        self._sampling = sampling
        self._parameters = parameters
        self._place = place
        self._drawn = SharedFile(place.drawn)
        self._weights = SharedFile(place.weights)

    def answer(self, task: Draw) -> Drawn:
        """Draw the epoch of `task`; an exception of the sampler becomes a failure."""
        self._place.status.write(Activity.SAMPLING, task.epoch)
        try:
            with self._place.guard(), globals_kept():
                return self._draw(task)
        except SourceError as error:
            return Drawn(failure=sendable(str(error), _MOST_CHARACTERS))
        except Exception as error:
            text = f"{self._sampling.about.name}, epoch {task.epoch}: it raised {summary_of(error)}"
            return Drawn(failure=text, cause=self._place.send_error(error), traceback=describe(error))

    def _draw(self, task: Draw) -> Drawn:
        epoch = self._sampling.draw(task.epoch, self._parameters, self._weights_of(task.weights))
        end = self._drawn.write(task.offset, draws_of(epoch.indices))
        if epoch.sizes is not None:
            self._drawn.write(end, epoch.sizes)
        return Drawn(len(epoch.indices), 0 if epoch.sizes is None else len(epoch.sizes))

    def _weights_of(self, version: int) -> Weights | None:
        if version == 0:
            return None
        if (known := self._sampling.log.weights.get(version)) is not None:
            return known
        samples = self._sampling.samples
        weights = self._weights.read(8 * samples * version, samples, np.float64)
        if not weights.any():  # freed since the request: newer weights apply, and the answer will be ignored
            raise SourceError(f"{self._sampling.about.name}: the weights of version {version} count no more")
        return weights
