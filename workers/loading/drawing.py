"""Draws an epoch by a sampler, into a file that all loaders read. A task as any other: a loader does it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..api import Parameters
from ..base import ParameterError, SourceError
from ..order import (
    MOST_SAMPLES,
    AboutSampler,
    DrawnEpoch,
    Sampler,
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

    `was_changed`: its weights were set during the run, so earlier epochs were drawn by others.
    """

    sampler: Packed[Sampler]
    about: AboutSampler
    samples: int
    was_changed: bool = False

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

    def draw(self, epoch: int, parameters: Parameters) -> DrawnEpoch:
        """Return the samples of `epoch`; raises what draw_epoch does, and what unpickling the sampler does."""
        size = parameters.batch_size
        return draw_epoch(self.sampler.value, epoch, seed=parameters.seed, samples=self.samples, batch_size=size)

    def reweighed(self, weights: object) -> Sampling:
        """Return this with other weights, one for each sample; raises ParameterError."""
        return replace(self.by(self.sampler.value.reweighed(weights, self.samples), self.samples), was_changed=True)


class SamplerRunner:
    """Draws epochs by `sampling`.

    The sampler is unpickled at the first draw. A loader that never draws does not import its modules.
    """

    def __init__(self, sampling: Sampling, parameters: Parameters, place: Workplace) -> None:
        self._sampling = sampling
        self._parameters = parameters
        self._place = place
        self._drawn = SharedFile(place.drawn)

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
        epoch = self._sampling.draw(task.epoch, self._parameters)
        end = self._drawn.write(task.offset, draws_of(epoch.indices))
        if epoch.sizes is not None:
            self._drawn.write(end, epoch.sizes)
        return Drawn(len(epoch.indices), 0 if epoch.sizes is None else len(epoch.sizes))
